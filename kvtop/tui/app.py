"""The application: one session, one time line, and the screens that look at it."""

from __future__ import annotations

import gc
import time
from collections import deque
from typing import TYPE_CHECKING, ClassVar

from textual import events
from textual.binding import Binding
from textual.screen import Screen

from kvtop.engine.errors import KvtopError
from kvtop.engine.events import Command, Pause, Resume, RunUntil, SetBreakpoints, Step
from kvtop.run.breakpoints import FORMS as BREAKPOINT_FORMS
from kvtop.run.breakpoints import parse_breakpoint
from kvtop.state.model import RunState
from kvtop.state.ring import Ring
from kvtop.state.timeline import Timeline
from kvtop.tui.ahead import Ahead
from kvtop.tui.commands import KvtopCommands, ask, change
from kvtop.tui.device_watch import DeviceWatch
from kvtop.tui.feed import FOLD_BUDGET_S, Feed, Session
from kvtop.tui.frame import Frame, Sharing, has_ended
from kvtop.tui.pace import ATTENDED_S, Pace, shares_cores
from kvtop.tui.screens import SCREENS, ScreenEntry, entry_for, entry_named
from kvtop.tui.screens.base import PanelScreen
from kvtop.tui.screens.dialogs import FailureScreen, HelpScreen, TextDialog
from kvtop.tui.screens.frame_screen import FrameScreen
from kvtop.tui.styled_app import StyledApp
from kvtop.tui.suspend import suspend_on_signals
from kvtop.tui.terminal import exit_on_signals
from kvtop.tui.theme import DEFAULT, PALETTES
from kvtop.tui.widgets.lines import DrawnWidget

if TYPE_CHECKING:
    from kvtop.tui.lanes import Lanes

CTRL_C_WINDOW_S = 1.0
# While the run is ahead of what has been folded, folding is done in slices with rests between. A key comes first: a
# screen that opens takes dozens of turns of the event loop, and each of them would wait for a slice.
SLICE_S, REST_S = FOLD_BUDGET_S, 0.01
KEY_SLICE_S, KEY_REST_S = 0.01, 0.03
KEY_WINDOW_S = 0.4
LONGEST_TICK_S = 0.5  # what a suspended process misses is not made up for
NEXT_EVENT = ("preempt", "evict", "reject")
_SCREENS = Binding.Group("screens", compact=True)


