"""Requests: who runs, who waits, and why."""

from __future__ import annotations

from kvtop.tui.panels.requests import RequestsPanel
from kvtop.tui.screens.base import PanelScreen


class RequestsScreen(PanelScreen):
    """The table of requests."""

    PANELS = (RequestsPanel,)
    AUTO_FOCUS = "LineTable"

    def show_selection(self, kind: str, id: str | int) -> None:
        if kind == "request":
            self.query_one(RequestsPanel).select(str(id))

    def told(self) -> tuple[str, bool] | None:
        """The request of the selected row."""
        if self._frame is None or self.is_too_small:
            return None
        told = self.query_one(RequestsPanel).selected_request()
        return told if told is not None and self._frame.state.logs.find(told[0], ended=told[1]) else None
