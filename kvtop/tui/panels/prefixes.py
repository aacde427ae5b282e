"""Prefixes: which of them earn their memory?"""

from __future__ import annotations

from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding

from kvtop.state.attached_reading import no_events
from kvtop.state.model import RunState
from kvtop.state.prefix_tree import Runs
from kvtop.state.step_times import ago
from kvtop.tui.attached import no_blocks
from kvtop.tui.block_view import BlockView
from kvtop.tui.frame import Frame
from kvtop.tui.panels.base import Panel
from kvtop.tui.panels.block import short_key
from kvtop.tui.prefix_rows import SORTS, Openness, PrefixRow, matching_rows, prefix_rows, way_to
from kvtop.tui.screens.ask import AskScreen
from kvtop.tui.text import clean, percent, plural, seconds, short, whole
from kvtop.tui.widgets.line_table import Cell, Column, LineTable
from kvtop.tui.widgets.lines import Line, Lines, cut

_COLUMNS = [
    Column("prefix", 20),
    Column("tokens", 6, "right"),
    Column("saved", 6, "right"),
    Column("readers", 7, "right"),
    Column("hits", 5, "right"),
    Column("last", 6, "right"),
    Column("of pool", 7, "right", 76),
    Column("+below", 6, "right", 120),
    Column("+saved", 7, "right", 120),
    Column("published by", 0),
]


_OF_HITS = (2, 3, 4, 8)  # columns about who found or reads a run


class PrefixTable(LineTable):
    """Rows of the tree: right and left open and close them."""

    BINDINGS: ClassVar[list] = [
        Binding(
            "right,l", "unfold(True)", "open, close", key_display="→ ←", tooltip="show what hangs below (left: hide)"
        ),
        Binding("left,h", "unfold(False)", show=False),
    ]

    def action_unfold(self, is_open: bool) -> None:
        panel = self.parent
        if isinstance(panel, PrefixesPanel) and self.selected is not None:
            panel.unfold(self.selected, is_open)


