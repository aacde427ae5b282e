"""Blocks: who holds what, and what goes next?"""

from __future__ import annotations

from textual import on
from textual.app import ComposeResult

from kvtop.state.eviction_order import policy_of
from kvtop.state.model import WITHHELD
from kvtop.tui.attached import block_legend
from kvtop.tui.block_view import BlockView
from kvtop.tui.frame import Frame
from kvtop.tui.panels.base import Panel
from kvtop.tui.text import clean, plural
from kvtop.tui.widgets.block_map import BlockMap
from kvtop.tui.widgets.cells import legend
from kvtop.tui.widgets.grid import lay_out
from kvtop.tui.widgets.holders import holder_lines
from kvtop.tui.widgets.lines import Line, Lines, cut, spread

FIXED_ROWS = 3  # title, what is shown how, legend
MIN_HOLDER_ROWS = 4
EMPTY = "nothing cached"  # of an attached server's block: it may be in use


class BlocksPanel(Panel):
    """The block map, how it is shown, its legend and, where there is room, who holds most."""

    TITLE = "Blocks"
    QUESTION = "who holds what, and what goes next?"
    HELP = """\
Every cell is a block: the keys and values of a fixed number of tokens.
  .    fresh: nothing in it, taken first
  ░    idle: nobody uses it, but its prefix is published: a request that
       begins the same takes it over; evicted when no fresh ones are left
  ▪    used by one sequence           ▫  used, and not full yet
  2-9  used by that many sequences    +  by ten or more
  ~    in transfer: waits for a copy to finish
  x    withheld: the pool was made smaller while the run goes on
A pool larger than the screen has several blocks a cell, and says how many:
a cell then shows what most of them are, and the highest refcount.

o  order. physical: by block id. eviction: what an allocation takes next
   stands first (fresh blocks, then idle ones as the policy evicts them).
   owner: by request, then by position. prefix: along the prefix tree,
   what saved most tokens first. age: the oldest content first. While the
   run goes on, blocks change places once a second at most.
g  what cells show. refcount: as above. owner: the same, in the colour of
   the owner (letters a-h where there are no colours; two requests may
   have the same). age: the digit n is an age below 2^(n+1) steps since
   the block was taken. heat: how often a published block was found.
d  all blocks at once, or one block a cell with scrolling.
Of attached servers only what KV events tell is offered: orders of
appearance, prefix and age; cells show what is cached, or its age.

Blocks of what was selected last, a request or a prefix, are underlined.
Enter on a block leads to its owner among the requests; when that one is
selected already, to its next owner; of a block that nobody holds to its
prefix in the tree, as v always does. w tells the life of the owner; of
several: of the one selected. Where a small pool leaves room, the
sequences that hold most of it are listed below."""

    def __init__(self, view: BlockView) -> None:
        super().__init__()
        self.view = view
        self._shares: tuple[int, int] | None = None  # rows of the map and of the list of holders; None: no list

    def compose_body(self) -> ComposeResult:
        yield Lines(id="settings")
        yield BlockMap(self.view, id="map")
        yield Lines(id="legend")
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
        self.map.light(self._lit(frame))
        self.view.cell = self.map.cell_blocks()
        holders = self.query_one("#holders", Lines)
        if holders.display:
            holders.set_lines([cut(line, self.size.width) for line in holder_lines(frame, *holders.size)])
        self._show_settings(frame)

    def _lit(self, frame: Frame) -> frozenset[int]:
        """Blocks of what was chosen last, the request or the prefix."""
        for kind in reversed(frame.selected):
            if kind == "request":
                chosen = frame.state.sequences.get(str(frame.selected[kind]))
                return frozenset(chosen.held if chosen else ())
            if kind == "prefix":
                block = self.view.tree.block_of.get(int(frame.selected[kind]))
                runs = self.view.tree.runs
                return frozenset(() if block is None else runs.blocks(int(runs.run_of[block])).tolist())
        return frozenset()

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
        """Goes on to the screen."""
        if self.frame is not None and self.is_mounted:
            self.view.cell = self.map.cell_blocks()
            self._show_settings(self.frame)

    @on(BlockMap.Opened)
    def _on_opened(self, event: BlockMap.Opened) -> None:
        if owners := self.owners_under_cursor():
            chosen = self.kvtop.selected.get("request")
            after = owners.index(str(chosen)) + 1 if chosen in owners else 0
            self.kvtop.select("request", owners[after % len(owners)])
        else:
            self.open_prefix()

    def open_prefix(self) -> None:
        """To the prefix of the block under the cursor, in the tree."""
        pool = self.frame.state.pool if self.frame else None
        key = pool.key[self.map.cursor] if pool is not None and self.map.cursor < pool.num_blocks else None
        if key is None:
            self.notify("nobody holds this block, and it is not published", timeout=2)
        else:
            self.kvtop.select("prefix", key)

    def owners_under_cursor(self) -> list[str]:
        """Who holds the block under the cursor; where a cell is several blocks, who holds any of them."""
        pool = self.frame.state.pool if self.frame else None
        if pool is None:
            return []
        return list(dict.fromkeys(name for block in self.map.cell_blocks() for name in pool.owners[block]))

    def _legend(self, frame: Frame) -> Line:
        pool, look, one_block = frame.state.pool, self.map.look, self.map.grid.density == 1
        if frame.state.attached is None:
            withheld = pool is not None and pool.counts[WITHHELD] > 0
            return legend(look, one_block, self.map.letters, withheld)
        return block_legend(frame.state) if pool is None or look == "cached" else legend(look, one_block, fresh=EMPTY)

    def attached_note(self, frame: Frame) -> Line:
        logical: Line = [("logical, from events", "soft")] if frame.state.pool is not None else []
        return super().attached_note(frame) or logical

    def _show_settings(self, frame: Frame) -> None:
        settings, grid, shown = self.query_one("#settings", Lines), self.map.grid, self.map.size.height
        width = settings.size.width
        name = self.view.order_name
        order = f"eviction ({clean(policy_of(frame.state))})" if name == "eviction" else name
        if frame.state.attached is not None and name == "physical":
            order = "of appearance"  # where a block lies is not told
        scale = "1 cell = 1 block" if grid.density == 1 else f"1 cell = {grid.density:,} blocks"
        line: Line = [
            ("order ", "soft"), (order, "strong"), ("   shows ", "soft"), (self.map.look, "strong"), ("   ", ""),
            (scale, "text"),
        ]  # fmt: skip
        right: Line = []
        if grid.num_rows > shown > 0:
            last = min(grid.num_rows, self.map.top + shown)
            right = [(f"rows {self.map.top + 1:,}-{last:,} of {grid.num_rows:,}", "soft")]
        elif name == "eviction":
            right = [("next is top left", "soft")]
        settings.set_lines([cut(spread(line, right, width), width)])
        self.query_one("#legend", Lines).set_lines([cut(self._legend(frame), width)])
