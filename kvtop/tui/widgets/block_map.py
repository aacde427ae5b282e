"""The map of the pool: every block a cell, or as many blocks a cell as it takes to show them all.

What all cells show is computed anew for every frame, in NumPy (``cells``); only rows that then look different are built
again, one segment for each stretch of one style, so that 100,000 blocks cost no more than what changes on the screen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.segment import Segment
from textual import events
from textual.binding import Binding
from textual.message import Message
from textual.strip import Strip

from kvtop.state.model import PoolState
from kvtop.tui.block_view import BlockView
from kvtop.tui.frame import Frame
from kvtop.tui.glyphs import to_ascii
from kvtop.tui.widgets.cells import LIT, LOOKS, Hues, cell_codes, glyph_of, looks_of, style_of
from kvtop.tui.widgets.grid import lay_out
from kvtop.tui.widgets.lines import DrawnWidget

if TYPE_CHECKING:
    import numpy as np


class BlockMap(DrawnWidget, can_focus=True):
    """Cells of the pool with a cursor that stays on its block, wherever the order puts it."""

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
        Binding(
            "enter", "open", "owner", key_display="enter", tooltip="the request that holds the block; or its prefix"
        ),
        Binding("o", "order", "order", tooltip="next order: physical, eviction, owner, prefix, age"),
        Binding("g", "look", "show", tooltip="what cells show: refcount, owner, age, heat (how often found)"),
        Binding("d", "density", "density", tooltip="all blocks at once, or one block a cell with scrolling"),
    ]

    class Moved(Message):
        """The cursor, the density, the order, the look or the scroll position has changed."""

    class Opened(Message):
        """Enter on a block."""

        def __init__(self, block: int) -> None:
            self.block = block
            super().__init__()

    def __init__(self, view: BlockView | None = None, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.view = view if view is not None else BlockView()
        self.pool: PoolState | None = None
        self.cursor = 0  # block id
        self.look = LOOKS[0]
        self.one_a_cell = False
        self.grid = lay_out(0, 1, 1)
        self.top = 0  # first row shown
        self._frame: Frame | None = None
        self._hues = Hues()
        self._hues_stale = True
        self._lit: frozenset[int] = frozenset()
        self._codes: np.ndarray | None = None  # a row of the grid a row
        self._cursor_cell = 0  # when the codes were read
        self._strips: dict[int, Strip] = {}
        self._drawn: dict[int, tuple[str, int]] = {}  # code -> glyph, number of its style
        self._style_names: list[str] = []

    # Frames --------------------------------------------------------------------------------------------------

    def update_frame(self, frame: Frame) -> None:
        """``view`` has been updated with this frame."""
        self._frame, pool = frame, frame.state.pool
        self._choose_look(self.look)
        if pool is not self.pool:
            self.pool = pool
            self._hues_stale = True
            self._lay_out()
            return
        if pool is None:
            return
        if self.look == "owner":
            self._hues.update(pool, frame.dirty, frame.whole or self._hues_stale)
        self._hues_stale = self.look != "owner"
        self._read()

    def light(self, blocks: frozenset[int]) -> None:
        """Underline these blocks: they belong to the selected request or prefix."""
        if blocks != self._lit:
            self._lit = blocks
            self._read()

    @property
    def letters(self) -> bool:
        """No colours: owners are letters."""
        return bool(self.app.ansi_color) if self.is_attached else False

    def _read(self) -> None:
        """Compute what the cells show; drop and redraw the rows that look different."""
        import numpy as np

        pool, frame, grid, order = self.pool, self._frame, self.grid, self.view.order
        if pool is None or frame is None or order is None or len(order) != pool.num_blocks:
            return
        lit = None
        if self._lit:
            lit = np.zeros(pool.num_blocks, bool)
            lit[list(self._lit)] = True
        hues = self._hues.hues if self.look == "owner" else None
        published = self.view.published if self.look == "heat" else None
        order = None if self.view.order_name == "physical" else order
        codes = cell_codes(pool, order, grid.density, self.look, frame.state.step, hues, published, lit)
        full = np.full(grid.num_rows * grid.columns, -1, np.int64)
        full[: len(codes)] = codes
        full = full.reshape(grid.num_rows, grid.columns)
        before, self._codes = self._codes, full
        cell, self._cursor_cell = self._cursor_cell, self._cell_of_cursor()
        if before is None or before.shape != full.shape:
            self._strips.clear()
            self.refresh()
            return
        changed = (before != full).any(axis=1).nonzero()[0].tolist()
        if cell != self._cursor_cell:  # its block has another place now
            changed += [cell // grid.columns, self._cursor_cell // grid.columns]
            if self._scroll_to_cursor():
                self.refresh()
        for row in changed:
            self._strips.pop(row, None)
        self.refresh_rows([row - self.top for row in changed if 0 <= row - self.top < self.size.height])

    def clear_rows(self) -> None:
        self._strips.clear()
        self._drawn.clear()
        self._style_names.clear()

    def _lay_out(self) -> None:
        num_blocks = self.pool.num_blocks if self.pool else 0
        width, height = self.size
        self.grid = lay_out(num_blocks, width, height, 1 if self.one_a_cell else None)
        self.cursor = max(0, min(self.cursor, num_blocks - 1))
        self._codes = None
        self._strips.clear()
        if self.pool is not None and self.look == "owner":
            self._hues.update(self.pool, set(), whole=True)
            self._hues_stale = False
        self._read()
        self._scroll_to_cursor()
        self.refresh()
        self.post_message(self.Moved())

    def on_resize(self) -> None:
        self._lay_out()

    # Rows ----------------------------------------------------------------------------------------------------

    def render_line(self, y: int) -> Strip:
        row = self.top + y
        if self.pool is None or self._codes is None or row >= self.grid.num_rows:
            return Strip.blank(self.size.width, self.style_of(""))
        strip = self._strips.get(row)
        if strip is None:
            strip = self._strips[row] = self._build(row, self._codes[row].tolist())
        return strip

    def _build(self, row: int, codes: list[int]) -> Strip:
        grid = self.grid
        if codes[-1] < 0:
            codes = codes[: codes.index(-1)]
        segments = []
        if grid.gutter:
            label = f"{row * grid.blocks_a_row:,} ".rjust(grid.gutter)
            segments.append(Segment(label, self.style_of("faint")))
        cell = self._cell_of_cursor()
        cursor = cell - row * grid.columns if cell // grid.columns == row else -1
        drawn = self._drawn
        for code in set(codes):
            if code not in drawn:
                drawn[code] = self._draw(code)
        looks = [drawn[code] for code in codes]
        blank = " " * (grid.pitch - 1)
        start = 0
        for i in range(1, len(looks) + 1):
            if i == len(looks) or looks[i][1] != looks[start][1] or i == cursor or start == cursor:
                text = "".join([glyph + blank for glyph, _ in looks[start:i]])
                segments += self._stretch(text, self._style_names[looks[start][1]], start == cursor)
                start = i
        return Strip(segments).adjust_cell_length(self.size.width, self.style_of(""))

    def _stretch(self, text: str, name: str, is_cursor: bool) -> list[Segment]:
        name, _, over = name.partition(" ")
        if not is_cursor:
            return [Segment(text, self.style_of(name, over))]
        rest = [Segment(text[1:], self.style_of(""))] if len(text) > 1 else []
        return [Segment(text[0], self.style_of(name, "cursor")), *rest]

    def _draw(self, code: int) -> tuple[str, int]:
        glyph = glyph_of(code & ~LIT, self.letters)
        if getattr(self.app, "ascii", False):
            glyph = to_ascii(glyph)
        name = f"{style_of(code & ~LIT)} {'lit' if code & LIT else ''}"
        if name not in self._style_names:
            self._style_names.append(name)
        return glyph, self._style_names.index(name)

    # Cursor --------------------------------------------------------------------------------------------------

    @property
    def position(self) -> int:
        """Place of the cursor's block in the order."""
        place = self.view.place
        return int(place[self.cursor]) if place is not None and self.cursor < len(place) else 0

    def _cell_of_cursor(self) -> int:
        return self.position // self.grid.density

    def cell_blocks(self) -> list[int]:
        """The blocks in the cell under the cursor."""
        order, density = self.view.order, self.grid.density
        if order is None:
            return []
        first = self._cell_of_cursor() * density
        return order[first : first + density].tolist()

    def action_move(self, dx: int, dy: int) -> None:
        self._move_by(dx * self.grid.density + dy * self.grid.blocks_a_row)

    def action_page(self, direction: int) -> None:
        self._move_by(direction * max(1, self.size.height - 1) * self.grid.blocks_a_row)

    def action_edge(self, end: int) -> None:
        self._move_to_place((self.pool.num_blocks - 1) if end and self.pool else 0)

    def action_density(self) -> None:
        self.one_a_cell = not self.one_a_cell
        self._lay_out()

    def action_order(self) -> None:
        if self._frame is not None:
            self.view.change_order(self._frame.state)
            self.view.update(self._frame)
            self._lay_out()

    def action_look(self) -> None:
        looks = self._looks
        self._choose_look(looks[(looks.index(self.look) + 1) % len(looks)])
        self._lay_out()

    @property
    def _looks(self) -> tuple[str, ...]:
        return LOOKS if self._frame is None else looks_of(self._frame.state)

    def _choose_look(self, look: str) -> None:
        """``look``, or the first one where the log does not tell of it."""
        self.look = look if look in self._looks else self._looks[0]

    def action_open(self) -> None:
        self.post_message(self.Opened(self.cursor))

    def _move_by(self, blocks: int) -> None:
        """Move; a step that would leave the pool by whole rows stays in its column."""
        if self.pool is None:
            return
        here = self.position
        target = here + blocks
        a_row = self.grid.blocks_a_row
        if abs(blocks) >= a_row:
            if target < 0:
                target = here % a_row
            elif target >= self.pool.num_blocks:
                target = here + (self.pool.num_blocks - 1 - here) // a_row * a_row
        self._move_to_place(target)

    def _move_to_place(self, place: int) -> None:
        order = self.view.order
        if order is not None and len(order):
            self.move_to(int(order[max(0, min(place, len(order) - 1))]))

    def move_to(self, block: int) -> None:
        """Put the cursor on ``block`` (or the nearest there is)."""
        if self.pool is None:
            return
        block = max(0, min(block, self.pool.num_blocks - 1))
        if block == self.cursor:
            return
        rows = {self._cell_of_cursor() // self.grid.columns}
        self.cursor = block
        self._cursor_cell = self._cell_of_cursor()
        rows.add(self._cursor_cell // self.grid.columns)
        for row in rows:
            self._strips.pop(row, None)
        if self._scroll_to_cursor():
            self.refresh()
        else:
            self.refresh_rows([row - self.top for row in rows])
        self.post_message(self.Moved())

    def _scroll_to_cursor(self) -> bool:
        row, height = self._cell_of_cursor() // self.grid.columns, max(1, self.size.height)
        top = min(max(self.top, row - height + 1), row)
        top = max(0, min(top, self.grid.num_rows - height))
        moved, self.top = top != self.top, top
        return moved

    def on_click(self, event: events.Click) -> None:
        column = (event.x - self.grid.gutter) // self.grid.pitch
        if self.pool is not None and 0 <= column < self.grid.columns:
            place = ((self.top + event.y) * self.grid.columns + column) * self.grid.density
            if place < self.pool.num_blocks:
                self._move_to_place(place)

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
