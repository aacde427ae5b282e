"""Findings: what is wrong, if something is?"""

from __future__ import annotations

import time
from textwrap import fill, indent

from textual import on
from textual.app import ComposeResult

from kvtop.state.findings import MOST, Finding, findings, rules
from kvtop.tui.frame import Frame
from kvtop.tui.panels.base import Panel
from kvtop.tui.text import clean
from kvtop.tui.widgets.line_table import Cell, Column, LineTable
from kvtop.tui.widgets.lines import Line

_SHARE = 20  # the rules, which look through a minute of steps, take at most one part in so many of the time
_COLUMNS = [Column("", 1), Column("finding", 0)]


class FindingsPanel(Panel):
    """At most three lines, each from a rule with a name, each with the evidence one key away."""

    TITLE = "Findings"
    QUESTION = "what is wrong?"
    HELP = "\n".join(
        [
            f"At most {MOST}, the weightiest first; none where nothing is wrong. Enter",
            "leads to the evidence. The rules:",
        ]
        + [f"{name}\n{indent(fill(' '.join(meaning.split()), 66), '    ')}" for name, meaning in rules()]
    )

    def __init__(self) -> None:
        super().__init__()
        self._found: dict[str, Finding] = {}
        self._made: tuple[int, ...] = ()  # id and version of the state they were made from, and its second
        self._next_s = 0.0

    def compose_body(self) -> ComposeResult:
        yield LineTable(_COLUMNS, opens="evidence", header=False)

    def note(self, frame: Frame) -> Line:
        return []

    def show_frame(self, frame: Frame) -> None:
        state, now_s = frame.state, time.monotonic()
        made = (id(state), state.version, state.t_ns // 1_000_000_000)
        if made != self._made and now_s >= self._next_s:
            self._found = {finding.rule: finding for finding in findings(state)}
            self._made, taken_s = made, time.monotonic() - now_s
            self._next_s = now_s + _SHARE * taken_s
        elif made != self._made:  # there may be no further frame to do it with
            self.set_timer(self._next_s - now_s + 0.01, self.redraw)
        table = self.query_one(LineTable)
        judged = state.last_step is not None or (state.attached is not None and bool(state.attached.rows))
        table.empty_text = "nothing found" if judged else "nothing to judge yet"
        room = self.size.width - 4
        table.set_rows(list(self._found), lambda rule: _cells(self._found[rule], room))

    @on(LineTable.Opened)
    def _on_opened(self, event: LineTable.Opened) -> None:
        event.stop()
        finding = self._found.get(event.row_id)
        if finding is not None and finding.lead is not None:
            self.kvtop.select(*finding.lead)


def _cells(finding: Finding, room: int) -> list[Cell]:
    """The rule's name stands behind the finding where there is room for it."""
    text, name = clean(finding.text), f"  ({finding.rule})"
    return [("!", "warn"), (text + name if len(text) + len(name) <= room else text, "text")]