class PrefixesPanel(Panel):
    """The prefix tree in runs: tokens held, tokens saved, readers, hits."""

    TITLE = "Prefixes"
    QUESTION = "which earn their memory?"
    HELP = """\
The prefix cache as a tree. A row is a run: published blocks that follow
each other without a branch. What hangs below it begins with it.
tokens   it holds, without what hangs below
saved    tokens that were found here instead of computed, since its blocks
         were published: for each block, its hits times its tokens
readers  requests that hold it now
hits     requests that found it (its publisher is not counted)
last     when it was last found or released; #9: in step 9, long ago
of pool  its blocks, of all blocks
+below   tokens with everything below it; +saved: what is saved likewise
Rows say dead where nobody reads or ever found them again: memory that
has earned nothing yet. Several such leaves are one row.
s sorts: saved, tokens, readers, hits, last use, never found. / filters by
key, publisher or tenant:name. Enter leads to its blocks on the map, r to
a request that reads it. An evicted run is no longer here: what was saved
by it is not counted, what is wanted of it again stands under Regrets."""
    BINDINGS: ClassVar[list] = [
        Binding("s", "sort", "sort", tooltip="sort by saved, tokens, readers, hits, last use, never found"),
        Binding(
            "slash,f3", "filter", "filter", key_display="/", tooltip="only prefixes with these words: key, tenant:x"
        ),
        Binding("r", "reader", "reader", tooltip="a request that reads the selected prefix"),
    ]

    def __init__(self, view: BlockView) -> None:
        super().__init__()
        self.view = view
        self.sort, self.words = "saved", ""
        self.openness = Openness()
        self.rows: dict[str, PrefixRow] = {}
        self._runs: Runs | None = None  # that the rows are of: the tree may have gone on since

    def compose_body(self) -> ComposeResult:
        yield Lines(id="sums")
        yield PrefixTable(_COLUMNS, opens="block")

    @property
    def table(self) -> PrefixTable:
        return self.query_one(PrefixTable)

    def note(self, frame: Frame) -> Line:
        what: Line = [(f"filter {clean(self.words)}  ", "focus")] if self.words else []
        return [*what, ("sorted by ", "soft"), (self.sort, "text")]

    def show_frame(self, frame: Frame) -> None:
        tree, pool = self.view.tree, frame.state.pool
        if pool is None:
            self.rows = {}
        elif self.words:
            self.rows = {row.id: row for row in matching_rows(tree, self.sort, self.words)}
        else:
            self.rows = {
                row.id: row
                for row in prefix_rows(tree, self.sort, self.openness, knows_hits=frame.state.attached is None)
            }
        self._runs = tree.runs if pool is not None else None
        self.table.empty_text = self._nothing(frame.state)
        self.table.set_rows(list(self.rows), lambda row_id: self._cells(frame, self.rows.get(row_id)))
        self.query_one("#sums", Lines).set_lines([cut(self._sums(frame), self.size.width)])

    def _nothing(self, state: RunState) -> str:
        if state.manifest.get("prefix_caching") is False:
            return "prefix caching is off"
        if state.attached is not None and (not self.words or no_events(state)):
            return no_blocks(state)
        return "no prefix has these words" if self.words else "nothing is published yet"

    def _sums(self, frame: Frame) -> Line:
        pool, tree = frame.state.pool, self.view.tree
        if pool is None or not tree.num_published:
            return []
        runs, size = tree.runs, pool.block_size
        dead, roomy = int(runs.never_hit.sum()), self.size.width >= 100
        if frame.state.attached is not None:
            what = f"{plural(len(runs), 'run')}, {plural(tree.num_published, 'cached block')}, from events"
            return [(what, "text"), ("   who found or reads them is not reported", "soft")]
        return [
            (plural(len(runs), "run"), "text"), (", ", "soft"), (plural(tree.num_published, "block"), "text"),
            (f" ({percent(tree.num_published, pool.num_blocks)} of the pool)" if roomy else "", "soft"),
            ("   saved ", "soft"), (f"{short(int(runs.saved.sum()) * size)} tokens", "good"),
            ("   never found ", "soft"), (f"{plural(dead, 'block')} ({percent(dead, int(runs.length.sum()))})", "warn"),
        ]  # fmt: skip

    def _cells(self, frame: Frame, row: PrefixRow | None) -> list[Cell]:
        pool, runs = frame.state.pool, self._runs
        if row is None or pool is None or runs is None:
            return []
        if row.dead:
            return self._dead_cells(frame, runs, row)
        if pool.key[int(runs.head[row.run])] != int(row.id):
            return [(f"{'  ' * row.level}  {short_key(int(row.id))}  has left", "faint")]
        cells = self._run_cells(frame, runs, row)
        if frame.state.attached is None:
            return cells
        # Events say what is cached, not who found it: 0 would be a lie.
        name = cells[0][0].removesuffix("  dead")
        return [(name, "text"), *(("n/a", "faint") if i in _OF_HITS else cell for i, cell in enumerate(cells) if i)]

    def _run_cells(self, frame: Frame, runs: Runs, row: PrefixRow) -> list[Cell]:
        pool, run = frame.state.pool, row.run
        assert pool is not None
        size, head = pool.block_size, int(runs.head[run])
        saved, readers, hits = int(runs.saved[run]), int(runs.readers[run]), int(runs.hits[run])
        dead = not saved and not readers
        mark = "  " if row.is_open is None else "▼ " if row.is_open else "▶ "
        name = f"{'  ' * row.level}{mark}{short_key(pool.key[head])}{'  dead' if dead and row.is_open is None else ''}"
        tenant = f" of {clean(pool.tenant[head])}" if pool.tenant[head] else ""
        plain = "faint" if dead else "text"
        return [
            (name, "soft" if dead else "text"),
            (short(int(runs.length[run]) * size), plain),
            (short(saved * size), "good" if saved else "faint"),
            (whole(readers), "used" if readers else "faint"),
            (short(hits), plain if hits else "faint"),
            (_last(frame, int(runs.last_use[run])), plain),
            (percent(int(runs.num_blocks[run]), pool.num_blocks), plain),
            (short(int(runs.all_length[run]) * size), plain),
            (short(int(runs.all_saved[run]) * size), "good" if runs.all_saved[run] else "faint"),
            (f"{clean(pool.publisher[head]) or 'not reported'}{tenant}", "soft"),
        ]

    def _dead_cells(self, frame: Frame, runs: Runs, row: PrefixRow) -> list[Cell]:
        pool, dead = frame.state.pool, list(row.dead)
        assert pool is not None
        tokens = short(int(runs.length[dead].sum()) * pool.block_size)
        mark = "▼ " if row.is_open else "▶ "
        return [
            (f"{'  ' * row.level}{mark}{len(dead):,} never found", "warn"),
            (tokens, "text"),
            ("0", "faint"),
            ("0", "faint"),
            ("0", "faint"),
            (_last(frame, int(runs.last_use[dead].max())), "text"),
            (percent(int(runs.num_blocks[dead].sum()), pool.num_blocks), "warn"),
            (tokens, "text"),
            ("0", "faint"),
            ("", "soft"),
        ]

    # Keys ----------------------------------------------------------------------------------------------------

    def unfold(self, row_id: str, is_open: bool) -> None:
        row = self.rows.get(row_id)
        if row is not None and row.is_open is not None and row.is_open != is_open:
            self.openness.by_hand[row_id] = is_open
        elif row is not None and not is_open:  # from a closed row up to the one above it
            above = [
                other.id
                for other in list(self.rows.values())[: list(self.rows).index(row_id)]
                if other.level < row.level
            ]
            if above:
                self.table.select(above[-1], by_hand=True)
        self.redraw()

    def action_sort(self) -> None:
        names = list(SORTS)
        self.sort = names[(names.index(self.sort) + 1) % len(names)]
        self.redraw()

    def action_filter(self) -> None:
        hint = "part of a key, of a publisher's id; tenant:acme. Empty: all. Enter takes it, Esc leaves it"
        self.app.push_screen(AskScreen("Show only prefixes with", hint, self.words), self._take_filter)

    def _take_filter(self, words: str | None) -> None:
        if words is not None:
            self.words = words
            self.redraw()

    def action_reader(self) -> None:
        readers = self.readers()
        if readers:
            chosen = self.kvtop.selected.get("request")
            after = readers.index(str(chosen)) + 1 if chosen in readers else 0
            self.kvtop.select("request", readers[after % len(readers)])
        else:
            self.notify("nobody reads this prefix now", timeout=2)

    def readers(self) -> list[str]:
        """Sequences that hold the selected run."""
        row, pool = self.rows.get(self.table.selected or ""), self.frame.state.pool if self.frame else None
        block = None if row is None or row.dead else self.view.tree.block_of.get(int(row.id))
        return [] if block is None or pool is None else list(dict.fromkeys(pool.owners[block]))

    def show(self, key: int) -> None:
        """Open the way to the run that holds ``key``, and select it."""
        way = way_to(self.view.tree, key)
        if not way:
            self.notify("this prefix is no longer in the cache", timeout=3)
            return
        self.words = ""
        self.openness.by_hand.update(dict.fromkeys(way[:-1], True))
        self.redraw()
        if way[-1] not in self.rows:  # among those never found again
            self.openness.by_hand[f"dead:{way[-2] if len(way) > 1 else ''}"] = True
            self.redraw()
        self.table.select(way[-1])

    @on(LineTable.Selected)
    def _on_selected(self, event: LineTable.Selected) -> None:
        event.stop()
        if event.by_hand and event.row_id is not None and not event.row_id.startswith("dead"):
            self.kvtop.selected.pop("prefix", None)  # the one chosen last stands last
            self.kvtop.choose("prefix", int(event.row_id))

    @on(LineTable.Opened)
    def _on_opened(self, event: LineTable.Opened) -> None:
        event.stop()
        row = self.rows.get(event.row_id)
        if row is None:
            return
        if row.dead:
            self.unfold(row.id, not row.is_open)
            return
        self.kvtop.selected.pop("prefix", None)
        self.kvtop.choose("prefix", int(row.id))
        block = self.view.tree.block_of.get(int(row.id))
        if block is None:
            self.notify("this prefix is no longer in the cache", timeout=3)
        else:
            self.kvtop.select("block", block)


def _last(frame: Frame, step: int) -> str:
    """How long ago ``step`` was; the step where its time is no longer kept."""
    passed = ago(frame.state, step)
    return f"#{step}" if passed is None else seconds(passed)
