"""The application: polls the session, folds its events, and shows frames on the active screen."""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Sequence
from typing import ClassVar, Protocol

from textual.app import App
from textual.binding import Binding

from kvtop.engine.events import Command, Event, Keyframe, Pause, Resume, RunEnded, Step
from kvtop.state.model import RunState
from kvtop.state.reduce import reduce
from kvtop.tui.frame import Frame, Sharing, has_ended
from kvtop.tui.glyphs import locale_is_utf8
from kvtop.tui.screens.dialogs import FailureScreen, HelpScreen
from kvtop.tui.screens.live import FrameScreen, LiveScreen
from kvtop.tui.screens.why import WhyScreen
from kvtop.tui.terminal import captured_stderr, check_terminal, exit_on_signals
from kvtop.tui.theme import THEME

FOLD_BUDGET_S = 0.06  # of a tick: what is left over is folded right after the next key
CTRL_C_WINDOW_S = 1.0
STOP_TIMEOUT_S = 5.0


class Session(Protocol):
    """What the application needs of a run: ``kvtop.run.session.RunSession``, or a recording played back."""

    @property
    def ended(self) -> bool: ...

    def poll(self, timeout_s: float = 0.0) -> list[Event]: ...

    def send(self, command: Command) -> None: ...

    def stop(self, timeout_s: float = 10.0) -> None: ...


class StartableSession(Session, Protocol):
    def start(self) -> None: ...


