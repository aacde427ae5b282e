"""The panels of the live screen, in the order they stand on it. A new panel is a file here and a line in ``PANELS``."""

from __future__ import annotations

from kvtop.tui.panels.base import Panel
from kvtop.tui.panels.blocks import BlocksPanel
from kvtop.tui.panels.latency import LatencyPanel
from kvtop.tui.panels.pool import PoolPanel
from kvtop.tui.panels.requests import RequestsPanel
from kvtop.tui.panels.throughput import ThroughputPanel

PANELS: tuple[type[Panel], ...] = (BlocksPanel, PoolPanel, LatencyPanel, ThroughputPanel, RequestsPanel)
