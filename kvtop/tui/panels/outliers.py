"""Outliers: which ones were slowest, and why?"""

from __future__ import annotations

from textual import on
from textual.app import ComposeResult

from kvtop.state.slow import Analysis, Outlier
from kvtop.tui.frame import Frame
from kvtop.tui.panels.anatomy import WORDS
from kvtop.tui.panels.base import Panel
from kvtop.tui.text import clean, duration
from kvtop.tui.widgets.line_table import Cell, Column, LineTable

_COLUMNS = [
    Column("who", 14),
    Column("took", 8, "right"),
    Column("mostly", 16),
    Column("", 0),
]


class OutliersPanel(Panel):
    """The slowest values of the window; Enter leads to the request, or of a gap to the step that ended it."""

    TITLE = "Outliers"
    QUESTION = "which were slowest, and why?"
    HELP = """\
The slowest values of the last 60 s. Mostly: the part that took most of its
time, with its share of it; of a gap its one cause, and the step that ended
it. Enter leads to the request; of a gap, every screen goes to that step."""

    analysis: Analysis | None = None

    def compose_body(self) -> ComposeResult:
        yield LineTable(_COLUMNS, id="outliers", opens="evidence")

    def show_frame(self, frame: Frame) -> None:
        found = self.analysis.outliers if self.analysis is not None else []
        self._rows = {f"{one.lead[0]} {one.lead[1]} {one.name} {one.value_ns}": one for one in found}
        table = self.query_one(LineTable)
        attached = frame.state.attached is not None
        table.empty_text = "not reported: servers do not tell single ones" if attached else "nothing in the last 60 s"
        table.set_rows(list(self._rows), lambda row_id: _cells(self._rows.get(row_id)))

    @on(LineTable.Opened)
    def _on_opened(self, event: LineTable.Opened) -> None:
        event.stop()
        one = self._rows.get(event.row_id)
        if one is not None:
            self.kvtop.select(*one.lead)


def _cells(one: Outlier | None) -> list[Cell]:
    if one is None:
        return []
    cause = WORDS.get(one.cause, "not known")
    style = "bad" if one.cause == "preempted" else "text"
    return [(clean(one.name), "strong"), (duration(one.value_ns), "text"), (cause, style), (clean(one.text), "soft")]
