"""Radix tree: which prefixes earn their memory, what was evicted too early, and why a request missed."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import ClassVar

from textual.app import ComposeResult

from kvtop.tui import block_view
from kvtop.tui.block_view import BlockView
from kvtop.tui.frame import Frame
from kvtop.tui.panels import prompt
from kvtop.tui.panels.lookup import BINDINGS, LookupPanel, ask_lookup
from kvtop.tui.panels.prefixes import PrefixesPanel
from kvtop.tui.panels.regrets import RegretsPanel
from kvtop.tui.screens.ask import PasteScreen
from kvtop.tui.screens.base import PanelScreen
from kvtop.tui.screens.frame_screen import Area


class TreeScreen(PanelScreen):
    """The tree, one lookup, and regrets."""

    AUTO_FOCUS = "PrefixTable"
    BINDINGS: ClassVar[list] = BINDINGS
    CSS = """
    TreeScreen #body { layout: vertical; }
    TreeScreen #sums { height: 1; }
    TreeScreen PrefixesPanel { height: 1fr; }
    TreeScreen #below { height: 12; layout: grid; grid-size: 2; grid-gutter: 0 1; }
    TreeScreen.-narrow #below { height: 12; grid-size: 1; grid-rows: 1fr 5; }
    TreeScreen.-narrow.-short #below { height: 11; grid-rows: 6 5; }
    TreeScreen.-wide #body { layout: horizontal; }
    TreeScreen.-wide PrefixesPanel { width: 1fr; height: 100%; }
    TreeScreen.-wide #below { width: 66; height: 100%; margin-left: 1; grid-size: 1; grid-rows: 14 1fr; }
    TreeScreen #body.-zoomed { layout: vertical; }
    """

    def __init__(self) -> None:
        super().__init__()
        self.view = BlockView()
        self._told_s = 0.0  # when the panels were last given a frame
        self._catches_up = False

    def compose_panels(self) -> ComposeResult:
        yield PrefixesPanel(self.view)
        with Area(classes="area", id="below"):
            yield LookupPanel(self.view)
            yield RegretsPanel()

    def show_frame(self, frame: Frame) -> None:
        """While the run goes on, the panels are told once a second: sums over all blocks cost what a frame may."""
        self.view.update(frame)
        now_s, before = time.monotonic(), self._frame
        goes_on = frame.timeline.at_live and frame.state.status == "running" and not frame.whole
        same = before is not None and before.selected == frame.selected and before.prompt is frame.prompt
        same = same and before is not None and before.state is frame.state
        if goes_on and same and now_s - self._told_s < block_view.RESORT_S and not self.is_too_small:
            self._frame = frame
            self._show_frame_of_screen(frame)
            self._catch_up_later()
            return
        self._told_s = now_s
        super().show_frame(frame)

    def _catch_up_later(self) -> None:
        if not self._catches_up:
            self._catches_up = True
            self.set_timer(block_view.RESORT_S, self._catch_up)

    def _catch_up(self) -> None:
        """The run may have fallen silent since."""
        self._catches_up = False
        if self._frame is not None and self.is_current:
            self._told_s = 0.0
            self.show_frame(replace(self._frame, dirty=set()))

    def show_selection(self, kind: str, id: str | int) -> None:
        if kind == "prefix":
            self.query_one(PrefixesPanel).show(int(id))

    def told(self) -> tuple[str, bool] | None:
        """The request whose lookup is shown."""
        frame, name = self._frame, str(self.kvtop.selected.get("request", ""))
        log = frame.state.logs.find(name) if frame is not None and name else None
        return None if log is None else (name, log.end is not None)

    def action_lookup(self) -> None:
        if self._frame is not None:
            self.app.push_screen(ask_lookup(self._frame), self._take)

    def action_prompt(self) -> None:
        screen = PasteScreen(prompt.TITLE, prompt.HINT, prompt.check_prompt)
        self.app.push_screen(screen, lambda text: prompt.find_prompt(self.kvtop, text))

    def _take(self, name: str | None) -> None:
        if name:
            self.kvtop.choose("request", name)
            self.kvtop.show_now()
