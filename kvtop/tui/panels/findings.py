"""Findings: what is wrong, if something is?"""

from __future__ import annotations

import time

from textual import on
from textual.app import ComposeResult

from kvtop.state.findings import MOST, Finding, findings, rules
from kvtop.tui.frame import Frame
from kvtop.tui.panels.base import Panel
from kvtop.tui.text import clean
from kvtop.tui.widgets.line_table import Cell, Column, LineTable
from kvtop.tui.widgets.lines import Line

EVERY_S = 1.0  # at most so often: the rules look through a minute of steps
_COLUMNS = [Column("", 1), Column("finding", 0)]


class FindingsPanel(Panel):
    """At most three lines, each from a rule with a name, each with the evidence one key away."""

    TITLE = "Findings"
    QUESTION = "what is wrong?"
    HELP = "\n".join(
        [
            f"At most {MOST}, the weightiest first; none where nothing is wrong. Enter leads to the",
            "evidence. The rules:",
        ]
        + [f"{name}\n    {' '.join(meaning.split())}" for name, meaning in rules()]
    )

    def __init__(self) -> None:
        super().__init__()
        self._found: dict[str, Finding] = {}
        self._made: tuple[int, int] = (0, -1)  # id and version of the state they were made from
        self._next_s = 0.0

    def compose_body(self) -> ComposeResult:
        yield LineTable(_COLUMNS, opens="evidence", header=False)

    def note(self, frame: Frame) -> Line:
        return []

    def show_frame(self, frame: Frame) -> None:
        state, now_s = frame.state, time.monotonic()
        made = (id(state), state.version)
        if made != self._made and (now_s >= self._next_s or made[0] != self._made[0]):
            self._found = {finding.rule: finding for finding in findings(state)}
            self._made, self._next_s = made, now_s + EVERY_S
        table = self.query_one(LineTable)
        table.empty_text = "nothing found" if state.last_step is not None else "nothing to judge yet"
        table.set_rows(list(self._found), lambda rule: _cells(self._found[rule]))

    @on(LineTable.Opened)
    def _on_opened(self, event: LineTable.Opened) -> None:
        event.stop()
        finding = self._found.get(event.row_id)
        if finding is not None and finding.lead is not None:
            self.kvtop.select(*finding.lead)


def _cells(finding: Finding) -> list[Cell]:
    return [("!", "warn"), (f"{clean(finding.text)}  ({finding.rule})", "text")]
