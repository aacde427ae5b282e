"""The size of the pool changed while a run goes on: what is recorded of it, replayed, and said of such a run."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from run_fakes import pool_of

from kvtop.analysis.compare import compare_paths
from kvtop.engine.events import ConfigChanged, Event, Paused, Resume, RunEnded, SetConfig, Step, StepEvent
from kvtop.results.manifest import read_manifest
from kvtop.run.recorded import RecordedSession
from kvtop.run.session import RunSession
from kvtop.run.spec import RunSpec
from kvtop.state.model import WITHHELD, RunState
from kvtop.state.reduce import reduce
from kvtop.workloads.spec import WorkloadSpec

ALL, FEW, MORE = 64, 24, 40  # blocks


def until(session: RunSession, wanted: Callable[[Event], bool]) -> list[Event]:
    """What the session tells, up to the batch with a wanted event."""
    events: list[Event] = []
    deadline_s = time.monotonic() + 90
    while not any(map(wanted, events)):
        assert time.monotonic() < deadline_s, events[-3:]
        events += session.poll(0.2)
    return events


def test_a_run_whose_pool_was_made_smaller_and_larger_says_so_and_replays_as_it_was(tmp_path: Path) -> None:
    workload = WorkloadSpec(name="poisson-shared-prefix", limit=60)
    session = RunSession(
        RunSpec(workload=workload, executor="null", num_blocks=ALL, run_dir=str(tmp_path / "run"), start_paused=True)
    )
    session.start()
    until(session, lambda event: isinstance(event, Paused))
    session.send(SetConfig({"num_blocks": FEW}))
    session.send(Step(50))
    told = until(session, lambda event: isinstance(event, StepEvent) and event.step >= 49)
    session.send(SetConfig({"num_blocks": MORE}))
    session.send(Resume())
    told += until(session, lambda event: isinstance(event, RunEnded))

    manifest = read_manifest(tmp_path / "run")
    times = [event.t_ns for event in told if isinstance(event, ConfigChanged)]
    rows = manifest["config_changes"]
    assert [(row["key"], row["old"], row["new"], row["t_ns"]) for row in rows] == [
        ("num_blocks", ALL, FEW, times[0]),
        ("num_blocks", FEW, MORE, times[1]),
    ]
    assert (manifest["num_blocks"], manifest["status"]) == (ALL, "complete")
    (comparison,) = compare_paths([tmp_path / "run"])
    assert any(
        "changed by hand while it ran" in note
        and f"num_blocks {ALL} -> {FEW} after step 0, num_blocks {FEW} -> {MORE} after step {rows[1]['step']}" in note
        for note in comparison.notes
    ), comparison.notes

    replay, state, withheld = RecordedSession(tmp_path / "run"), RunState(), []
    replay.start()
    while not replay.ended:
        for event in replay.poll():
            reduce(state, event)
            if isinstance(event, StepEvent):
                withheld.append(event.withheld_blocks)
                assert pool_of(state).counts[WITHHELD] == event.withheld_blocks
                assert event.used_blocks <= pool_of(state).limit
    assert sorted(set(withheld)) == [ALL - MORE, ALL - FEW]
    assert (pool_of(state).limit, pool_of(state).num_usable) == (MORE, MORE)
    assert pool_of(state).state.count(WITHHELD) == ALL - MORE
    assert (state.manifest["num_blocks"], state.manifest["usable_blocks"]) == (ALL, MORE)
