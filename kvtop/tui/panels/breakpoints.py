"""Breakpoints: where does the engine stop?"""

from __future__ import annotations

from textual.app import ComposeResult
from textual.binding import Binding

from kvtop.tui.frame import Frame
from kvtop.tui.panels.base import Panel
from kvtop.tui.text import clean, plural
from kvtop.tui.widgets.line_table import Column, LineTable


class BreakpointsPanel(Panel):
    """What pauses the engine, and how often it has. b adds one, Delete takes the selected one away."""

    TITLE = "Breakpoints"
    QUESTION = "where to stop?"
    HELP = """\
The engine pauses right after the step in which one is met, its clock
with it. b adds one, from any screen: it suggests the block or request
under the cursor; Delete takes the selected one away.
They are preempt, evict, admit, finish, reject, abort, copy, resume;
request ID, block N; fresh<64 (or > or =; idle, used, free, waiting,
running, prefill, decode, step).
A level stops the run when it is crossed, not as long as it holds.
While paused: n is one step, N runs to the next preemption, eviction or
refusal, p goes on. A recording has no engine to stop."""
    BINDINGS = [Binding("delete,backspace", "remove", "remove", key_display="Del", tooltip="take a breakpoint away")]

    def compose_body(self) -> ComposeResult:
        yield LineTable([Column("stop at", 24), Column("times", 0)])

    def show_frame(self, frame: Frame) -> None:
        met = [moment.text for moment in frame.timeline.moments.all if moment.kind == "break"]
        table = self.query_one(LineTable)
        texts = list(self.kvtop.breakpoints)
        where = "a recording" if frame.is_replay else "an attached server"
        has_engine = not frame.is_replay and frame.state.attached is None
        table.empty_text = "none: b adds one" if has_engine else f"{where} has no engine to stop"
        table.set_rows(
            texts,
            lambda text: [(clean(text), "text"), (plural(sum(t.startswith(f"{text} (") for t in met), "time"), "soft")],
        )

    def action_remove(self) -> None:
        selected = self.query_one(LineTable).selected
        if selected is not None:
            self.kvtop.set_breakpoints([text for text in self.kvtop.breakpoints if text != selected])
            self.redraw()
