"""Requests: who runs, who waits, and why?"""

from __future__ import annotations

import time
from collections.abc import Callable

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding
from textual.widgets import Input

from kvtop.engine.errors import UsageError
from kvtop.state.filters import EVERYTHING, Filter, grammar, parse_filter
from kvtop.state.request_rows import DONE, Row, ended_rows, live_rows
from kvtop.tui.frame import Frame
from kvtop.tui.panels.base import Panel
from kvtop.tui.request_columns import BY_KEY, COLUMNS, SORTS, cells_of, sorted_rows
from kvtop.tui.request_groups import GROUP, GROUPS, Group, grouped
from kvtop.tui.text import clean, short, whole
from kvtop.tui.widgets.line_table import Cell, LineTable
from kvtop.tui.widgets.lines import Line, cut, width_of

NAMED = 100  # cells from which a waiting row has room for whose end it waits
RESORT_S = 2.0  # at most so often does the order change under somebody's cursor


def request_of(row_id: str) -> tuple[str, bool]:
    """Which request or branch a row of the table stands for, and whether it has ended."""
    return row_id.removeprefix(DONE), row_id.startswith(DONE)


class RequestsPanel(Panel):
    """All sequences that live and those requests that ended last: ordered, filtered, only what is seen is made."""

    TITLE = "Requests"
    QUESTION = "who runs, who waits, why?"
    BINDINGS = [
        Binding("s", "sort(1)", "sort", key_display="s", tooltip="order by the next column (or click on its title)"),
        Binding("S", "reverse", show=False, key_display="S", tooltip="the other way round"),
        Binding("slash,f3", "filter", "filter", key_display="/", tooltip="show some: tenant:acme why:evicted wait>1s"),
        Binding("g", "group", "group", tooltip="together by tenant, by reason, by prefix; Enter on a group closes it"),
        Binding("h", "hide", "ended", tooltip="hide requests that have ended, or show them"),
    ]
    HELP = f"""\
A row is a sequence (branches of a request: r7, r7#1, ...): running ones,
then the queue in order of arrival, then what ended last.
age        since the request was due (ended: until then)
output     tokens so far / at most
hit        of its prompt, found in the cache at its first admission
blocks     it holds; shared: of them, held by others too
tail       slots of its last block that hold nothing
blk·s      blocks times seconds it has held them
queue      until the first step that computed a token of it
ITL        its last gap between tokens (ended: the longest); TPOT: the mean
ETA        until its token limit at the pace of its last gap
pre        how often it lost its blocks; recomputed: tokens, of that
why        of an ended one: stop (by itself), length (its token limit)
A waiting row says what it needs, what there is (fresh + idle - promised)
and, for the head of the queue, when that is enough: as soon as those named
have run to their token limit. It is an estimate; they may stop earlier.
w tells the whole life of the selected one, Enter draws it.
g puts together by tenant, by what they wait for, by first block; a group
says what it holds. Enter on its row closes and opens it.

/ filters; all terms hold: tenant:acme why:evicted wait>1s hit<10
A bare word is part of an id; ! negates a word; * stands for any letters.
{grammar()}"""

    def __init__(self) -> None:
        super().__init__()
        self.filter: Filter = EVERYTHING
        self.sort, self.is_reversed, self.hides_ended = "", False, False
        self.group = ""  # of ``GROUPS``; "": none
        self._groups: dict[str, Group] = {}  # by the id of its row
        self._folded: set[str] = set()  # of those
        self._error = ""
        self._order: list[str] = []  # ids as last sorted
        self._sorted_s = 0.0
        self._is_due = False  # a timer that puts rows in order is running
        self._num_rows = (0, 0)  # shown, there

    def compose_body(self) -> ComposeResult:
        yield Input(id="filter", placeholder="tenant:acme why:evicted wait>1s hit<10 state:waiting", compact=True)
        yield LineTable([c.column for c in COLUMNS], id="requests", opens="life")

    @property
    def table(self) -> LineTable:
        return self.query_one(LineTable)

    def heading(self, frame: Frame) -> tuple[str, str]:
        return self.TITLE, "" if self._picked() else self.QUESTION

    def note(self, frame: Frame) -> Line:
        """How many there are, shortened before the question goes; with a filter or an order that, in its place."""
        room = max(0, self.size.width - len(self.TITLE) - 10)
        picked = self._picked()
        counts = _counts(frame)
        if not picked:
            return counts if width_of(counts) + len(self.QUESTION) <= room else _counts(frame, short, "done")
        return [*picked, *counts] if width_of(picked) + width_of(counts) <= room else cut(picked, room)

    def _picked(self) -> Line:
        """What is shown of what there is, and in which order; what is wrong with the filter."""
        if self._error:
            return [(f"{clean(self._error)}  ", "bad")]
        line: Line = []
        shown, there = self._num_rows
        if self.filter.text:
            line += [("filter ", "soft"), (clean(self.filter.text), "text"), (f" {shown:,} of {there:,}  ", "strong")]
        if self.sort or self.is_reversed:
            direction = " reversed" if self.is_reversed else ""
            line += [("order ", "soft"), (f"{self.sort or 'queue'}{direction}  ", "text")]
        if self.group:
            line += [("group ", "soft"), (f"{self.group}  ", "text")]
        if self.hides_ended:
            line += [("without ended ones  ", "soft")]
        return line

    # Rows ----------------------------------------------------------------------------------------------------

    def show_frame(self, frame: Frame) -> None:
        state = frame.state
        rows: list[Row] = list(live_rows(state))
        if not self.hides_ended:
            rows += ended_rows(state)
        kept = self.filter.keep(rows)
        self._num_rows = (len(kept), len(rows))
        by_id = {row.id: row for row in kept}
        ids = self._ordered(kept, by_id)
        self.table.empty_text = self._nothing(frame, len(rows))
        self.table.mark_columns(self._marks())
        roomy = self.table.is_roomy
        self._groups = {}
        if self.group:
            self._groups = {group.id: group for group in grouped((by_id[row_id] for row_id in ids), self.group)}
            ids = [row_id for group in self._groups.values() for row_id in (group.id, *self._inside(group))]
        self.table.set_rows(ids, lambda row_id: self._cells(row_id, by_id, roomy))
        self._show_title()  # how many pass the filter is known now

    def _ordered(self, kept: list[Row], by_id: dict[str, Row]) -> list[str]:
        """Ids in order. While somebody is in the table, rows that are there change places every RESORT_S at most."""
        now_s = time.monotonic()
        if self.sort and self.table.has_focus and self._order and now_s - self._sorted_s < RESORT_S:
            if not self._is_due:  # there may be no other frame: the engine may be paused by then
                self._is_due = True
                self.set_timer(RESORT_S, self._resort)
            known = set(self._order)
            ids = [row_id for row_id in self._order if row_id in by_id]
            ids += [row.id for row in kept if row.id not in known]
        else:
            ids = [row.id for row in sorted_rows(kept, self.sort, self.is_reversed)]
            self._sorted_s = now_s
        self._order = ids
        return ids

    def _resort(self) -> None:
        self._is_due = False
        if self.screen.is_current:
            self.redraw()

    def _inside(self, group: Group) -> list[str]:
        """The rows of a group that are shown."""
        return [] if group.id in self._folded else [row.id for row in group.rows]

    def _cells(self, row_id: str, by_id: dict[str, Row], roomy: bool) -> list[Cell]:
        if group := self._groups.get(row_id):
            return group.title(row_id not in self._folded)
        names = self.size.width >= NAMED
        return cells_of(by_id[row_id], roomy, names) if row_id in by_id else []

    def _nothing(self, frame: Frame, num_rows: int) -> str:
        if num_rows:
            return "no request is like that"
        if frame.state.attached is not None:
            return "not reported: servers do not tell single requests"
        return "no requests yet" if frame.state.status in ("starting", "running") else "no requests"

    def _marks(self) -> dict[int, str]:
        if not self.sort:
            return {}
        column = BY_KEY[self.sort]
        return {COLUMNS.index(column): "▲" if column.rising != self.is_reversed else "▼"}

    def _changed(self) -> None:
        self._order = []
        self.redraw()

    # Keys ----------------------------------------------------------------------------------------------------

    def action_sort(self, direction: int) -> None:
        """The next column that can be seen."""
        shown = {COLUMNS[i].key for i, _, _ in self.table.shown()}
        keys = [key for key in SORTS if not key or key in shown]
        place = keys.index(self.sort) if self.sort in keys else 0
        self.sort, self.is_reversed = keys[(place + direction) % len(keys)], False
        self._changed()

    def action_reverse(self) -> None:
        self.is_reversed = not self.is_reversed
        self._changed()

    def action_group(self) -> None:
        """None, then what ``GROUPS`` has, and around."""
        names = ["", *GROUPS]
        self.group, self._folded = names[(names.index(self.group) + 1) % len(names)], set()
        self._changed()

    def toggle_group(self) -> bool:
        """Close or open the group whose row is selected. False: it is no group's."""
        row_id = self.table.selected
        if row_id not in self._groups:
            return False
        self._folded ^= {row_id}
        self.redraw()
        return True

    def action_hide(self) -> None:
        self.hides_ended = not self.hides_ended
        self._changed()

    def action_filter(self) -> None:
        box = self.query_one(Input)
        box.display, box.value = True, self.filter.text
        box.focus()

    def set_filter(self, text: str) -> None:
        """Show what ``text`` asks for; what cannot be read is told, and the filter stays as it was."""
        try:
            self.filter, self._error = parse_filter(text), ""
        except UsageError as error:
            self._error = str(error)
        self._changed()

    @on(Input.Changed)
    def _on_typed(self, event: Input.Changed) -> None:
        event.stop()
        if event.input.display:
            self.set_filter(event.value)

    @on(Input.Submitted)
    def _on_entered(self, event: Input.Submitted) -> None:
        event.stop()
        if not self._error:
            self._close_box()

    def leave_filter(self) -> bool:
        """Esc: out of the box, then without a filter. False: there is neither."""
        if self.query_one(Input).display:
            self._error = ""
            self._close_box()
        elif self.filter.tests:
            self.set_filter("")
        else:
            return False
        return True

    def _close_box(self) -> None:
        self.query_one(Input).display = False
        self.table.focus()
        self.redraw()

    @on(LineTable.HeaderClicked)
    def _on_header(self, event: LineTable.HeaderClicked) -> None:
        event.stop()
        key = COLUMNS[event.column].key
        if BY_KEY[key].order is None:
            return
        self.is_reversed = self.sort == key and not self.is_reversed
        self.sort = key
        self._changed()

    # Selection -----------------------------------------------------------------------------------------------

    def select(self, name: str) -> None:
        """Select the live row of ``name``, or the one of a finished request; a filter that hides it goes."""
        self._open_group_of(name)
        for _ in range(2):
            row_id = name if name in self.table.ids else f"{DONE}{name}"
            if row_id in self.table.ids or not self.filter.tests:
                self.table.select(row_id)
                return
            self.set_filter("")

    def _open_group_of(self, name: str) -> None:
        closed = {group.id for group in self._groups.values() if any(row.name == name for row in group.rows)}
        if closed & self._folded:
            self._folded -= closed
            self.redraw()

    def selected_request(self) -> tuple[str, bool] | None:
        """Which request or branch is selected, and whether it has ended."""
        row_id = self.table.selected
        return None if row_id is None or row_id.startswith(GROUP) else request_of(row_id)

    @on(LineTable.Selected)
    def _on_selected(self, event: LineTable.Selected) -> None:
        if event.row_id is not None and not event.row_id.startswith(GROUP):
            self.kvtop.choose("request", request_of(event.row_id)[0])


def _counts(frame: Frame, number: Callable[[int], str] = whole, ended: str = "finished") -> Line:
    sequences, state = frame.state.sequences, frame.state
    running = sum(1 for seq in sequences.values() if seq.state == "running")
    waiting = len(sequences) - running
    line: Line = [(f"{number(running)} running", "good" if running else "soft"), ("  ", "")]
    line += [(f"{number(waiting)} waiting", "warn" if waiting else "soft"), ("  ", "")]
    line += [(f"{number(state.num_finished)} {ended}", "soft")]
    return [*line, (f"  {number(state.num_rejected)} rejected", "bad")] if state.num_rejected else line