class KvtopApp(StyledApp):
    """The TUI over one session. It neither starts nor stops the session; ``return_code`` reflects the run.

    ``hz`` is how often the session is polled and the screen redrawn, if anything has changed. ``ascii`` draws with
    nothing but ASCII. ``native`` receives what native code wrote to file descriptor 2 (``captured_stderr``).
    ``signals``: SIGTERM, SIGHUP and SIGINT end the application in order. ``replay``: the session is a recording; all
    of it is kept, and it is played from its start, ``speed`` seconds a second (0: not played).
    """

    CSS_PATH = "kvtop.tcss"
    TITLE = "kvtop"
    COMMANDS = {KvtopCommands}
    COMMAND_PALETTE_BINDING = "ctrl+p"
    HORIZONTAL_BREAKPOINTS: ClassVar = [(0, "-narrow"), (100, "-mid"), (160, "-wide")]
    VERTICAL_BREAKPOINTS: ClassVar = [(0, "-short"), (32, "-tall"), (46, "-full")]
    BINDINGS: ClassVar[list] = [
        *(
            Binding(entry.key, f"go({entry.name!r})", entry.name, group=_SCREENS, tooltip=entry.name)
            for entry in SCREENS
        ),
        Binding("p", "pause", "pause", tooltip="pause the engine; its clock stops too"),
        Binding("p", "resume", "resume", tooltip="let a paused engine go on"),
        Binding("n", "step", "next step", tooltip="one engine step, while paused"),
        Binding("N", "until", "next event", tooltip="run to the next preemption, eviction or refusal"),
        Binding("b", "breakpoint", show=False, tooltip="have the engine stop somewhere: preempt, request r7, fresh<64"),
        Binding("t", "theme", show=False, tooltip="the next theme: dark, light, okabe-ito, ansi, mono"),
        Binding("x", "export", show=False, tooltip="what is shown as a file: .svg .txt .json .csv"),
        Binding("E", "failure", "error", tooltip="the error and traceback of a failed run"),
        Binding("colon", "command_palette", show=False, key_display=":", tooltip="every action by name (or Ctrl+P)"),
        Binding("question_mark,f1", "help", "help", key_display="?", tooltip="help on this screen"),
        Binding("q,f10", "quit", "quit", tooltip="quit (also Ctrl+C twice)"),
        Binding("ctrl+c", "interrupt", show=False, priority=True),
        Binding("ctrl+z", "suspend_process", show=False, tooltip="to the shell; fg comes back. The engine waits"),
    ]

    def __init__(
        self,
        session: Session,
        *,
        ascii: bool = False,
        hz: float = 4.0,
        native: deque[str] | None = None,
        signals: bool = False,
        replay: bool = False,
        speed: float = 1.0,
        theme: str = DEFAULT,
    ) -> None:
        super().__init__(theme)
        self.session, self.ascii, self.hz, self.is_replay = session, ascii, hz, replay
        self.timeline = Timeline(Ring(None) if replay else None)
        self.feed = Feed(session, self.timeline)
        self.lanes: Lanes | None = None  # several runs side by side (``kvtop.tui.compare_app``)
        self.devices = DeviceWatch(lambda: getattr(session, "pid", None))
        self.breakpoints: list[str] = []
        self.selected: dict[str, str | int] = {}  # kind of thing (request, block, prefix) -> which one was chosen last
        self._native: deque[str] = native if native is not None else deque(maxlen=1)
        self._sharing, self.pace = Sharing(), Pace()
        self._shown: tuple[object, ...] = ()
        self._shown_on: Screen | None = None  # who was given the last frame
        self._screens: dict[str, FrameScreen] = {}
        self._way: list[tuple[str, int | None]] = []  # screens left by a lead, and the step looked at (None: live)
        self._last_ctrl_c = -CTRL_C_WINDOW_S
        self._signals, self._told_end = signals, False
        self._start_speed: float | None = speed if replay else None  # until the first step is there to start from
        self._ticked_s = time.monotonic()
        self._input_s = -KEY_WINDOW_S  # when a key or the mouse was pressed last
        self._catching_up = False  # a timer that folds the next slice is running

    def on_mount(self) -> None:
        self.set_class(self.ascii, "-ascii")
        if self._signals:
            exit_on_signals(self)
            suspend_on_signals(self)
        self.theme_changed_signal.subscribe(self, lambda _: self._restyle())
        self.push_screen(self.screen_of(SCREENS[0]))
        self.set_interval(1 / self.hz, self.tick)
        self.call_after_refresh(self.tick)
        self.call_after_refresh(gc.enable)  # ``rarely_searched`` has turned it off until now
        self.ahead = Ahead(self)

    def _restyle(self) -> None:
        """Widgets that draw their own rows keep what they have drawn: of another theme it is no longer right."""
        for screen in {*self.screen_stack, *self._screens.values()}:
            for widget in screen.query(DrawnWidget):
                widget.notify_style_update()
                widget.refresh()

    def on_unmount(self) -> None:
        self.timeline.ring.close()
        self.devices.stop()

    @property
    def state(self) -> RunState:
        """The run as it is now, wherever the cursor is."""
        return self.timeline.live

    # Frames --------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Fold what the session has, then show it if it differs from what is on the screen."""
        if not self.is_running:  # shutting down: timers still fire while the screens are taken apart
            return
        self._fold_slice()
        self.feed.follow_clock()
        self._play()
        self.pace.yields = shares_cores(self.session, self.state) and time.monotonic() - self._input_s >= ATTENDED_S
        if self.pace.is_due:
            self._show()
        self._tell_end()

    def _fold_slice(self) -> None:
        """Fold for a while; what is left is folded between ticks, without drawing until all of it is."""
        feed = self.lanes or self.feed
        key_first = self._has_priority_input
        feed.fold_pending(KEY_SLICE_S if key_first else SLICE_S)
        if feed.behind and not self._catching_up:
            self._catching_up = True
            self.set_timer(KEY_REST_S if key_first else REST_S, self._catch_up)

    def _catch_up(self) -> None:
        self._catching_up = False
        if not self.is_running:
            return
        self._fold_slice()
        if not self._catching_up and self.pace.is_due:
            self._show()
            self._tell_end()

    @property
    def _has_priority_input(self) -> bool:
        """Somebody has just pressed something, or waits for a screen that has not been drawn yet."""
        opening = isinstance(self.screen, FrameScreen) and self.screen is not self._shown_on
        return opening or time.monotonic() - self._input_s < KEY_WINDOW_S

    @property
    def is_at_rest(self) -> bool:
        """Nobody waits for anything: there is time for what is not needed yet."""
        return not self._has_priority_input and not (self.lanes or self.feed).behind

    async def on_event(self, event: events.Event) -> None:
        if isinstance(event, (events.Key, events.MouseDown, events.MouseScrollDown, events.MouseScrollUp)):
            self._input_s = time.monotonic()
        await super().on_event(event)

    def _play(self) -> None:
        now_s = time.monotonic()
        self.timeline.play(min(now_s - self._ticked_s, LONGEST_TICK_S))
        self._ticked_s = now_s
        if self._start_speed is not None and self._has_steps:
            self.timeline.to_start()
            self.timeline.set_speed(self._start_speed)
            self._start_speed = None

    def _tell_end(self) -> None:
        if not self._told_end and self.feed.end is not None:
            self._told_end = True
            if self.feed.end.status == "failed" and not self.is_replay:
                self.action_failure()

    def show_now(self, force: bool = False) -> None:
        """Show what has just been changed by hand: the cursor, a selection, the screen itself (``force``)."""
        self._show(force)

    def _show(self, force: bool = False) -> None:
        """Give a frame to the active screen. A dialog on top leaves changes collected until it is closed."""
        screen, state, native = self.screen, self.timeline.view, self._native[-1] if self._native else ""
        live = self.timeline.live
        now = (
            *(id(state), state.version, state.status, state.t_ns, native, self.timeline.version),
            *(live.status, live.t_ns // 1_000_000_000, tuple(self.selected.items())),
            *(self.lanes.num_events if self.lanes else 0, self.feed.num_prompts),
        )
        if isinstance(screen, TextDialog):
            screen.follow(state)
        if not isinstance(screen, FrameScreen) or not screen.is_mounted:
            return
        if now == self._shown and screen is self._shown_on and not force:
            return
        if not self._shown or self._shown[6] != live.status:
            self.refresh_bindings()
        whole = screen is not self._shown_on
        if whole:  # it is laid out and drawn next
            self._input_s = time.monotonic()
        self._shown, self._shown_on = now, screen
        self._sharing.update(state.pool)
        dirty = state.pool.dirty if state.pool else set()
        read = 1.0 if has_ended(live) else getattr(self.session, "share_read", 1.0)
        frame = Frame(
            state, self.timeline, dirty, whole, self._sharing, dict(self.selected), native, self.is_replay, read,
            self.feed.prompt,
        )  # fmt: skip
        self.pace.begin(screen)
        with self.batch_update():
            screen.show_frame(frame)
        dirty.clear()

    # Screens and what is selected ----------------------------------------------------------------------------

    def screen_of(self, entry: ScreenEntry) -> FrameScreen:
        """The screen itself, made at the first call."""
        if entry.name not in self._screens:
            kind = entry.load()
            self.add_styles(kind)
            screen = self._screens[entry.name] = kind()
            self.install_screen(screen, entry.name)
        return self._screens[entry.name]

    def entry_of(self, screen: Screen) -> ScreenEntry | None:
        """Which entry of ``SCREENS`` a screen is."""
        return next((entry for entry in SCREENS if self._screens.get(entry.name) is screen), None)

    def _base(self) -> Screen:
        """The screen below all dialogs."""
        return next(screen for screen in reversed(self.screen_stack) if isinstance(screen, FrameScreen))

    def go(self, name: str) -> None:
        """Show the screen ``name``; what it is about to be left can be come back to with ``go_back``."""
        entry, here = entry_named(name), self.entry_of(self._base())
        if entry is None or here is None or entry is here:
            return
        self._way.append((here.name, None if self.timeline.at_live else self.timeline.view.step))
        del self._way[:-50]
        self._switch(entry)

    def _switch(self, entry: ScreenEntry) -> None:
        self.switch_screen(self.screen_of(entry))

    def go_back(self) -> None:
        """To the screen, and the moment, that the last lead was followed from."""
        if not self._way:
            return
        name, step = self._way.pop()
        if step is not None and step != self.timeline.view.step:
            self.timeline.seek(step)
        elif step is None and not self.timeline.at_live:
            self.timeline.go_live()
        entry = entry_named(name)
        if entry is not None:
            self._switch(entry)
        self.show_now()

    def choose(self, kind: str, id: str | int) -> None:
        """Remember ``id`` as the request, block or prefix that was chosen last; screens mark it."""
        self.selected[kind] = id
        self.feed.chosen(kind)

    def select(self, kind: str, id: str | int) -> None:
        """Go where the request, block, prefix or step ``id`` is shown. A step is the moment all screens go to."""
        if kind == "step":
            here = self.entry_of(self._base())
            if here is not None:
                self._way.append((here.name, None if self.timeline.at_live else self.timeline.view.step))
            self.timeline.stop()
            self.timeline.seek(int(id))
            self.show_now()
            return
        self.choose(kind, id)
        entry = entry_for(kind)
        if entry is None:
            self.notify(f"no screen shows a {kind}", timeout=2)
            return
        self.go(entry.name)
        self.call_later(self._show_selected, entry, kind, id)

    def _show_selected(self, entry: ScreenEntry, kind: str, id: str | int) -> None:
        """Once the screen has drawn: it knows its rows and its size then."""
        screen = self.screen_of(entry)
        if isinstance(screen, PanelScreen):
            screen.call_after_refresh(screen.show_selection, kind, id)

    # Actions -------------------------------------------------------------------------------------------------

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Keys that do not apply are absent from the footer and do nothing."""
        status = self.state.status
        match action:
            case "pause":
                return status == "running" and self._has_engine
            case "resume" | "step" | "until":
                return status == "paused" and self._has_engine
            case "breakpoint" | "change":
                return status in ("running", "paused") and self._has_engine
            case "failure":
                return status == "failed"
        return True

    @property
    def _has_steps(self) -> bool:
        """Something to start a replay from: a step, or a look at an attached server."""
        return self.state.last_step is not None or (self.state.attached is not None and self.state.has_begun)

    @property
    def _has_engine(self) -> bool:
        """There is one that takes commands: none in a recording, none of an attached server's."""
        return not self.is_replay and self.state.attached is None

    def send_command(self, command: Command) -> None:
        self.session.send(command)
        self.set_timer(0.03, self.tick)  # show the answer without waiting for the next regular tick

    def action_go(self, name: str) -> None:
        self.go(name)

    def action_pause(self) -> None:
        self.send_command(Pause())

    def action_resume(self) -> None:
        self.send_command(Resume())

    def action_step(self) -> None:
        self.timeline.go_live()
        self.send_command(Step(1))

    def action_until(self) -> None:
        """Breakpoints stop it too."""
        self.timeline.go_live()
        self.send_command(RunUntil(list(NEXT_EVENT)))

    def set_breakpoints(self, texts: list[str]) -> None:
        self.breakpoints = list(dict.fromkeys(texts))
        self.send_command(SetBreakpoints(self.breakpoints))

    def action_breakpoint(self) -> None:
        screen = self.screen
        value = screen.suggest_breakpoint() if isinstance(screen, PanelScreen) else ""
        ask(self, "Stop at", BREAKPOINT_FORMS, value or "preempt", parse_breakpoint, self._add_breakpoint)

    def _add_breakpoint(self, text: str | None) -> None:
        if text:
            self.set_breakpoints([*self.breakpoints, text])
            self.notify(f"stops at {text}", timeout=2, markup=False)
            self._show(force=True)

    def action_export(self) -> None:
        from kvtop.tui.export import FORMATS, check_export

        screen = self._base()
        entry, step = self.entry_of(screen), self.timeline.view.step
        name = f"kvtop-{(entry.name if entry else 'screen').lower().replace(' ', '-')}-step{step}.svg"
        hint = ", ".join(f"{suffix} {what}" for suffix, what in FORMATS.items())
        ask(self, "Write what is shown to", hint, name, check_export, self._export)

    def _export(self, name: str | None) -> None:
        from kvtop.tui.export import export

        if name is None:
            return

        def write() -> None:
            try:
                path = export(self, self._base(), self.timeline.view, name)
            except KvtopError as error:
                self.notify(str(error), timeout=6, severity="error", markup=False)
            else:
                self.notify(f"written: {path}", timeout=3, markup=False)

        self.call_after_refresh(write)  # without the dialog over it

    def action_theme(self, name: str = "") -> None:
        """Theme ``name``, or the next one."""
        names = list(PALETTES)
        self.theme = name or names[(names.index(self.theme) + 1) % len(names)]
        self.notify(f"theme {self.theme}", timeout=1.5)

    def action_change(self, name: str, value: str) -> None:
        """Change the configuration of the engine while it runs."""
        change(self, name, value)

    def action_failure(self) -> None:
        if not isinstance(self.screen, FailureScreen):
            native = "\n".join(self._native)
            text = self.state.traceback + (f"\n\nstderr:\n{native}" if native else "")
            self.push_screen(FailureScreen(self.state.error, text))

    def action_help(self) -> None:
        self.push_screen(HelpScreen(self.screen))

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
        """0, or what the run ended with: a failed run is never 0. Looking at a recording is never a failure."""
        end = self.feed.end
        if end is None or not has_ended(self.state) or end.status != "failed" or self.is_replay:
            return 0
        return end.exit_code or 1
