"""Requests: who runs, who waits, and why."""

from __future__ import annotations

from textual import on

from kvtop.tui.panels.life import LifePanel
from kvtop.tui.panels.requests import RequestsPanel
from kvtop.tui.screens.base import PanelScreen
from kvtop.tui.widgets.line_table import LineTable


class RequestsScreen(PanelScreen):
    """The table of requests, and the life of the one that is selected."""

    PANELS = (RequestsPanel, LifePanel)
    AUTO_FOCUS = "LineTable"
    CSS = """
    RequestsScreen #filter { display: none; height: 1; border: none; padding: 0 1; background: $surface; }
    RequestsScreen LifePanel { height: 9; display: none; }
    RequestsScreen.-tall LifePanel, RequestsScreen.-full LifePanel { height: 12; display: block; }
    RequestsScreen.-full LifePanel { height: 16; }
    RequestsScreen .-drawn LifePanel { display: block; }
    RequestsScreen .-not-drawn LifePanel { display: none; }
    RequestsScreen .-zoomed LifePanel.-zoomed { display: block; }
    """

    def show_selection(self, kind: str, id: str | int) -> None:
        if kind == "request":
            self.query_one(RequestsPanel).select(str(id))

    def told(self) -> tuple[str, bool] | None:
        """The request of the selected row."""
        if self._frame is None or self.is_too_small:
            return None
        told = self.query_one(RequestsPanel).selected_request()
        return told if told is not None and self._frame.state.logs.find(told[0], ended=told[1]) else None

    @on(LineTable.Opened)
    def _on_opened(self) -> None:
        """Enter: the strip, or without it; on a group, its rows or none."""
        if self.query_one(RequestsPanel).toggle_group():
            return
        body, life = self.query_one("#body"), self.query_one(LifePanel)
        shown = life.styles.display != "none" and life.display
        body.set_class(not shown, "-drawn")
        body.set_class(shown, "-not-drawn")
        self.call_after_refresh(life.redraw)

    @on(LineTable.Selected)
    def _on_selected(self) -> None:
        self.query_one(LifePanel).redraw()

    def action_back(self) -> None:
        if not self.query_one(RequestsPanel).leave_filter():
            super().action_back()
