"""Counters: what is counted once, what adds up, and what is absent rather than zero."""

from __future__ import annotations

import json
from dataclasses import asdict

import msgspec
import pytest
from engine_helpers import decisions, distinct, make_engine, request_rows, serve, steps_until_idle, submit

from kvtop.engine.events import StepEvent


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
