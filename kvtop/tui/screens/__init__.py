"""The screens by key: one line each. A screen's module is imported when the screen is first shown.

A screen is a ``PanelScreen`` (``screens/base.py``) in a file of its own. ``shows`` names the kinds of things it is the
place for: ``app.select("request", "r7")`` leads to the screen that shows requests.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ScreenEntry:
    key: str
    name: str
    place: str  # module:class
    shows: tuple[str, ...] = ()

    def load(self) -> type:
        """The screen's class."""
        from importlib import import_module

        return getattr(import_module(self.module), self.place.partition(":")[2])

    @property
    def module(self) -> str:
        return self.place.partition(":")[0]


SCREENS: tuple[ScreenEntry, ...] = (
    ScreenEntry("1", "Overview", "kvtop.tui.screens.overview:OverviewScreen"),
    ScreenEntry("2", "Block map", "kvtop.tui.screens.blocks:BlocksScreen", shows=("block",)),
    ScreenEntry("3", "Radix tree", "kvtop.tui.screens.tree:TreeScreen", shows=("prefix",)),
    ScreenEntry("4", "Requests", "kvtop.tui.screens.requests:RequestsScreen", shows=("request",)),
    ScreenEntry("5", "Latency", "kvtop.tui.screens.latency:LatencyScreen"),
    ScreenEntry("6", "Compare", "kvtop.tui.screens.compare:CompareScreen"),
    ScreenEntry("7", "Memory calculator", "kvtop.tui.screens.memory:MemoryScreen"),
    ScreenEntry("8", "Events", "kvtop.tui.screens.events:EventsScreen"),
)


def entry_named(name: str) -> ScreenEntry | None:
    return next((entry for entry in SCREENS if entry.name == name), None)


def entry_for(kind: str) -> ScreenEntry | None:
    """The screen that shows things of ``kind``, if there is one."""
    return next((entry for entry in SCREENS if kind in entry.shows), None)
