"""Blocks: who holds what?"""

from __future__ import annotations

from collections import Counter

from textual import on
from textual.app import ComposeResult

from kvtop.state.model import FRESH, IDLE, USED, PoolState, RunState
from kvtop.tui import glyphs
from kvtop.tui.frame import Frame
from kvtop.tui.panels.base import Panel
from kvtop.tui.text import clean, join_fitting, plural, whole
from kvtop.tui.widgets.block_map import BlockMap
from kvtop.tui.widgets.grid import lay_out
from kvtop.tui.widgets.holders import holder_lines
from kvtop.tui.widgets.lines import Line, Lines, cut, spread, width_of

FIXED_ROWS = 4  # title, legend, two lines about the cursor
MIN_HOLDER_ROWS = 4
_LEGEND: Line = [
    (f"{glyphs.FRESH} ", "fresh"),
    ("fresh  ", "soft"),
    (f"{glyphs.IDLE} ", "idle"),
    ("idle  ", "soft"),
    (f"{glyphs.USED} ", "used"),
    ("used  ", "soft"),
    (f"{glyphs.PARTIAL} ", "used"),
    ("partly filled  ", "soft"),
    ("2", "shared"),
    ("-", "soft"),
    ("9 ", "shared4"),
    (f"{glyphs.MANY} ", "many"),
    ("shared by n", "soft"),
]


class BlocksPanel(Panel):
    """The block map, its legend, what is under the cursor and, where there is room, who holds most."""

    TITLE = "Blocks"
    QUESTION = "who holds what?"
    HELP = """\
Every cell is a block: the keys and values of a fixed number of tokens.
  .    fresh: nothing in it, taken first
  ░    idle: nobody uses it, but its prefix is published: a request that
       begins the same takes it over; evicted when no fresh ones are left
  ▪    used by one sequence           ▫  used, and not full yet
  2-9  used by that many sequences    +  by ten or more
  ~    in transfer: waits for a copy to finish
A pool larger than the screen has several blocks a cell, and says how many:
a cell then shows what most of them are, and the highest refcount.
Blocks of the request selected last are underlined. Enter on a block
leads to its owner among the requests; when that one is selected
already, to its next owner. w tells the life of the owner; of several:
of the one selected. Where a small pool leaves room, the sequences that
hold most of it are listed below."""

    _shares: tuple[int, int] | None = None  # rows of the map and of the list of holders; None: no list

    def compose_body(self) -> ComposeResult:
        yield BlockMap(id="map")
        yield Lines(id="legend")
        yield Lines(id="under-cursor")
        yield Lines(id="holders")

    @property
    def map(self) -> BlockMap:
        return self.query_one(BlockMap)

    def note(self, frame: Frame) -> Line:
        pool = frame.state.pool
        if pool is None:
            return []
        return [(f"{plural(pool.num_blocks, 'block')} of {plural(pool.block_size, 'token')}", "soft")]

    def show_frame(self, frame: Frame) -> None:
        self._share_out(frame)
        self.map.update_frame(frame)
        chosen = frame.state.sequences.get(str(frame.selected.get("request", "")))
        self.map.light(frozenset(chosen.held if chosen else ()))
        holders = self.query_one("#holders", Lines)
        if holders.display:
            holders.set_lines([cut(line, self.size.width) for line in holder_lines(frame, *holders.size)])
        self._show_legend()
        self._show_cursor(frame)

    def _share_out(self, frame: Frame) -> None:
        """Give the rows that the map has no blocks for to the list of holders."""
        holders, pool = self.query_one("#holders", Lines), frame.state.pool
        room = self.size.height - FIXED_ROWS
        rows = lay_out(pool.num_blocks, self.size.width, max(1, room)).num_rows if pool else room
        spare = room - rows if not self.map.one_a_cell else 0
        shares = (rows, spare) if spare >= MIN_HOLDER_ROWS else None
        if shares != self._shares:
            self._shares = shares
            holders.display = shares is not None
            self.map.styles.height = "1fr" if shares is None else rows
            self.call_after_refresh(self.redraw)  # the two have their new sizes then

    @on(BlockMap.Moved)
    def _on_moved(self) -> None:
        if self.frame is not None and self.is_mounted:
            self._show_legend()
            self._show_cursor(self.frame)
            self.kvtop.choose("block", self.map.cursor)

    @on(BlockMap.Opened)
    def _on_opened(self, event: BlockMap.Opened) -> None:
        if owners := self.owners_under_cursor():
            chosen = self.kvtop.selected.get("request")
            after = owners.index(str(chosen)) + 1 if chosen in owners else 0
            self.kvtop.select("request", owners[after % len(owners)])

    def owners_under_cursor(self) -> list[str]:
        """Who holds the block under the cursor; where a cell is several blocks, who holds any of them."""
        pool, grid = self.frame.state.pool if self.frame else None, self.map.grid
        if pool is None:
            return []
        first = self.map.cursor // grid.density * grid.density
        return list(dict.fromkeys(name for names in pool.owners[first : first + grid.density] for name in names))

    def _show_legend(self) -> None:
        legend, grid, shown = self.query_one("#legend", Lines), self.map.grid, self.map.size.height
        width = legend.size.width
        scale = "1 cell = 1 block" if grid.density == 1 else f"1 cell = {grid.density:,} blocks"
        if self.map.grid.num_rows > shown > 0:
            last = min(grid.num_rows, self.map.top + shown)
            scale = f"rows {self.map.top + 1:,}-{last:,} of {grid.num_rows:,}"
        legend.set_lines([cut(spread(_LEGEND, [(scale, "soft")], width), width)])

    def _show_cursor(self, frame: Frame) -> None:
        detail, pool = self.query_one("#under-cursor", Lines), frame.state.pool
        width = detail.size.width
        if pool is None or not pool.num_blocks:
            detail.set_lines([[("no pool yet", "soft")], []])
            return
        block = self.map.cursor
        density = self.map.grid.density
        first = _cell_line(pool, block, density) if density > 1 else _block_line(pool, block, width)
        owners = [pool.owners[b] for b in range(block, min(block + density, pool.num_blocks))]
        second = _owners_line(frame.state, block, owners, width)
        if density == 1:
            second += _key(pool, block, width - width_of(second))
        detail.set_lines([cut(first, width), second])


