"""The states that all screens are looked at in: what the sessions have told, and what has happened since."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import msgspec
import uneven_run
from textual.pilot import Pilot
from tui_fakes import FakeDevices, FakeSession, app_with, recorded, settled

from kvtop.engine.api import Engine, EngineConfig
from kvtop.engine.events import Event, Paused, RunStarted, StepEvent
from kvtop.engine.recorder import Recorder
from kvtop.engine.types import RequestSpec, SamplingParams
from kvtop.run.breakpoints import Stops
from kvtop.tui import intervals
from kvtop.tui.app import KvtopApp
from kvtop.tui.compare_app import CompareApp
from kvtop.tui.feed import time_of
from kvtop.tui.lanes import Lanes
from kvtop.tui.panels.versus import VersusPanel

SILENCE_S = 12  # since the last event of a stalled run
RACE_NS = 4_000_000_000  # as far as the runs of Compare have come


@dataclass(frozen=True, slots=True)
class State:
    """``events`` of the one run, and of the two that Compare shows; ``then``: what happens once they are folded."""

    name: str
    events: Callable[[], tuple[Event, ...]]
    pair: Callable[[], tuple[tuple[Event, ...], tuple[Event, ...]]]
    then: Callable[[KvtopApp], None] = lambda app: None
    keys: tuple[str, ...] = ()  # pressed over the two runs


# One run -----------------------------------------------------------------------------------------------------


def empty() -> tuple[Event, ...]:
    """A pool, and nobody who wants any of it."""
    return recorded()[:2]


@cache
def stopped() -> tuple[Event, ...]:
    """The uneven run, paused by its breakpoint at the first preemption after 1.5 s."""
    stops, out = Stops(), []
    stops.set(["preempt"])
    for event in uneven_run.events():
        out.append(event)
        if isinstance(event, StepEvent) and (why := stops.check(event)) and event.t_done_ns > 1_500_000_000:
            return (*out, Paused(t_ns=event.t_done_ns, reason=why))
    raise AssertionError("nobody was preempted")


@cache
def on_a_real_clock() -> tuple[Event, ...]:
    """The recorded run as if a model had made it."""
    started, *rest = recorded()
    assert isinstance(started, RunStarted)
    real = {**started.manifest, "clock": "real", "executor": "torch"}
    return (msgspec.structs.replace(started, manifest=real), *rest)


def fall_silent(app: KvtopApp) -> None:
    """The engine's process lives, and tells nothing."""
    app.feed.wall_clock = lambda: SILENCE_S


@cache
def thousands(policy: str = "fcfs", count: int = 4_000, steps: int = 60) -> tuple[Event, ...]:
    """4,000 requests of three tenants in two seconds, a quarter of which runs at a time."""
    rng = random.Random(11)
    prefixes = [[rng.randrange(1000) for _ in range(length)] for length in (32, 64, 96, 128)]
    pending, due_ns = [], 0
    for i in range(count):
        due_ns += int(rng.expovariate(2_000) * 1e9)
        prompt = prefixes[i % 4] + [rng.randrange(1000) for _ in range(rng.randint(8, 60))]
        params = SamplingParams(max_tokens=rng.randint(8, 120))
        tenant = ("acme", "beta", "zed")[i % 3]
        pending.append(RequestSpec(prompt=prompt, params=params, request_id=f"r{i}", arrival_ns=due_ns, tenant=tenant))
    config = EngineConfig(num_blocks=5_000, block_size=16, max_num_seqs=1_024, max_batched_tokens=8_192, policy=policy)
    sizes = {"num_blocks": 5_000, "max_num_seqs": 1_024, "max_batched_tokens": 8_192}
    manifest = {**uneven_run.MANIFEST, **sizes, "policy": policy, "workload": "thousands"}
    manifest |= {"run_id": "thousands", "slo": ["ttft<2s,tpot<100ms"]}
    recorder = Recorder()
    engine = Engine(config, uneven_run.Uneven(), recorder=recorder)
    out: list[Event] = [RunStarted(run_id="thousands", manifest=manifest), engine.keyframe()]
    for _ in range(steps):
        uneven_run.go_on(engine, pending)
        out += recorder.drain()
    return tuple(out)


# Two runs ----------------------------------------------------------------------------------------------------


@cache
def until(policy: str, limit_ns: int) -> tuple[Event, ...]:
    """The uneven run under ``policy`` as far as ``limit_ns``."""
    return tuple(event for event in uneven_run.events(policy) if time_of(event) <= limit_ns)


def racing() -> tuple[tuple[Event, ...], tuple[Event, ...]]:
    return until("fcfs", RACE_NS), until("sjf", RACE_NS)


def set_its_breakpoint(app: KvtopApp) -> None:
    app.breakpoints = ["preempt"]


STATES: tuple[State, ...] = (
    State("live", recorded, racing),
    State("empty", empty, lambda: (until("fcfs", 0)[:2], until("sjf", 0)[:2])),
    State("paused", stopped, racing, set_its_breakpoint, keys=("p",)),
    State("stalled", on_a_real_clock, lambda: (until("fcfs", RACE_NS), until("sjf", RACE_NS // 2)), fall_silent),
    State("thousands", thousands, lambda: (thousands(steps=20), thousands("sjf", steps=20))),
)


def app_in(state: State) -> KvtopApp:
    """To be run with ``run_test``, and then brought there with ``reach``."""
    return app_with(state.events())


def pair_in(state: State) -> CompareApp:
    """The same with two runs side by side."""
    fcfs, sjf = state.pair()
    intervals._SHARE = 0  # worked out anew for each moment, however long that takes
    app = CompareApp(Lanes([("fcfs", FakeSession(fcfs)), ("sjf", FakeSession(sjf))]), hz=50.0)
    app.devices = FakeDevices()  # type: ignore[assignment]
    return app


async def reach(pilot: Pilot, state: State) -> None:
    """Fold what the session has told, then let happen what happens."""
    app = pilot.app
    assert isinstance(app, KvtopApp)
    if app.lanes is None:
        await settled(pilot)
    else:
        await compared(pilot)
        await pilot.press(*state.keys)
    state.then(app)
    await settled(pilot)


async def compared(pilot: Pilot) -> None:
    """Wait until two runs are folded as far as both are known, and their differences are worked out."""
    app = pilot.app
    assert isinstance(app, CompareApp)
    while app.lanes.behind or not app.lanes.num_events:
        app.tick()
        await pilot.pause()
        assert app._exception is None, app._exception
    await worked_out(pilot)


async def worked_out(pilot: Pilot) -> None:
    """Wait until the differences of the moment that is looked at are worked out, by a thread, and shown."""
    app = pilot.app
    assert isinstance(app, CompareApp)
    while not app.screen.query(VersusPanel):
        await pilot.pause(0.01)
    panel = app.screen.query_one(VersusPanel)
    while True:
        app.show_now()
        await pilot.pause(0.01)
        assert app._exception is None, app._exception
        moment = tuple(lane.timeline.view.t_ns for lane in panel.pair() or ())
        if panel.latencies._made == (panel.other, *moment):
            break
    panel.redraw()  # the thread has not told it yet, perhaps
    await pilot.pause()
