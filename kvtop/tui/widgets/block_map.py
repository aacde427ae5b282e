"""The map of the pool: every block a cell, or as many blocks a cell as it takes to show them all.

Rows are cached strips built by run length; a frame looks only at the cells of blocks that changed, so that a pool of
100,000 blocks costs no more than what happens in it.
"""

from __future__ import annotations

from rich.segment import Segment
from textual import events
from textual.binding import Binding
from textual.message import Message
from textual.strip import Strip

from kvtop.state.model import FRESH, IDLE, IN_TRANSFER, USED, PoolState
from kvtop.tui import glyphs
from kvtop.tui.frame import Frame
from kvtop.tui.glyphs import to_ascii
from kvtop.tui.widgets.grid import lay_out
from kvtop.tui.widgets.lines import DrawnWidget

# Codes of cells: what a cell shows. 2..9 are refcounts.
_FRESH, _USED, _MANY, _IDLE, _PARTIAL, _TRANSFER, _NOTHING = 0, 1, 10, 11, 12, 13, 14
_LOOKS: dict[int, tuple[str, str]] = {
    _FRESH: (glyphs.FRESH, "fresh"),
    _IDLE: (glyphs.IDLE, "idle"),
    _USED: (glyphs.USED, "used"),
    _PARTIAL: (glyphs.PARTIAL, "used"),
    _TRANSFER: (glyphs.TRANSFER, "transfer"),
    _MANY: (glyphs.MANY, "many"),
    _NOTHING: (" ", ""),
    **{n: (str(n), "shared" if n < 4 else "shared4") for n in range(2, 10)},
}
_LIT = 0x80  # the block belongs to the selected request


