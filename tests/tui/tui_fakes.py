"""A session fed from lists of events, and ways to look at the screen."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

import make_frames
from textual.command import CommandList, CommandPalette
from textual.pilot import Pilot

from kvtop.engine.events import Command, Event
from kvtop.results.recording import read_frames
from kvtop.tui.app import KvtopApp
from kvtop.tui.device_watch import Device
from kvtop.tui.pace import Pace
from kvtop.tui.panels import findings, life
from kvtop.tui.screens import latency, why


class FakeDevices:
    """A host without a GPU, at rest."""

    def latest(self) -> Device:
        gib = 1 << 30
        return Device(None, "driver not loaded", 12.5, 5 * gib, 16 * gib, gib // 8, 3.0, 2 * gib, 97.0)

    def stop(self) -> None:
        pass


class FakeSession:
    """Hands out ``events`` at the next poll; keeps what was sent."""

    def __init__(self, events: Iterable[Event] = ()) -> None:
        self.events = list(events)
        self.sent: list[Command] = []
        self.started = self.stopped = self.ended = False

    def start(self) -> None:
        self.started = True

    def poll(self, timeout_s: float = 0.0) -> list[Event]:
        events, self.events = self.events, []
        return events

    def send(self, command: Command) -> None:
        self.sent.append(command)

    def stop(self, timeout_s: float = 10.0) -> None:
        self.stopped = True


class Unpaced(Pace):
    """Every frame is drawn at once, however long the one before took."""

    is_due = True  # type: ignore[assignment]


@cache
def recorded() -> tuple[Event, ...]:
    """The events of the recorded run, in order."""
    return tuple(event for events in read_frames(make_frames.PATH) for event in events)


def work_at_once() -> None:
    """Nothing on a screen is older than what stands beside it, however long it took to work out."""
    for module in (findings, life, why, latency):
        vars(module)["_SHARE"] = 0


def app_with(events: Iterable[Event] = (), **options) -> KvtopApp:
    """An application over a fake session that polls fast. A recording stands at its start unless a test plays it:
    how far it had come, and how wide the number of its step is, would be the machine's doing."""
    app = KvtopApp(FakeSession(events), hz=options.pop("hz", 50.0), speed=options.pop("speed", 0.0), **options)
    app.devices = FakeDevices()  # type: ignore[assignment]
    work_at_once()
    app.pace = Unpaced()
    app.feed.cpu_clock = app.feed.wall_clock = lambda: 0.0
    return app


async def settled(pilot: Pilot, *events: Event) -> None:
    """Wait until everything, ``events`` included, has been folded and drawn."""
    app = pilot.app
    assert isinstance(app, KvtopApp)
    session = app.session
    assert isinstance(session, FakeSession)
    session.events.extend(events)
    before, now = None, ""
    while session.events or (app.lanes or app.feed).behind or before != now:
        before = now
        app.tick()
        await pilot.pause()
        assert app._exception is None, app._exception  # a crash ends the test, rather than its time
        now = screen_text(app)


def screen_lines(app: KvtopApp) -> list[str]:
    """What is on the screen, a string a row."""
    return ["".join(segment.text for segment in strip) for strip in app.screen._compositor.render_strips()]


def screen_text(app: KvtopApp) -> str:
    return "\n".join(screen_lines(app))


async def go(pilot: Pilot, *keys: str) -> None:
    """Press ``keys``, mostly those of screens, and wait until what they show is drawn."""
    await pilot.press(*keys)
    await settled(pilot)


async def find_by_name(pilot: Pilot, name: str) -> bool:
    """Look for an action in the palette, which stays open; whether there is one."""
    await pilot.press("colon")
    assert CommandPalette.is_open(pilot.app)
    await pilot.press(*name)
    return pilot.app.screen.query_one(CommandList).highlighted is not None


async def run_by_name(pilot: Pilot, name: str) -> None:
    """Find an action in the palette and do it."""
    assert await find_by_name(pilot, name), name
    await pilot.press("enter")
    await settled(pilot)
