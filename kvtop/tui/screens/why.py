"""Why: the life of one request, told over the live screen and kept up to date while it goes on."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import ClassVar

from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.widgets import Static

from kvtop.state.model import RunState
from kvtop.state.request_logs import RequestLog
from kvtop.tui.frame import has_ended, is_virtual
from kvtop.tui.glyphs import to_ascii
from kvtop.tui.screens.dialogs import TextDialog
from kvtop.tui.text import clean, fit, whole
from kvtop.why.explain import explain
from kvtop.why.live import facts_now, gaps_of
from kvtop.why.text import render_lines

_NAME_CELLS = 24  # of a name in the title, and in front of a line
_SHARE = 10  # telling a life takes at most one part in so many of the time


class WhyScreen(TextDialog):
    """What ``kvtop why`` would tell of the request of ``log``, or of its branch ``name``.

    Of a request that lives the end is shown, and followed as long as the reader does not scroll away from it.
    """

    BINDINGS: ClassVar[list] = [Binding("w,q", "dismiss", show=False)]
    KEYS = "arrows PgUp PgDn  scroll    Esc  close"

    def __init__(self, state: RunState, log: RequestLog, name: str) -> None:
        super().__init__("", "", wide=True)
        self._state, self._log, self._request_name = state, log, name
        self._told: tuple[object, ...] = ()  # what the text on the screen was made from
        self._next_s = 0.0  # no earlier than this it is made again

    def follow(self, state: RunState) -> None:
        """Tell what has changed, at the screen's rate at most."""
        if self.is_mounted and self.query(VerticalScroll) and time.monotonic() >= self._next_s:
            self._state = state
            self._tell()

    def on_resize(self) -> None:
        self.call_after_refresh(self._tell)

    def _tell(self) -> None:
        state, log = self._state, self._newest_log()
        width = self.query_one(VerticalScroll).content_size.width - 1  # one for the scroll bar
        # After its end only those can change it who miss what it evicted.
        now = (log, log.num_changes, width, None if log.end is not None else (state.step, state.status))
        if now == self._told or width <= 0:
            return
        self._told, started_s = now, time.monotonic()
        self._show(_title(state, log, self._request_name), _text(state, log, self._request_name, width))
        ended_s = time.monotonic()
        self._next_s = ended_s + max(1 / getattr(self.app, "hz", 4.0), _SHARE * (ended_s - started_s))

    def _newest_log(self) -> RequestLog:
        """After dropped events a request that still lives has a new log."""
        log, logs = self._log, self._state.logs
        if log.end is None and log.is_lost:
            self._log = logs.live.get(log.request_id) or logs.ended.get(log.request_id) or log
        return self._log

    def _show(self, title: str, text: str) -> None:
        show = to_ascii if getattr(self.app, "ascii", False) else str
        scroll = self.query_one(VerticalScroll)
        follows = scroll.is_vertical_scroll_end and self._log.end is None
        self.query_one(".dialog-title", Static).update(show(title))
        scroll.query_one(Static).update(show(text))
        if follows:
            self.call_after_refresh(scroll.scroll_end, animate=False)


def _title(state: RunState, log: RequestLog, name: str) -> str:
    seq = state.sequences.get(name) if log.end is None else None
    if seq is not None:
        now = f"{clean(seq.state)}, step {whole(state.step)}"
    else:
        now = "ended" if log.end is not None or not has_ended(state) else "cut off by the end of the run"
    clock = " (simulated time)" if is_virtual(state) else ""
    return f"request {fit(clean(name), _NAME_CELLS).rstrip()} — {now}{clock}"


def _text(state: RunState, log: RequestLog, name: str, width: int) -> str:
    lines = [
        replace(line, text=clean(line.text), seq_id=fit(clean(line.seq_id), _NAME_CELLS).rstrip())
        for line in explain(facts_now(state, log, name))
    ]
    notes = gaps_of(state, log)
    return "\n".join([render_lines(lines, width), *([""] if notes else []), *notes])