class BlockMap(DrawnWidget, can_focus=True):
    """Cells of the pool with a cursor that stays on its block."""

    BINDINGS = [
        Binding(
            "up,k",
            "move(0,-1)",
            "move",
            show=False,  # the footer has no room for what goes without saying
            key_display="arrows",
            tooltip="move the cursor (or hjkl, PgUp, PgDn, Home, End)",
        ),
        Binding("down,j", "move(0,1)", show=False),
        Binding("left,h", "move(-1,0)", show=False),
        Binding("right,l", "move(1,0)", show=False),
        Binding("pageup", "page(-1)", show=False),
        Binding("pagedown", "page(1)", show=False),
        Binding("home", "edge(0)", show=False),
        Binding("end", "edge(1)", show=False),
        Binding("enter", "open", "owner", key_display="enter", tooltip="select the request that holds the block"),
        Binding("d", "density", "density", tooltip="all blocks at once, or one block a cell with scrolling"),
    ]

    class Moved(Message):
        """The cursor, the density or the scroll position has changed."""

    class Opened(Message):
        """Enter on a block."""

        def __init__(self, block: int) -> None:
            self.block = block
            super().__init__()

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.pool: PoolState | None = None
        self.cursor = 0  # block id
        self.one_a_cell = False
        self.grid = lay_out(0, 1, 1)
        self.top = 0  # first row shown
        self._lit: frozenset[int] = frozenset()
        self._codes: dict[int, bytearray] = {}
        self._strips: dict[int, Strip] = {}

    # Frames --------------------------------------------------------------------------------------------------

    def update_frame(self, frame: Frame) -> None:
        pool = frame.state.pool
        if pool is not self.pool:
            self.pool = pool
            self._lay_out()
        elif frame.whole:
            self.clear_rows()
            self.refresh()
        elif pool is not None:
            self._touch(frame.dirty)

    def light(self, blocks: frozenset[int]) -> None:
        """Underline these blocks: they belong to the selected request."""
        if blocks != self._lit:
            changed = self._lit ^ blocks
            self._lit = blocks
            self._touch(changed)

    def _touch(self, blocks: set[int] | frozenset[int]) -> None:
        """Redraw the visible rows among those of ``blocks`` that have a cell which looks different now."""
        pool, grid, changed = self.pool, self.grid, set()
        if pool is None or not self._codes:
            return
        read = self._read_block if grid.density == 1 else self._read_cell
        for cell in {block // grid.density for block in blocks}:
            row, index = divmod(cell, grid.blocks_a_row // grid.density)
            codes = self._codes.get(row)
            if codes is None:
                continue
            code = read(pool, cell * grid.density)
            if code != codes[index]:
                codes[index] = code
                changed.add(row)
        for row in changed:
            self._strips.pop(row, None)
        self.refresh_rows([row - self.top for row in sorted(changed) if 0 <= row - self.top < self.size.height])

    def clear_rows(self) -> None:
        self._codes.clear()
        self._strips.clear()

    def _lay_out(self) -> None:
        num_blocks = self.pool.num_blocks if self.pool else 0
        width, height = self.size
        self.grid = lay_out(num_blocks, width, height, 1 if self.one_a_cell else None)
        self.cursor = max(0, min(self.cursor, num_blocks - 1))
        self.clear_rows()
        self._scroll_to_cursor()
        self.refresh()
        self.post_message(self.Moved())

    def on_resize(self) -> None:
        self._lay_out()

    # Rows ----------------------------------------------------------------------------------------------------

    def _read_row(self, row: int) -> bytearray:
        """The codes of one row's cells, from the pool."""
        pool, grid = self.pool, self.grid
        if pool is None:
            return bytearray()
        first = row * grid.blocks_a_row
        last = min(first + grid.blocks_a_row, pool.num_blocks)
        read = self._read_block if grid.density == 1 else self._read_cell
        return bytearray([read(pool, block) for block in range(first, last, grid.density)])

    def _read_block(self, pool: PoolState, block: int) -> int:
        state = pool.state[block]
        if state == USED:
            count = pool.refcount[block]
            code = min(count, _MANY) if count > 1 else _PARTIAL if pool.filled[block] < pool.block_size else _USED
        else:
            code = _FRESH if state == FRESH else _IDLE if state == IDLE else _TRANSFER
        return code | _LIT if block in self._lit else code

    def _read_cell(self, pool: PoolState, first: int) -> int:
        """What most blocks of the cell are; used cells show their highest refcount."""
        last = min(first + self.grid.density, pool.num_blocks)
        states = pool.state[first:last]
        counts = [(states.count(s), s) for s in (FRESH, IDLE, IN_TRANSFER, USED)]
        state = max(counts)[1]
        if state == USED:
            code = min(max(max(pool.refcount[first:last]), 1), _MANY)
            if code == 1 and not any(f == pool.block_size for f in pool.filled[first:last]):
                code = _PARTIAL
        else:
            code = _FRESH if state == FRESH else _IDLE if state == IDLE else _TRANSFER
        lit = self._lit and not self._lit.isdisjoint(range(first, last))
        return code | _LIT if lit else code

    def render_line(self, y: int) -> Strip:
        row = self.top + y
        if self.pool is None or row >= self.grid.num_rows:
            return Strip.blank(self.size.width, self.style_of(""))
        cursor_row = self.cursor // self.grid.blocks_a_row
        strip = self._strips.get(row)
        if strip is None:
            codes = self._codes.get(row)
            if codes is None:
                codes = self._codes[row] = self._read_row(row)
            strip = self._build(row, codes, row == cursor_row)
            self._strips[row] = strip
        return strip

    def _build(self, row: int, codes: bytearray, has_cursor: bool) -> Strip:
        grid = self.grid
        segments = []
        if grid.gutter:
            label = f"{row * grid.blocks_a_row:,} ".rjust(grid.gutter)
            segments.append(Segment(label, self.style_of("faint")))
        cursor = (self.cursor - row * grid.blocks_a_row) // grid.density if has_cursor else -1
        start = 0
        for i in range(1, len(codes) + 1):
            if i == len(codes) or codes[i] != codes[start] or i == cursor or start == cursor:
                segments += self._run(codes[start], i - start, start == cursor)
                start = i
        return Strip(segments).adjust_cell_length(self.size.width, self.style_of(""))

    def _run(self, code: int, length: int, is_cursor: bool) -> list[Segment]:
        glyph, name = _LOOKS[code & ~_LIT]
        if getattr(self.app, "ascii", False):
            glyph = to_ascii(glyph)
        over = "cursor" if is_cursor else "lit" if code & _LIT else ""
        style = self.style_of(name, over)
        if self.grid.pitch == 1:
            return [Segment(glyph * length, style)]
        if is_cursor:
            return [Segment(glyph, style), Segment(" " * (self.grid.pitch - 1), self.style_of(""))]
        return [Segment(glyph.ljust(self.grid.pitch) * length, style)]

    # Cursor --------------------------------------------------------------------------------------------------

    def action_move(self, dx: int, dy: int) -> None:
        self._move_by(dx * self.grid.density + dy * self.grid.blocks_a_row)

    def action_page(self, direction: int) -> None:
        self._move_by(direction * max(1, self.size.height - 1) * self.grid.blocks_a_row)

    def action_edge(self, end: int) -> None:
        self.move_to((self.pool.num_blocks - 1) if end and self.pool else 0)

    def action_density(self) -> None:
        self.one_a_cell = not self.one_a_cell
        self._lay_out()

    def action_open(self) -> None:
        self.post_message(self.Opened(self.cursor))

    def _move_by(self, blocks: int) -> None:
        """Move; a step that would leave the pool by whole rows stays in its column."""
        if self.pool is None:
            return
        target = self.cursor + blocks
        a_row = self.grid.blocks_a_row
        if abs(blocks) >= a_row:
            if target < 0:
                target = self.cursor % a_row
            elif target >= self.pool.num_blocks:
                target = self.cursor + (self.pool.num_blocks - 1 - self.cursor) // a_row * a_row
        self.move_to(target)

    def move_to(self, block: int) -> None:
        """Put the cursor on ``block`` (or the nearest there is)."""
        if self.pool is None:
            return
        block = max(0, min(block, self.pool.num_blocks - 1))
        if block == self.cursor:
            return
        rows = {self.cursor // self.grid.blocks_a_row, block // self.grid.blocks_a_row}
        self.cursor = block
        for row in rows:
            self._strips.pop(row, None)
        if self._scroll_to_cursor():
            self.refresh()
        else:
            self.refresh_rows([row - self.top for row in rows])
        self.post_message(self.Moved())

    def _scroll_to_cursor(self) -> bool:
        row, height = self.cursor // self.grid.blocks_a_row, max(1, self.size.height)
        top = min(max(self.top, row - height + 1), row)
        top = max(0, min(top, self.grid.num_rows - height))
        moved, self.top = top != self.top, top
        return moved

    def on_click(self, event: events.Click) -> None:
        column = (event.x - self.grid.gutter) // self.grid.pitch
        if self.pool is not None and 0 <= column < self.grid.columns:
            block = ((self.top + event.y) * self.grid.columns + column) * self.grid.density
            if block < self.pool.num_blocks:
                self.move_to(block)

    def on_mouse_scroll_down(self) -> None:
        self._scroll_by(3)

    def on_mouse_scroll_up(self) -> None:
        self._scroll_by(-3)

    def _scroll_by(self, rows: int) -> None:
        top = max(0, min(self.top + rows, self.grid.num_rows - max(1, self.size.height)))
        if top != self.top:
            self.top = top
            self.refresh()
            self.post_message(self.Moved())
