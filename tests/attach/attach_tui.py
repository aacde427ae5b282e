"""The TUI on attached servers that say what a test has them say."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from attach_helpers import SERVER, sample, take
from fake_server import recorded_messages, recorded_metrics

from kvtop.attach.kv_tracker import KvTracker
from kvtop.engine.events import Command, Event, RunStarted
from kvtop.tui.app import KvtopApp
from kvtop.tui.export import screen_text

sys.path.append(str(Path(__file__).parents[1] / "tui"))
import pilot_idle  # pyright: ignore[reportMissingImports]
from tui_fakes import work_at_once  # pyright: ignore[reportMissingImports]

pilot_idle.install()

MANIFEST = {"executor": "attached", "clock": "virtual", "workload": SERVER, "interval_ns": 1_000_000_000}


class Fed:
    """A session that hands out what it is given."""

    def __init__(self, events: list[Event], manifest: dict[str, Any] = MANIFEST) -> None:
        self.events, self.ended = [RunStarted(run_id="x", manifest=manifest), *events], False

    def poll(self, timeout_s: float = 0.0) -> list[Event]:
        events, self.events = self.events, []
        return events

    def send(self, command: Command) -> None:
        raise AssertionError("an attached server is sent nothing")

    def stop(self, timeout_s: float = 10.0) -> None:
        pass


def recorded(until_s: float) -> list[Event]:
    """What was seen of the recorded server in its first seconds."""
    tracker, events = KvTracker(109), list[Event]()
    moments = [*recorded_metrics(), *((t_s, frames) for t_s, frames in recorded_messages())]
    for t_s, what in sorted(moments, key=lambda moment: moment[0]):
        if t_s > until_s:
            break
        if isinstance(what, str):
            events.append(sample(len(events) + 1, what, t_s=t_s))
        else:
            take(tracker, what)
            events += tracker.drain(len(events) + 1, int(t_s * 1e9))
    return events


def seen(
    events: list[Event],
    *keys: str,
    size: tuple[int, int] = (120, 40),
    check: Callable[[KvtopApp], None] = lambda app: None,
    manifest: dict[str, Any] = MANIFEST,
) -> str:
    """The screen after ``keys``."""

    async def look() -> str:
        session = Fed(events, manifest)
        app = KvtopApp(session, hz=50.0)
        async with app.run_test(size=size) as pilot:
            while session.events or app.feed.behind:
                app.tick()
                await pilot.pause()
            await pilot.press(*keys)
            before, now = None, ""
            while before != now:
                before = now
                app.tick()
                await pilot.pause()
                now = screen_text(app.screen)
            check(app)
            return now

    work_at_once()
    return asyncio.run(asyncio.wait_for(look(), 100))
