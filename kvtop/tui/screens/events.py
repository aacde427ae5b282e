"""Events: the log of decisions, and the debugger."""

from __future__ import annotations

from textual.app import ComposeResult

from kvtop.tui.panels.breakpoints import BreakpointsPanel
from kvtop.tui.panels.event_log import EventLogPanel
from kvtop.tui.panels.health import HealthPanel
from kvtop.tui.screens.base import PanelScreen
from kvtop.tui.screens.frame_screen import Area


class EventsScreen(PanelScreen):
    """What was decided; where to stop; whether the source is complete."""

    AUTO_FOCUS = "EventLogPanel LineTable"
    CSS = """
    EventsScreen #log-area { height: 1fr; }
    EventsScreen #below { height: 7; layout: grid; grid-size: 2; grid-gutter: 0 1; }
    EventsScreen.-narrow.-short #below { height: 5; }
    """

    def compose_panels(self) -> ComposeResult:
        with Area(classes="area", id="log-area"):
            yield EventLogPanel()
        with Area(classes="area", id="below"):
            yield BreakpointsPanel()
            yield HealthPanel()

    def told(self) -> tuple[str, bool] | None:
        """The request that the selected line is about."""
        if self._frame is None or self.is_too_small:
            return None
        return self.query_one(EventLogPanel).told(self._frame)
