"""What kvtop's own server tells at /metrics, and its state at the same moment: one run, stopped after single events."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import cache

from kvtop.engine.events import StepEvent
from kvtop.exporter.meter import Exporter
from kvtop.run.session import RunSession
from kvtop.run.spec import RunSpec
from kvtop.state.model import IDLE, USED, RunState
from kvtop.state.numbers import read_all, shared_blocks
from kvtop.state.reduce import reduce
from kvtop.state.windows import waiting_by_reason
from kvtop.workloads.spec import WorkloadSpec


@dataclass
class Moment:
    """``text``: of /metrics; ``numbers``: of the state that the screen of that server would show then."""

    text: str
    numbers: dict[str, int | float | str | None]
    waiting: dict[str, int]
    lookup_ends: Counter[str] = field(default_factory=Counter)  # since the run began


@cache
def moments() -> tuple[Moment, Moment]:
    """After the first step, and the first time that all there is to tell is not 0. A virtual clock: always the same."""
    spec = RunSpec(
        workload=WorkloadSpec(name="chat", limit=100, time_scale=0.01),
        engine={"max_num_seqs": 24, "max_batched_tokens": 256},
        executor="null",
        executor_params={"step_time_ns": 12_000_000},
        num_blocks=200,
    )
    exporter, state, ends = Exporter(), RunState(), Counter[str]()
    meter, session = exporter.open(), RunSession(spec)
    found: list[Moment] = []
    session.start()
    try:
        while not session.ended and len(found) < 2:
            for event in session.poll(0.5):
                meter.fold(event)
                reduce(state, event)
                if not isinstance(event, StepEvent) or len(found) == 2:
                    continue
                ends.update(decision[3] for decision in event.decisions if decision[0] == "lookup")
                if not found or is_eventful(state, ends):
                    found.append(Moment(exporter.render(), read_all(state), waiting_of(state), ends.copy()))
    finally:
        session.stop()
    assert len(found) == 2, "the run is over before all of it was to be seen"
    return found[0], found[1]


def waiting_of(state: RunState) -> dict[str, int]:
    """By reason. Metrics count requests, too, that have arrived and that no step has seen."""
    waiting = {row.reason or "not_looked_at": row.count for row in waiting_by_reason(state)}
    seen = {sequence.request_id for sequence in state.sequences.values()}
    if unseen := sum(request_id not in seen for request_id in state.arrivals):
        waiting["not_looked_at"] = waiting.get("not_looked_at", 0) + unseen
    return waiting


def is_eventful(state: RunState, ends: Counter[str]) -> bool:
    """Nothing that is compared is 0."""
    pool, step, totals = state.pool, state.last_step, state.totals
    assert pool is not None
    assert step is not None
    counts = (
        pool.counts[USED], pool.counts[IDLE], shared_blocks(state), step.reserved_unused_slots, ends["evicted"],
        totals.get("evictions"), totals.get("preemptions"), totals.get("recomputed_tokens"),
        state.cache.regret_tokens, state.num_finished, waiting_by_reason(state),
    )  # fmt: skip
    return all(counts)
