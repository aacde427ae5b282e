"""A run whose steps take as long as what they compute, under a pool that is too small: its events, and its tables."""

from __future__ import annotations

import random
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from kvtop.engine.api import Engine, EngineConfig, NullExecutor
from kvtop.engine.events import Event, RequestEvent, RunEnded, RunStarted
from kvtop.engine.recorder import Recorder
from kvtop.engine.types import ExecuteResult, Plan, RequestSpec, SamplingParams
from kvtop.results.recording import FRAMES_NAME, FrameWriter
from kvtop.results.tables import write_tables
from kvtop.results.versions import RESULTS_SCHEMA_VERSION
from kvtop.state.model import RunState
from kvtop.state.reduce import reduce

NUM_BLOCKS, BLOCK_SIZE, SEATS = 120, 16, 10
MANIFEST = {
    "run_id": "uneven", "executor": "null", "clock": "virtual", "workload": "uneven", "workload_hash": "aaaa",
    "num_blocks": NUM_BLOCKS, "block_size_tokens": BLOCK_SIZE, "max_num_seqs": SEATS, "max_batched_tokens": 192,
    "prefix_caching": True, "model": None, "schema_version": RESULTS_SCHEMA_VERSION, "events_dropped": 0,
}  # fmt: skip


class Uneven(NullExecutor):
    """8 ms a step, and 50 us a token."""

    def execute(self, plan: Plan) -> ExecuteResult:
        self.step_time_ns = 8_000_000 + 50_000 * plan.num_tokens
        return super().execute(plan)


def requests(count: int = 90, seed: int = 3) -> list[RequestSpec]:
    """Of three tenants, behind three prefixes, faster than they are served at first."""
    rng = random.Random(seed)
    prefixes = [[rng.randrange(1000) for _ in range(length)] for length in (48, 128, 256)]
    specs, due_ns = [], 0
    for i in range(count):
        due_ns += int(rng.expovariate(8.0) * 1e9)
        prompt = rng.choice(prefixes) + [rng.randrange(1000) for _ in range(rng.randint(10, 400))]
        params = SamplingParams(max_tokens=rng.randint(1, 120))
        tenant = ("acme", "beta", "zed")[i % 3]
        specs.append(RequestSpec(prompt=prompt, params=params, request_id=f"r{i}", arrival_ns=due_ns, tenant=tenant))
    return specs


def go_on(engine: Engine, pending: list[RequestSpec]) -> None:
    """Submit what is due; then one step, or on to the next arrival."""
    now = engine.clock.now_ns()
    while pending and (pending[0].arrival_ns or 0) <= now:
        engine.submit_spec(pending.pop(0))
    if engine.has_work:
        engine.step()
    else:
        engine.clock.advance((pending[0].arrival_ns or 0) - now)


@cache
def events(policy: str = "fcfs", count: int = 90) -> tuple[Event, ...]:
    """The whole run, in order."""
    config = EngineConfig(
        num_blocks=NUM_BLOCKS, block_size=BLOCK_SIZE, max_num_seqs=SEATS, max_batched_tokens=192, policy=policy
    )
    recorder = Recorder()
    engine = Engine(config, Uneven(), recorder=recorder)
    pending = requests(count)
    out: list[Event] = [RunStarted(run_id="uneven", manifest={**MANIFEST, "policy": policy}), engine.keyframe()]
    while pending or engine.has_work:
        go_on(engine, pending)
        out += recorder.drain()
    return (*out, RunEnded(t_ns=engine.clock.now_ns(), status="complete"))


def ended(policy: str = "fcfs") -> list[RequestEvent]:
    return [e for e in events(policy) if isinstance(e, RequestEvent) and e.phase == "finished"]


def folded(made: Iterable[Event]) -> RunState:
    """The state after ``made``."""
    state = RunState()
    for event in made:
        reduce(state, event)
    return state


def on_disk(folder: Path, made: tuple[Event, ...]) -> Path:
    """The run as a directory with recording and tables."""
    folder.mkdir(parents=True)
    with FrameWriter(folder / FRAMES_NAME) as writer:
        for event in made:
            writer.write([event])
    write_tables(folder)
    return folder
