"""What all screens have in common: header, panels, time line, footer; the keys that move through time and leads.

A screen sets ``PANELS`` (or yields them from ``compose_panels``, in containers of class ``area`` where it needs some)
and its layout in ``CSS``. It is given frames while it is the active one, and draws at no other time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding

from kvtop.tui.frame import Frame
from kvtop.tui.panels.base import Panel, panel_of
from kvtop.tui.screens.frame_screen import Area, FrameScreen
from kvtop.tui.text import plural, whole
from kvtop.tui.widgets.header import HeaderBar, status_span
from kvtop.tui.widgets.key_bar import KeyBar
from kvtop.tui.widgets.lines import Line, Lines, cut
from kvtop.tui.widgets.scrubber import Scrubber

if TYPE_CHECKING:
    from kvtop.state.model import RunState
    from kvtop.state.timeline import Timeline

MIN_WIDTH, MIN_HEIGHT = 60, 16
LOW = 20  # rows below which a screen has class -low: what matters most takes the room of the rest
_STEP, _PACE = Binding.Group("step", compact=True), Binding.Group("play", compact=True)


class PanelScreen(FrameScreen):
    """Base of the screens with a key of their own."""

    PANELS: ClassVar[tuple[type[Panel], ...]] = ()
    AUTO_FOCUS = "Panel, Panel *"
    BINDINGS: ClassVar[list] = [
        Binding("space", "freeze", "freeze", key_display="space", tooltip="hold the view; the run goes on"),
        Binding("space", "live", "live", key_display="space", tooltip="back to the live end"),
        Binding("left_square_bracket", "move(-1)", "step", key_display="[", group=_STEP, tooltip="one step back"),
        Binding("right_square_bracket", "move(1)", "step", key_display="]", group=_STEP, tooltip="one step forward"),
        Binding("left_curly_bracket", "move(-10)", show=False, key_display="{", tooltip="ten steps back"),
        Binding("right_curly_bracket", "move(10)", show=False, key_display="}", tooltip="ten steps forward"),
        Binding("comma", "moment(-1)", show=False, key_display=",", tooltip="previous preemption, burst or mark"),
        Binding("full_stop", "moment(1)", show=False, key_display=".", tooltip="next preemption, burst or mark"),
        Binding("less_than_sign", "pace(-1)", "play", key_display="<", group=_PACE, tooltip="play slower"),
        Binding("greater_than_sign", "pace(1)", "play", key_display=">", group=_PACE, tooltip="play, then faster"),
        Binding("home,ctrl+home", "start", show=False, key_display="Home", tooltip="oldest step kept (or Ctrl+Home)"),
        Binding("end,ctrl+end", "live('now')", show=False, key_display="End", tooltip="the live end (or Ctrl+End)"),
        Binding("m", "mark", show=False, tooltip="set a mark here, or take it away"),
        Binding("apostrophe", "to_mark", show=False, key_display="'", tooltip="to the mark before"),
        Binding("enter", "lead", "open", key_display="enter", tooltip="where the focused panel leads"),
        Binding("w", "why", "why", tooltip="the whole life of a request, and why it waits now"),
        Binding("e", "explain", "explain", tooltip="formula, window and source of the numbers in the focused panel"),
        Binding("z", "zoom", "zoom", tooltip="the focused panel alone, and back"),
        Binding("tab", "app.focus_next", show=False, tooltip="next panel (Shift+Tab: previous)"),
        Binding("shift+tab", "app.focus_previous", show=False),
        Binding("escape", "back", show=False, key_display="Esc", tooltip="back to where you came from"),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._frame: Frame | None = None
        self._applying: tuple[object, ...] = ()  # what decides which keys the footer has

    # Layout --------------------------------------------------------------------------------------------------

    def compose(self) -> ComposeResult:
        yield HeaderBar(id="header")
        yield Lines(id="too-small")
        with Area(id="body"):
            yield from self.compose_panels()
        yield Scrubber(id="scrubber")
        yield KeyBar(id="keys")

    def compose_panels(self) -> ComposeResult:
        yield from (panel() for panel in self.PANELS)

    @property
    def timeline(self) -> Timeline:
        return self.kvtop.timeline

    @property
    def panels(self) -> list[Panel]:
        return list(self.query(Panel))

    @property
    def focused_panel(self) -> Panel | None:
        return panel_of(self.focused) if self.focused is not None else None

    @property
    def is_too_small(self) -> bool:
        return self.size.width < MIN_WIDTH or self.size.height < MIN_HEIGHT

    # Frames --------------------------------------------------------------------------------------------------

    def show_frame(self, frame: Frame) -> None:
        """Give the frame to everything on the screen. A screen that has more to do extends this."""
        self._frame = frame
        if self.is_too_small:
            self.query_one("#too-small", Lines).set_lines(self._summary(frame))
            for panel in self.panels:  # to be drawn as soon as there is room
                panel.frame = frame
            return
        self._show_frame_of_screen(frame)
        for panel in self.panels:
            panel.update_frame(frame)
        if frame.whole:  # the footer draws only on the screen that is shown
            self._applying = ()
            self.query_one(KeyBar).show()
        self.update_keys()

    def _show_frame_of_screen(self, frame: Frame) -> None:
        entry = self.kvtop.entry_of(self)
        self.query_one(HeaderBar).update_frame(frame, f"{entry.key} {entry.name}" if entry else "")
        self.query_one(Scrubber).show(frame.timeline)

    def show_selection(self, kind: str, id: str | int) -> None:
        """Bring what was selected into sight. Called on the screen that shows things of ``kind``, after a frame."""

    def _summary(self, frame: Frame) -> list[Line]:
        """What a screen too small for panels says."""
        width, state = self.size.width, frame.state
        run: Line = [*status_span(state), (f" step {whole(state.step)}", "text")]
        need = f"terminal too small, need {MIN_WIDTH}x{MIN_HEIGHT}"
        return [cut(line, width) for line in (run, [(describe_counts(state), "text")], [(need, "warn")])]

    def on_resize(self, event: events.Resize) -> None:
        self.set_class(event.size.width < MIN_WIDTH or event.size.height < MIN_HEIGHT, "-tiny")
        self.set_class(event.size.height < LOW, "-low")
        self.call_after_refresh(self._redraw)

    def _redraw(self) -> None:
        """What is no panel follows the new size at once; panels do so themselves."""
        if self._frame is None:
            return
        if self.is_too_small:
            self.query_one("#too-small", Lines).set_lines(self._summary(self._frame))
        else:
            self._show_frame_of_screen(self._frame)

    # Keys ----------------------------------------------------------------------------------------------------

    def update_keys(self) -> None:
        """Have the footer show the keys that apply now. Called after every frame and move of the focus."""
        panel = self.focused_panel
        now = (
            self.timeline.at_live,
            self.timeline.speed is None,
            self.told() is not None,
            panel.LEADS_TO if panel else "",
            bool(panel and panel.NUMBERS),
            self.timeline.live.has_begun,
        )
        if now != self._applying:
            self._applying = now
            self.refresh_bindings()

    def on_descendant_focus(self) -> None:
        self.update_keys()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Keys that do not apply are absent from the footer and do nothing."""
        line, panel = self.timeline, self.focused_panel
        match action:
            case "move" | "start":
                return line.live.has_begun
            case "freeze":
                return line.live.has_begun and (line.at_live or line.speed is not None)
            case "live":
                return not line.at_live and (line.speed is None or parameters == ("now",))
            case "pace":
                return not line.at_live
            case "why":
                return self.told() is not None
            case "lead":
                return panel is not None and bool(panel.LEADS_TO)
            case "explain":
                return panel is not None
        return True

    # Time ----------------------------------------------------------------------------------------------------

    def action_freeze(self) -> None:
        """Stand still here: at the live end, or where playing has got to."""
        self.timeline.freeze()
        self.timeline.stop()
        self.kvtop.show_now()

    def action_live(self, when: str = "") -> None:
        self.timeline.go_live()
        self.kvtop.show_now()

    def action_move(self, steps: int) -> None:
        self.timeline.move(steps)
        self.kvtop.show_now()

    def action_moment(self, direction: int) -> None:
        """What it is stands on the time line then."""
        if self.timeline.to_moment(direction) is None:
            self.notify("nothing of note later" if direction > 0 else "nothing of note earlier", timeout=2)
        self.kvtop.show_now()

    def action_pace(self, direction: int) -> None:
        self.timeline.change_speed(direction)
        self.kvtop.show_now()

    def action_start(self) -> None:
        self.timeline.to_start()
        self.kvtop.show_now()

    def action_mark(self) -> None:
        self.timeline.mark()
        self.kvtop.show_now()

    def action_to_mark(self) -> None:
        if self.timeline.to_mark() is None:
            self.notify("no mark has been set (m sets one)", timeout=2)
        self.kvtop.show_now()

    @on(Scrubber.Clicked)
    def _on_scrubber_clicked(self, event: Scrubber.Clicked) -> None:
        self.timeline.stop()
        self.timeline.seek_ns(event.t_ns)
        self.kvtop.show_now()

    # Leads ---------------------------------------------------------------------------------------------------

    def action_lead(self) -> None:
        panel = self.focused_panel
        if panel is not None and panel.LEADS_TO:
            self.kvtop.go(panel.LEADS_TO)

    def action_back(self) -> None:
        if self.query_one("#body").has_class("-zoomed"):
            self._zoom_out()
        else:
            self.kvtop.go_back()

    def action_explain(self) -> None:
        from kvtop.tui.screens.dialogs import ExplainScreen

        panel = self.focused_panel
        if panel is not None and self._frame is not None:
            self.app.push_screen(ExplainScreen(panel, self._frame.state))

    def suggest_breakpoint(self) -> str:
        """What ``b`` offers here ("": nothing in particular)."""
        from kvtop.tui.widgets.block_map import BlockMap

        if isinstance(self.focused, BlockMap):
            return f"block {self.focused.cursor}"
        told = self.told()
        return f"request {told[0]}" if told is not None and not told[1] else ""

    def told(self) -> tuple[str, bool] | None:
        """Of which request ``w`` tells the life, and whether it has ended. None: of nobody."""
        return None

    def action_why(self) -> None:
        from kvtop.tui.screens.why import WhyScreen

        told, frame = self.told(), self._frame
        log = frame.state.logs.find(told[0], ended=told[1]) if frame is not None and told is not None else None
        if frame is not None and told is not None and log is not None:
            self.app.push_screen(WhyScreen(frame.state, log, told[0]))

    # Zoom ----------------------------------------------------------------------------------------------------

    def action_zoom(self) -> None:
        """Class ``-zoomed`` on the panel and what is around it; the style sheet hides the rest."""
        panel = self.focused_panel
        if self.query_one("#body").has_class("-zoomed") or panel is None:
            self._zoom_out()
            return
        for node in panel.ancestors_with_self:
            node.add_class("-zoomed")
            if node.id == "body":
                return

    def _zoom_out(self) -> None:
        for node in self.query(".-zoomed"):
            node.remove_class("-zoomed")


def describe_counts(state: RunState) -> str:
    """One line for a screen too small for anything else."""
    running = sum(1 for seq in state.sequences.values() if seq.state == "running")
    return f"{plural(running, 'request')} running, {len(state.sequences) - running:,} waiting"
