"""Looks at all screens in a state at a size: their pictures, what stands in each panel, and the JSON of the moment."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
from textual.pilot import Pilot
from tui_fakes import go
from tui_pictures import Picture, picture_of
from tui_states import State, app_in, compared, pair_in, reach

from kvtop.state.snapshot import snapshot
from kvtop.tui import block_view
from kvtop.tui.app import KvtopApp
from kvtop.tui.panels.base import Panel
from kvtop.tui.screens import SCREENS

SIZES = ((80, 24), (120, 40), (200, 50))


@dataclass(frozen=True)
class Look:
    """``panels``: class -> its rows as text, with its title. ``data``: what an export to JSON writes just then."""

    picture: Picture
    panels: dict[str, list[str]]
    data: dict[str, Any]


@cache
def looks(state: State, size: tuple[int, int]) -> dict[str, Look]:
    """By name of the screen. One application visits them one after the other; another one has the two runs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("NO_COLOR", raising=False)
        patch.setattr(block_view, "RESORT_S", 0.0)
        return asyncio.run(_looks(state, size))


async def _looks(state: State, size: tuple[int, int]) -> dict[str, Look]:
    found: dict[str, Look] = {}
    app = app_in(state)
    async with app.run_test(size=size) as pilot:
        await reach(pilot, state)
        for entry in SCREENS:
            if entry.name != "Compare":
                await go(pilot, entry.key)
                found[entry.name] = _look(pilot)
    app = pair_in(state)
    async with app.run_test(size=size) as pilot:
        await reach(pilot, state)
        await compared(pilot)
        found["Compare"] = _look(pilot)
    return found


def _look(pilot: Pilot) -> Look:
    app = pilot.app
    assert isinstance(app, KvtopApp)
    picture = picture_of(app)
    panels = {}
    for panel in app.screen.query(Panel):
        if panel.region.area:
            x, y, width, height = panel.region
            rows = picture.rows[y : y + height]
            panels[type(panel).__name__] = ["".join(cell.char for cell in row[x : x + width]).rstrip() for row in rows]
    return Look(picture, panels, json.loads(json.dumps(snapshot(app.timeline.view), allow_nan=False)))