def _block_line(pool: PoolState, block: int, width: int) -> Line:
    """Block, state, tokens, last use, hits: without what does not apply to its state, or does not fit."""
    line: Line = [("block ", "soft"), (whole(block), "strong"), ("  ", ""), *_state(pool, block)]
    facts: list[Line] = []
    if pool.pins[block]:
        facts.append([("  pinned", "warn")])
    if pool.state[block] != FRESH:
        facts += [
            [("  tokens ", "soft"), (f"{pool.filled[block]}/{pool.block_size}", "text")],
            [("  prefix hits ", "soft"), (whole(pool.uses[block]), "text")],
            [("  last use step ", "soft"), (whole(pool.last_use_step[block]), "text")],
        ]
    for fact in facts:
        line += fact if width_of(line) + width_of(fact) <= width else []
    return line


def _key(pool: PoolState, block: int, room: int) -> Line:
    """The published key, short: its last eight hexadecimal digits."""
    key = pool.key[block]
    line: Line = [("  published as ", "soft"), (f"{key & 0xFFFFFFFF:08x}", "text")] if key is not None else []
    if not line and pool.state[block] == USED:
        line = [("  not published", "soft")]
    return line if width_of(line) <= room else []


def _state(pool: PoolState, block: int) -> Line:
    state, count = pool.state[block], pool.refcount[block]
    if state == FRESH:
        return [("fresh", "text")]
    if state == IDLE:
        return [("idle", "idle")]
    if state != USED:
        return [("in transfer", "transfer")]
    if count > 1:
        return [(f"shared by {count:,}", "shared")]
    return [("used by 1", "used")]


def _cell_line(pool: PoolState, first: int, density: int) -> Line:
    """What the blocks of one cell are."""
    start = first // density * density
    last = min(start + density, pool.num_blocks)
    states = pool.state[start:last]
    shared = sum(1 for count in pool.refcount[start:last] if count > 1)
    line: Line = [("blocks ", "soft"), (f"{start:,}-{last - 1:,}", "strong"), ("  ", "")]
    used, idle, fresh = states.count(USED), states.count(IDLE), states.count(FRESH)
    line += [(f"{used} used", "used"), (f" ({shared} shared)  " if shared else "  ", "shared")]
    line += [(f"{idle} idle  ", "idle"), (f"{fresh} fresh", "text")]
    if used:
        filled = sum(pool.filled[b] for b in range(start, last) if pool.state[b] == USED)
        line += [("  tokens ", "soft"), (f"{filled:,}/{used * pool.block_size:,}", "text")]
    return line


def _owners_line(state: RunState, block: int, owners: list[list[str]], width: int) -> Line:
    """Who holds the cell; for a single block also at which position of the sequence."""
    names = Counter(owner for one in owners for owner in one)
    if not names:
        return [("held by nobody", "soft")]
    parts = [clean(name) if len(owners) == 1 else f"{clean(name)} ×{count}" for name, count in names.most_common()]
    head: Line = [("held by ", "soft")]
    where = _position(state, block, next(iter(names))) if len(owners) == 1 else None
    tail: Line = []
    if where is not None:
        size = state.pool.block_size if state.pool else 1
        tail = [("  positions ", "soft"), (f"{where * size:,}-{where * size + size - 1:,}", "text")]
    room = max(8, width - width_of(head) - width_of(tail))
    return [*head, (join_fitting(parts, room), "text"), *tail]


def _position(state: RunState, block: int, owner: str) -> int | None:
    """Index of ``block`` in its owner's block table."""
    seq = state.sequences.get(owner)
    table = next((t for t in seq.tables if block in t), None) if seq is not None else None
    return None if table is None else table.index(block)
