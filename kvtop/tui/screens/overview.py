"""Overview: what is going on, in half a minute."""

from __future__ import annotations

from kvtop.tui.panels.cache import CachePanel
from kvtop.tui.panels.device import DevicePanel
from kvtop.tui.panels.findings import FindingsPanel
from kvtop.tui.panels.holders import HoldersPanel
from kvtop.tui.panels.latency import LatencyPanel
from kvtop.tui.panels.pool import PoolPanel
from kvtop.tui.panels.queue import QueuePanel
from kvtop.tui.panels.step_lane import StepLanePanel
from kvtop.tui.panels.throughput import ThroughputPanel
from kvtop.tui.screens.base import PanelScreen


class OverviewScreen(PanelScreen):
    """The pool, who waits, what is missed, how long, how fast, who holds what, what is wrong, each step."""

    PANELS = (
        PoolPanel, QueuePanel, CachePanel, LatencyPanel, ThroughputPanel, HoldersPanel, DevicePanel, FindingsPanel,
        StepLanePanel,
    )  # fmt: skip
    AUTO_FOCUS = "PoolPanel"
    CSS = """
    OverviewScreen #body { layout: grid; grid-size: 3; grid-columns: 1fr 1fr 1fr; grid-gutter: 0 1; }
    OverviewScreen #body { grid-rows: 5 1fr 1fr 4 6; }
    OverviewScreen PoolPanel, OverviewScreen FindingsPanel, OverviewScreen StepLanePanel { column-span: 3; }
    OverviewScreen.-full #body { grid-rows: 8 1fr 1fr 4 6; }
    OverviewScreen.-short #body { grid-rows: 4 1fr 1fr 4; }
    OverviewScreen.-short StepLanePanel { display: none; }
    OverviewScreen.-narrow #body { grid-size: 2; grid-columns: 1fr 1fr; grid-rows: 4 1fr 1fr 1fr 4; }
    OverviewScreen.-narrow PoolPanel, OverviewScreen.-narrow FindingsPanel { column-span: 2; }
    OverviewScreen.-narrow StepLanePanel { display: none; }
    OverviewScreen.-narrow.-short #body { grid-rows: 4 1fr 1fr 4; }
    OverviewScreen.-narrow.-short HoldersPanel, OverviewScreen.-narrow.-short DevicePanel { display: none; }
    OverviewScreen.-low #body { grid-rows: 4 1fr 4; }
    OverviewScreen.-low ThroughputPanel, OverviewScreen.-low HoldersPanel, OverviewScreen.-low DevicePanel {
        display: none;
    }
    OverviewScreen.-narrow.-low #body { grid-rows: 4 1fr 1fr; }
    OverviewScreen.-narrow.-low ThroughputPanel { display: block; }
    OverviewScreen.-narrow.-low FindingsPanel { display: none; }
    OverviewScreen #body.-zoomed { layout: vertical; }
    """
