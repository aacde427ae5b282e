"""Counters: what is counted once, what adds up, and what is absent rather than zero."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict
from random import Random

import msgspec
import pytest
from engine_helpers import STEP_NS, decisions, distinct, make_engine, request_rows, serve, steps_until_idle, submit

from kvtop.engine.api import Engine, EngineConfig, ExecuteResult, NullExecutor, Plan, RealClock, Recorder
from kvtop.engine.events import Keyframe, RequestEvent, StepEvent
from kvtop.state.model import RunState
from kvtop.state.reduce import reduce


def test_a_retried_admission_is_one_query() -> None:  # K2
    engine = make_engine(4, 4)
    submit(engine, distinct(4, 0), m=12, rid="holder")
    engine.step()
    submit(engine, distinct(15, 1), m=2, rid="waiter")
    for _ in range(10):
        engine.step()
    assert engine.counters().query_tokens == 4
    assert engine.request("waiter").output == ()
    steps_until_idle(engine)
    assert engine.counters().query_tokens == 4 + 15
    rows = decisions(engine, "lookup", "skipped")
    assert [row["request_id"] for row in rows if row["kind"] == "lookup"] == ["holder", "waiter"]
    assert [row["request_id"] for row in rows if row["kind"] == "skipped"] == ["waiter"]


def test_cached_and_computed_make_the_prompt_and_no_counter_falls() -> None:  # K3
    engine = make_engine(12, 4, max_batched_tokens=8)
    lengths = [1, 4, 5, 8, 9, 13, 13, 9, 3, 16]
    for i, length in enumerate(lengths):
        submit(engine, distinct(length, i % 2), m=1 + i % 4, rid=f"q{i}")
    totals = [name for name in asdict(engine.counters()) if name not in ("used", "idle", "fresh", "in_transfer")]
    before = asdict(engine.counters())
    while engine.has_requests:
        engine.step()
        after = asdict(engine.counters())
        assert all(0 <= before[name] <= after[name] for name in totals)
        before = after
    for i, length in enumerate(lengths):
        view = engine.request(f"q{i}")
        decoded = len(view.output) - 1
        assert 0 <= view.cached_tokens <= length - 1
        assert view.cached_tokens + view.computed_tokens - decoded == length
    assert engine.counters().query_tokens == sum(lengths)
    assert engine.counters().hit_tokens == sum(engine.request(f"q{i}").cached_tokens for i in range(len(lengths)))


def test_a_fresh_engine_is_valid_json_without_nan() -> None:  # K4
    engine = make_engine(4, 4)
    counters = asdict(engine.counters())
    assert counters == {**dict.fromkeys(counters, 0), "fresh": 4}
    assert json.loads(json.dumps(counters, allow_nan=False)) == counters
    assert json.loads(msgspec.json.encode(engine.keyframe()))["totals"] == counters


def test_tpot_of_one_token_is_absent_and_of_five_is_the_mean_gap() -> None:  # K4
    engine = make_engine(8, 4)
    serve(engine, distinct(4, 0), m=1, rid="one")
    serve(engine, distinct(4, 1), m=5, rid="five")
    with pytest.raises(Exception, match=r"context length|effective length"):
        submit(engine, distinct(100, 2), rid="refused")
    engine.step()
    rows = request_rows(engine)
    assert rows["one"].tpot_ns is None
    assert rows["one"].itl_max_ns is None
    assert rows["five"].tpot_ns == 10_000_000
    assert rows["refused"].hit_tokens is None
    assert rows["refused"].t_first_token_ns is None
    assert rows["refused"].finish_reason == "rejected"


def test_the_hit_rate_is_cached_over_prompt_tokens() -> None:  # K5
    engine = make_engine(8, 4)
    serve(engine, distinct(9, 0))
    serve(engine, distinct(9, 0))
    counters = engine.counters()
    assert (counters.hit_tokens, counters.query_tokens) == (8, 18)


def test_block_usage_token_fill_and_waste_are_different_numbers() -> None:  # K10
    engine = make_engine(3, 16)
    submit(engine, distinct(17, 0), m=2, rid="a")
    engine.step()
    event = next(e for e in engine.recorder.drain() if isinstance(e, StepEvent))
    assert (event.used_blocks, event.filled_slots, event.reserved_unused_slots) == (2, 17, 15)
    assert f"{event.used_blocks / 3:.1%}" == "66.7%"
    assert f"{event.filled_slots / (3 * 16):.1%}" == "35.4%"


@pytest.mark.parametrize("caching", [False, True])
def test_reuse_of_free_blocks_is_no_eviction(caching: bool) -> None:  # K11
    engine = make_engine(400 if caching else 4, 4, prefix_caching=caching)
    for i in range(100):
        serve(engine, distinct(9, i), m=2)
    assert engine.counters().evictions == 0
    assert decisions(engine, "evict") == []


def test_all_views_of_preemptions_agree() -> None:  # K12
    engine = make_engine(10, 4, max_batched_tokens=16)
    for i in range(8):
        submit(engine, distinct(3 + i, i), m=12, rid=f"q{i}")
    outs = steps_until_idle(engine)
    total = engine.counters().preemptions
    assert total > 0
    events = engine.recorder.drain()
    rows = [d for e in events if isinstance(e, StepEvent) for d in e.decisions if d[0] == "preempted"]
    assert sum(engine.request(f"q{i}").preemptions for i in range(8)) == total
    assert len(rows) == total
    assert sum(len(out.preempted) for out in outs) == total
    assert sum(e.preemptions for e in events if isinstance(e, StepEvent)) == total


def test_a_wall_clock_that_steps_back_changes_no_duration(monkeypatch: pytest.MonkeyPatch) -> None:  # K7
    class Clocks:
        """Monotonic time goes on by 10 ms a step; the wall clock is set back by 5 s in the middle."""

        monotonic_ns, wall_ns = 1_000_000_000, 1_700_000_000_000_000_000

        def perf_counter_ns(self) -> int:
            return self.monotonic_ns

        def time_ns(self) -> int:
            return self.wall_ns

        def time(self) -> float:
            return self.wall_ns / 1e9

    clocks = Clocks()
    monkeypatch.setattr("kvtop.engine.clock.time", clocks)
    monkeypatch.setattr("time.time", clocks.time)
    monkeypatch.setattr("time.time_ns", clocks.time_ns)

    class Slow(NullExecutor):
        def execute(self, plan: Plan) -> ExecuteResult:
            clocks.monotonic_ns += STEP_NS
            clocks.wall_ns += STEP_NS - 5_000_000_000 * (plan.step == 0)
            return super().execute(plan)

    engine = Engine(EngineConfig(num_blocks=8, block_size=4), Slow(), clock=RealClock(), recorder=Recorder())
    view = serve(engine, distinct(4, 0), m=3, rid="a")
    times = view.times
    assert (times.t_sched_ns, times.t_submit_ns, times.t_first_sched_ns) == (0, 0, 0)
    assert (times.t_first_token_ns, times.t_last_token_ns, times.t_done_ns) == (STEP_NS, 3 * STEP_NS, 3 * STEP_NS)
    events = engine.recorder.drain()
    row = next(e for e in events if isinstance(e, RequestEvent) and e.phase == "finished")
    assert (row.tpot_ns, row.itl_max_ns, row.queue_total_ns, row.preempted_ns) == (STEP_NS, STEP_NS, 0, 0)
    steps = [e for e in events if isinstance(e, StepEvent)]
    assert all(e.t_start_ns <= e.t_planned_ns <= e.t_done_ns for e in steps)


def test_a_clock_that_jumps_forward_makes_one_long_gap_and_no_negative_one() -> None:
    engine = make_engine(8, 4)
    submit(engine, distinct(4, 0), m=4, rid="a")
    engine.step()
    engine.clock.skip(10**13)
    engine.run()
    (row,) = request_rows(engine).values()
    assert row.itl_max_ns == STEP_NS + 10**13
    assert row.tpot_ns == STEP_NS + 10**13 // 3
    assert row.queue_total_ns == 0


def test_a_step_of_three_tokens_makes_three_gaps_that_add_up() -> None:  # K9
    state = RunState()
    for event in (
        Keyframe(step=0, t_ns=0, num_blocks=8, block_size=4, blocks=[], sequences=[], totals={}),
        RequestEvent(phase="arrived", t_ns=0, request_id="a", prompt_tokens=3, requested_output_tokens=9,
                     t_sched_ns=0, t_submit_ns=0),
        StepEvent(step=0, t_start_ns=0, t_planned_ns=0, t_done_ns=STEP_NS, emitted=[("a", 1)],
                  decisions=[("arrived", "a", 3), ("admitted", "a", 3, 1, 8), ("first_token", "a")]),
        StepEvent(step=1, t_start_ns=STEP_NS, t_planned_ns=STEP_NS, t_done_ns=4 * STEP_NS, emitted=[("a", 3)]),
    ):  # fmt: skip
        state = reduce(state, event)
    assert [(value, count) for _, value, count in state.itl.points] == [(STEP_NS, 3)]
    assert sum(value * count for _, value, count in state.itl.points) == 4 * STEP_NS - STEP_NS


@pytest.mark.parametrize("seed", range(20))
def test_publications_evictions_and_resets_of_the_log_rebuild_the_cache_at_every_step(seed: int) -> None:  # K14
    rng, eviction = Random(seed), ["lru", "lfu", "fifo", "2q"][seed % 4]
    engine = make_engine(12, 4, max_batched_tokens=16, eviction=eviction)
    stems, published, seen = [distinct(16, i) for i in range(3)], {}, Counter[str]()
    for number in range(40):
        prompt = rng.choice(stems)[: rng.randint(1, 16)] + distinct(rng.randint(1, 9), rng.randint(3, 5))
        submit(engine, prompt, m=rng.randint(1, 6), rid=f"q{number}", n=rng.choice([1, 1, 2]))
        if rng.random() < 0.1:
            engine.reset_prefix_cache()
        for _ in range(rng.randint(1, 3)):
            engine.step()
            for row in decisions(engine, "publish", "evict", "unpublish"):
                seen[row["kind"]] += 1
                if row["kind"] == "publish":
                    assert published.setdefault(row["block"], row["block_key"]) == row["block_key"]
                else:
                    assert published.pop(row["block"]) == row["block_key"], "removed without having been stored"
            assert published == {b: key for b in range(12) if (key := engine.block(b).published_key) is not None}
    assert min(seen[kind] for kind in ("publish", "evict")) > 10
