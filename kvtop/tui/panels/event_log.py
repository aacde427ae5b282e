"""Events: what was decided, when, and why?"""

from __future__ import annotations

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding

from kvtop.state.event_log import KINDS, LogLine
from kvtop.tui.frame import Frame
from kvtop.tui.panels.base import Panel
from kvtop.tui.screens.ask import AskScreen
from kvtop.tui.text import clean, plural
from kvtop.tui.widgets.line_table import Cell, Column, LineTable
from kvtop.tui.widgets.lines import Line

MOST = 5_000  # lines in the table
_COLUMNS = [
    Column("time", 11, "right"),
    Column("step", 8, "right"),
    Column("kind", 8),
    Column("what", 0),
]
_STYLES = {
    "PREEMPT": "bad", "EVICT": "warn", "MISS": "soft", "REJECT": "bad", "GAP": "bad", "STALL": "bad", "WARN": "warn",
    "CONFIG": "good", "PAUSE": "focus", "FINISH": "faint",
}  # fmt: skip


class EventLogPanel(Panel):
    """The decision log in words, as it goes on; a filter; Enter takes every screen to that step."""

    TITLE = "Events"
    QUESTION = "what was decided, and why?"
    HELP = """\
The decision log, newest last, without what happens to every token.
/ filters: words that must all be in a line; kind:evict, request:r7,
step>100 narrow it down; a word with - in front must not be in it.
F follows the newest line; going up stops that. Enter takes every
screen to that step. What is after the cursor in time is left out.
""" + "\n".join(f"{kind:<8} {meaning}" for kind, meaning in KINDS.items())
    BINDINGS = [
        Binding("slash,f3", "filter", "filter", key_display="/", tooltip="show only lines with these words"),
        Binding("F", "follow", "follow", tooltip="stay at the newest line"),
        Binding("r", "request", "request", tooltip="the request that the selected line is about"),
    ]

    def __init__(self) -> None:
        super().__init__()
        self.words = ""
        self.follows = True
        self._made: tuple[object, ...] = ()
        self._shown: dict[str, LogLine] = {}

    def compose_body(self) -> ComposeResult:
        yield LineTable(_COLUMNS, opens="step")

    @property
    def table(self) -> LineTable:
        return self.query_one(LineTable)

    def note(self, frame: Frame) -> Line:
        what: Line = [(f"filter {clean(self.words)}  ", "focus")] if self.words else []
        return [*what, (plural(len(self._shown), "line"), "soft"), ("  follows" if self.follows else "", "good")]

    def show_frame(self, frame: Frame) -> None:
        line = frame.timeline
        made = (line.log.version, self.words, None if line.at_live else frame.state.step)
        if made != self._made:
            self._made = made
            last = None if line.at_live else frame.state.step
            self._shown = {str(found.number): found for found in self._found(frame, last)}
            nothing = "nothing has been decided yet" if frame.state.attached is None else "nothing of note so far"
            self.table.empty_text = "no line has these words" if self.words else nothing
            self.table.set_rows(list(self._shown), lambda row: _cells(self._shown[row]))
            if self.follows and self._shown:
                self.table.select(next(reversed(self._shown)))
        self._show_title()

    def _found(self, frame: Frame, last_step: int | None) -> list[LogLine]:
        fits = Filter(self.words)
        found: list[LogLine] = []
        for line in reversed(frame.timeline.log.lines):
            if (last_step is None or line.step <= last_step) and fits(line):
                found.append(line)
                if len(found) == MOST:
                    break
        return found[::-1]

    @on(LineTable.Selected)
    def _on_selected(self, event: LineTable.Selected) -> None:
        event.stop()
        if event.by_hand:
            self.follows = event.row_id == next(reversed(self._shown), None)
            self._show_title()

    @on(LineTable.Opened)
    def _on_opened(self, event: LineTable.Opened) -> None:
        event.stop()
        if event.row_id in self._shown:
            self.kvtop.select("step", self._shown[event.row_id].step)

    def action_filter(self) -> None:
        hint = "words; kind:evict request:r7 step>100 -word. Empty: all. Enter takes it, Esc leaves it"
        self.app.push_screen(AskScreen("Show only lines with", hint, self.words), self._take_filter)

    def _take_filter(self, words: str | None) -> None:
        if words is not None:
            self.words = words
            self.redraw()

    def action_follow(self) -> None:
        self.follows = not self.follows
        self._made = ()
        self.redraw()

    def told(self, frame: Frame) -> tuple[str, bool] | None:
        """The request of the selected line, and whether its log is that of one that ended."""
        line = self._shown.get(self.table.selected or "")
        log = frame.state.logs.find(line.who) if line is not None and line.who else None
        return None if line is None or log is None else (line.who, log.end is not None)

    def action_request(self) -> None:
        line = self._shown.get(self.table.selected or "")
        if line is not None and line.who:
            self.kvtop.select("request", line.who)


class Filter:
    """Whether a line has all of ``words``. Unknown keys are words like any other."""

    def __init__(self, words: str) -> None:
        self._words = words.lower().split()

    def __call__(self, line: LogLine) -> bool:
        return all(_has(line, word) for word in self._words)


def _has(line: LogLine, word: str) -> bool:
    if word.startswith("-") and len(word) > 1:
        return not _has(line, word[1:])
    key, sign, value = word.partition(":")
    if sign and key == "kind":
        return line.kind.lower().startswith(value)
    if sign and key in ("request", "id"):
        return line.who.lower() == value
    for mark in "<>=":
        name, sign, number = word.partition(mark)
        if sign and name == "step" and number.isdigit():
            return {"<": line.step < int(number), ">": line.step > int(number), "=": line.step == int(number)}[mark]
    return word in line.text.lower() or word in line.kind.lower()


def _cells(line: LogLine) -> list[Cell]:
    seconds = line.t_ns // 1_000_000
    when = f"{seconds // 60_000}:{seconds // 1000 % 60:02d}.{seconds % 1000:03d}"
    kind = (line.kind, _STYLES.get(line.kind, "text"))
    return [(when, "soft"), (f"{line.step:,}", "soft"), kind, (clean(line.text), "text")]
