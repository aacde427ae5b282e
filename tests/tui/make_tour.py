"""Draws docs/img/tour-*.svg: the pictures of docs/tour.md, of a run that is the same every time.

    .venv/bin/python tests/tui/make_tour.py

It serves the workload with the command that the tour begins with, opens the recording and presses the keys that the tour
names. Run it again whenever a screen has changed.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tui_fakes import FakeDevices, screen_text

from kvtop.tui.app import KvtopApp

ROOT = Path(__file__).parents[2]
IMAGES = ROOT / "docs" / "img"
OPTIONS = "-w chat --executor sim -m llama-3.1-8b --time-scale 0.02 --length-scale 2 --num-blocks 320 --slo ttft<1s,itl<100ms"
SIZE = (120, 40)


@dataclass(frozen=True)
class Shot:
    """A picture: the keys that lead to it from the one before, and which panel has the focus then."""

    name: str
    keys: tuple[str, ...]


SHOTS = (
    Shot("full", ("1",)),
    Shot("map", ("2",)),
    Shot("waits", ("4",)),
    Shot("spike", ("5",)),
    Shot("prefixes", ("3",)),
    Shot("events", ("8",)),
)


def serve(folder: str) -> Path:
    """Run the workload of the tour; returns the folder of the recording."""
    from kvtop.cli.main import main

    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        assert main(["bench", *OPTIONS.split(), "-o", folder]) == 0
    return next(path for path in Path(folder).iterdir() if (path / "run.json").exists())


async def shots(run: Path) -> dict[str, tuple[str, str]]:
    """Each picture by name: as SVG and as text."""
    from kvtop.run.recorded import RecordedSession

    session = RecordedSession(run)
    app = KvtopApp(session, hz=50.0, replay=True, speed=0.0)
    app.devices = FakeDevices()  # type: ignore[assignment]
    app.feed.cpu_clock = lambda: 0.0
    made = {}
    async with app.run_test(size=SIZE) as pilot:
        while app.feed.end is None or app.feed.behind:
            await pilot.pause(0.02)
        app.timeline.seek(STEP)
        for shot in SHOTS:
            for key in shot.keys:
                await pilot.press(key)
                await quiet(app, pilot)
            made[shot.name] = app.export_screenshot(title="kvtop"), screen_text(app)
    return made


async def quiet(app: KvtopApp, pilot) -> None:
    """Wait until nothing on the screen changes any more."""
    before, now = "", None
    while before != now:
        before = now
        app.tick()
        await pilot.pause(0.05)
        now = screen_text(app)
STEP = 0