class KvtopApp(App[None]):
    """The live TUI over one session. It neither starts nor stops the session; ``return_code`` reflects the run.

    ``hz`` is how often the session is polled and the screen redrawn, if anything has changed. ``ascii`` draws with
    nothing but ASCII. ``native`` receives what native code wrote to file descriptor 2 (``captured_stderr``).
    ``signals``: SIGTERM, SIGHUP and SIGINT end the application in order.
    """

    CSS_PATH = "kvtop.tcss"
    TITLE = "kvtop"
    ENABLE_COMMAND_PALETTE = False
    HORIZONTAL_BREAKPOINTS: ClassVar = [(0, "-narrow"), (100, "-mid"), (160, "-wide")]
    VERTICAL_BREAKPOINTS: ClassVar = [(0, "-short"), (32, "-tall"), (46, "-full")]
    BINDINGS: ClassVar[list] = [
        Binding(
            "space,p", "pause", "pause", key_display="space", tooltip="(or p) pause the engine; its clock stops too"
        ),
        Binding("space,p", "resume", "resume", key_display="space", tooltip="(or p) let a paused engine go on"),
        Binding("n", "step", "step", tooltip="one engine step, while paused"),
        Binding("e", "failure", "error", tooltip="the error and traceback of a failed run"),
        Binding("question_mark,f1", "help", "help", key_display="?", tooltip="this help"),
        Binding("q", "quit", "quit", tooltip="quit (also Ctrl+C twice)"),
        Binding("ctrl+c", "interrupt", show=False, priority=True),
    ]

    def __init__(
        self,
        session: Session,
        *,
        ascii: bool = False,
        hz: float = 4.0,
        native: deque[str] | None = None,
        signals: bool = False,
    ) -> None:
        # With NO_COLOR the default is greys; this way only bold, underline and reverse are written.
        super().__init__(ansi_color=True if "NO_COLOR" in os.environ else None)
        self.session, self.ascii, self.hz = session, ascii, hz
        self.state = RunState()
        self._native: deque[str] = native if native is not None else deque(maxlen=1)
        self._pending: deque[Event] = deque()
        self._clock_base = (0, time.monotonic())  # the run's clock at the last event, and when that was
        self._sharing = Sharing()
        self._shown: tuple[object, ...] = ()
        self._end: RunEnded | None = None
        self._broken = False  # the session can no longer be read
        self._signals = signals
        self._last_ctrl_c = -CTRL_C_WINDOW_S
        self.register_theme(THEME)
        self.theme = THEME.name

    def on_mount(self) -> None:
        self.set_class(self.ascii, "-ascii")
        if self._signals:
            exit_on_signals(self)
        self.push_screen(LiveScreen())
        self.set_interval(1 / self.hz, self.tick)
        self.call_after_refresh(self.tick)

    # Frames --------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Fold what the session has, then show it if it differs from what is on the screen."""
        if not self.is_running:  # shutting down: timers still fire while the screens are taken apart
            return
        self._fold_pending()
        self._follow_clock()
        self._show()
        if self._pending:
            self.set_timer(0.01, self.tick)

    def _fold_pending(self) -> None:
        deadline = time.monotonic() + FOLD_BUDGET_S
        try:
            while not self._broken and time.monotonic() < deadline:
                if not self._pending:
                    self._pending.extend(self.session.poll(0.0))
                    if not self._pending:
                        return
                self._fold(self._pending.popleft())
        except Exception as error:  # the run is lost, the terminal and what was seen so far are not
            self._broken = True
            self._pending.clear()
            text = traceback.format_exc()
            line = f"cannot follow the run: {type(error).__name__}: {error}"
            self._fold(RunEnded(t_ns=self.state.t_ns, status="failed", error=line, traceback=text, exit_code=1))

    def _fold(self, event: Event) -> None:
        self.state = reduce(self.state, event)
        if isinstance(event, Keyframe):
            # A large pool is hundreds of thousands of objects that stay: looking through them again and again for
            # garbage would hold up a frame for a tenth of a second.
            gc.collect()
            gc.freeze()
        self._clock_base = (self.state.t_ns, time.monotonic())
        if isinstance(event, RunEnded):
            self._end = event
            if event.status == "failed":
                self.action_failure()

    def _follow_clock(self) -> None:
        """Between events of a run in real time, let its clock go on once a second: ages and rates stay true."""
        state, (t_ns, at_s) = self.state, self._clock_base
        if state.status == "running" and state.manifest.get("clock") == "real":
            now_ns = t_ns + int((time.monotonic() - at_s) * 1e9)
            if now_ns - state.t_ns >= 1_000_000_000:
                state.t_ns = now_ns

    def _show(self, force: bool = False) -> None:
        """Give a frame to the active screen. A dialog on top leaves changes collected until it is closed."""
        screen, state, native = self.screen, self.state, self._native[-1] if self._native else ""
        now = (state.version, state.status, state.t_ns, native)
        if isinstance(screen, WhyScreen):
            screen.follow(state)
        if not isinstance(screen, FrameScreen) or not screen.is_mounted or (now == self._shown and not force):
            return
        if not self._shown or self._shown[1] != state.status:
            self.refresh_bindings()
        self._shown = now
        self._sharing.update(state.pool)
        dirty = state.pool.dirty if state.pool else set()
        with self.batch_update():
            screen.show_frame(Frame(state, dirty, self._sharing, native))
        dirty.clear()

    def on_screen_resume(self) -> None:
        self._show(force=True)

    # Actions -------------------------------------------------------------------------------------------------

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Keys that do not apply are absent from the footer and do nothing."""
        match action:
            case "pause":
                return self.state.status == "running"
            case "resume" | "step":
                return self.state.status == "paused"
            case "failure":
                return self.state.status == "failed"
        return True

    def _send(self, command: Command) -> None:
        self.session.send(command)
        self.set_timer(0.03, self.tick)  # show the answer without waiting for the next regular tick

    def action_pause(self) -> None:
        self._send(Pause())

    def action_resume(self) -> None:
        self._send(Resume())

    def action_step(self) -> None:
        self._send(Step(1))

    def action_failure(self) -> None:
        if not isinstance(self.screen, FailureScreen):
            native = "\n".join(self._native)
            text = self.state.traceback + (f"\n\nstderr:\n{native}" if native else "")
            self.push_screen(FailureScreen(self.state.error, text))

    def action_help(self) -> None:
        bindings: Sequence = [*self.BINDINGS, *LiveScreen.BINDINGS]
        self.push_screen(HelpScreen([b for b in bindings if isinstance(b, Binding)]))

    async def action_quit(self) -> None:
        self.exit(return_code=self.run_exit_code())

    def action_interrupt(self) -> None:
        """Ctrl+C: the second within a second quits."""
        now = time.monotonic()
        if now - self._last_ctrl_c <= CTRL_C_WINDOW_S:
            self.exit(return_code=130)
            return
        self._last_ctrl_c = now
        self.notify("Ctrl+C again (or q) to quit", timeout=CTRL_C_WINDOW_S)

    def run_exit_code(self) -> int:
        """0, or what the run ended with: a failed run is never 0."""
        if self._end is None or not has_ended(self.state) or self._end.status != "failed":
            return 0
        return self._end.exit_code or 1


def run_app(session: StartableSession, *, ascii: bool = False, mouse: bool = True, hz: float = 4.0) -> int:
    """Start ``session``, show it until the user quits or a signal ends it, stop it; returns the exit code.

    0; 1 (or what the run says) when the run failed; 130 after Ctrl+C twice; 128 + number after a signal. Glyphs are
    ASCII when asked for or when the locale is not UTF-8. Whatever happens, the terminal is restored and the session
    stopped.

    Raises:
        UsageError: there is no terminal to draw on (nothing has been started then).
    """
    check_terminal()
    try:
        session.start()
        with captured_stderr() as native:
            app = KvtopApp(session, ascii=ascii or not locale_is_utf8(), hz=hz, native=native, signals=True)
            app.run(mouse=mouse)
    finally:
        _stop(session)
    return app.return_code or 0


def _stop(session: Session) -> None:
    """End the session; say so when it takes a while (the engine ends the step it is in)."""
    notice = threading.Timer(0.5, lambda: print("kvtop: stopping the engine ...", file=sys.stderr))
    notice.daemon = True
    notice.start()
    try:
        session.stop(STOP_TIMEOUT_S)
    finally:
        notice.cancel()
