"""Draws docs/img/tour-*.svg: the pictures of docs/tour.md, of a run that is the same every time.

    .venv/bin/python tests/tui/make_tour.py

It serves the workload with the options that the tour begins with, opens the recording and goes where the tour goes. Run
it again whenever a screen has changed.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pilot_idle
from textual.pilot import Pilot
from tui_fakes import screen_text, work_at_once

from kvtop.run.recorded import RecordedSession
from kvtop.tui.app import KvtopApp

IMAGES = Path(__file__).parents[2] / "docs" / "img"
OPTIONS = (
    "-w chat --executor sim -m llama-3.1-8b --time-scale 0.02 --length-scale 2 --num-blocks 320 "
    "--slo ttft<1s,tpot<50ms --seconds 60"
)
EVENTS = 9  # of note, before the preemption that the tour looks at
SIZE = (120, 40)


class NoDevices:
    """This machine's load, which is another each time, is left out."""

    def latest(self) -> None:
        return None

    def stop(self) -> None:
        pass


@dataclass(frozen=True)
class Shot:
    """A picture: the keys that lead to it from the one before, and the request to select before the last of them."""

    name: str
    keys: tuple[str, ...]
    request: str = ""


SHOTS = (
    Shot("pool", ("ctrl+home", *["full_stop"] * EVENTS, "1")),
    Shot("waits", ("4",), "r92"),
    Shot("why", ("w",), "r92"),
    Shot("spike", ("escape", "right_curly_bracket", "right_curly_bracket", "right_curly_bracket", "5", "v")),
    Shot("cost", ("w",), "r99"),
    Shot("prefixes", ("escape", "3")),
)


def serve(folder: str) -> Path:
    """Run the workload of the tour without a screen; returns the folder of the recording."""
    from kvtop.cli.main import main

    run = Path(folder) / "tour"
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        code = main(["live", *OPTIONS.split(), "--record", str(run)])
    assert code == 0
    return run


async def shots(run: Path) -> dict[str, tuple[str, str]]:
    """Each picture by name: as SVG and as text."""
    session = RecordedSession(run)
    session.start()
    app = KvtopApp(session, hz=50.0, replay=True, speed=0.0)
    app.devices = NoDevices()  # type: ignore[assignment]
    app.feed.cpu_clock = lambda: 0.0
    pilot_idle.install()
    work_at_once()
    made = {}
    async with app.run_test(size=SIZE) as pilot:
        while app.feed.end is None or app.feed.behind or app._start_speed is not None:
            app.tick()
            await pilot.pause()
        for shot in SHOTS:
            await _take(pilot, app, shot)
            made[shot.name] = app.export_screenshot(title="kvtop"), screen_text(app)
    return made


async def _take(pilot: Pilot, app: KvtopApp, shot: Shot) -> None:
    for key in shot.keys:
        if key == "w" and shot.request:
            app.select("request", shot.request)
            await _quiet(pilot, app)
        await pilot.press(key)
        await _quiet(pilot, app)
    if shot.request and shot.keys[-1] != "w":
        app.select("request", shot.request)
        await _quiet(pilot, app)


async def _quiet(pilot: Pilot, app: KvtopApp) -> None:
    """Wait until nothing on the screen changes any more."""
    before, now = "", None
    while before != now:
        before = now
        app.tick()
        await pilot.pause()
        now = screen_text(app)


def main() -> None:
    os.environ.pop("NO_COLOR", None)
    with tempfile.TemporaryDirectory(prefix="kvtop-tour-") as folder:
        for name, (picture, _) in asyncio.run(shots(serve(folder))).items():
            path = IMAGES / f"tour-{name}.svg"
            path.write_text(picture)
            print(f"{path}: {len(picture):,} characters")


if __name__ == "__main__":
    main()
