"""Latency: how long, when, and where did the time go."""

from __future__ import annotations

import time
from typing import ClassVar

from textual.binding import Binding

from kvtop.state.latency import METRICS
from kvtop.state.slow import Analysis, analyse
from kvtop.tui.frame import Frame
from kvtop.tui.panels.anatomy import AnatomyPanel
from kvtop.tui.panels.distribution import AnalysisPanel, DistributionPanel
from kvtop.tui.panels.gaps import GapsPanel
from kvtop.tui.panels.outliers import OutliersPanel
from kvtop.tui.panels.over_time import OverTimePanel
from kvtop.tui.screens.base import PanelScreen

_SHARE = 10  # working it out, over a minute of samples, takes at most one part in so many of the time


class LatencyScreen(PanelScreen):
    """One metric: its distribution, its slow set, its minute, what gaps depend on, its outliers."""

    PANELS = (DistributionPanel, AnatomyPanel, OverTimePanel, GapsPanel, OutliersPanel)
    AUTO_FOCUS = "DistributionPanel"
    BINDINGS: ClassVar[list] = [
        Binding("v", "metric(1)", "metric", tooltip="the next metric: TTFT, ITL, TPOT, queue, E2E (V: the one before)"),
        Binding("V", "metric(-1)", show=False, key_display="V"),
    ]
    CSS = """
    LatencyScreen #body { layout: grid; grid-size: 2; grid-columns: 1fr 1fr; grid-gutter: 0 1; }
    LatencyScreen #body { grid-rows: 13 1fr 13; }
    LatencyScreen.-full #body { grid-rows: 15 1fr 14; }
    LatencyScreen OverTimePanel { column-span: 2; }
    LatencyScreen.-short #body { grid-rows: 9 1fr 5; }
    LatencyScreen.-short.-narrow GapsPanel { display: none; }
    LatencyScreen.-short.-narrow OutliersPanel { column-span: 2; }
    LatencyScreen #body.-zoomed { layout: vertical; }
    LatencyScreen #body.-zoomed GapsPanel.-zoomed { display: block; }
    """

    def __init__(self) -> None:
        super().__init__()
        self.metric = "ttft"
        self._analysis: Analysis | None = None
        self._made: tuple[object, ...] = ()
        self._next_s = 0.0

    def show_frame(self, frame: Frame) -> None:
        self._work_out(frame)
        super().show_frame(frame)

    def _work_out(self, frame: Frame) -> None:
        """Anew if something has changed: at once for another metric or moment, else not all the time."""
        state, now_s = frame.state, time.monotonic()
        made = (self.metric, id(state), state.version, state.t_ns)
        if made == self._made:
            return
        if made[:2] == self._made[:2] and now_s < self._next_s:  # there may be no further frame to do it with
            self.set_timer(self._next_s - now_s + 0.01, self._again)
            return
        self._analysis, self._made = analyse(state, self.metric), made
        self._next_s = time.monotonic() + _SHARE * (time.monotonic() - now_s)
        for panel in self.panels:
            if isinstance(panel, AnalysisPanel | OutliersPanel):
                panel.analysis = self._analysis

    def _again(self) -> None:
        if self._frame is not None and self.is_current:
            self.show_frame(self._frame)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action == "metric":  # of attached servers all metrics are shown at once
            return self._frame is None or self._frame.state.attached is None
        return super().check_action(action, parameters)

    def action_metric(self, direction: int) -> None:
        keys = list(METRICS)
        self.metric = keys[(keys.index(self.metric) + direction) % len(keys)]
        self._again()
