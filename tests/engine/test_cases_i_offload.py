"""Host memory: whose blocks are whose when they come back, what happens when it is full, and that it empties."""

from __future__ import annotations

from typing import Any

import pytest
from engine_helpers import decisions, distinct, expected_output, kv_engine, steps_until_idle, submit

from kvtop.engine.api import Engine


def swapping(**config: Any) -> Engine:
    """h outgrows the pool: q, then p lose their blocks to it and wait in host memory."""
    engine = kv_engine(7, 4, preemption="swap", prefix_caching=False, **config)
    submit(engine, distinct(4, 0), m=24, rid="h")
    for number, name in enumerate("pq", 1):
        submit(engine, distinct(5, number), m=12, rid=name)
    return engine


def test_contents_follow_the_request_when_it_returns_in_another_order() -> None:  # I4
    engine = swapping(host_blocks=8)
    steps_until_idle(engine)
    rows = decisions(engine, "swap_out", "swap_in", "resumed")
    out = [row for row in rows if row["kind"] == "swap_out"]
    back = [row for row in rows if row["kind"] == "swap_in"]
    assert list(dict.fromkeys(row["request_id"] for row in out)) == ["q", "p"]
    assert [row["request_id"] for row in rows if row["kind"] == "resumed"] == ["p", "q"]
    for name in "pq":  # each host block comes back to the place it was taken from, in the order of the table
        assert [r["other"] for r in out if r["request_id"] == name] == [
            r["other"] for r in back if r["request_id"] == name
        ]
    assert [r["block"] for r in out] != [r["block"] for r in back]
    # The executor has compared every slot that was read; the outputs depend on all of them.
    for number, (name, m) in enumerate((("h", 24), ("p", 12), ("q", 12))):
        assert list(engine.request(name).output) == expected_output(distinct(4 if name == "h" else 5, number), m)
        assert engine.request(name).recomputed_tokens == 0


def test_a_victim_that_does_not_fit_into_host_memory_is_computed_again_whole() -> None:  # I2
    engine = swapping(host_blocks=1)
    outs = steps_until_idle(engine)
    assert sum(len(out.preempted) for out in outs) >= 2
    assert decisions(engine, "swap_out", "swap_in") == []
    assert engine.counters().host_used == 0
    assert engine.request("q").recomputed_tokens >= 8
    for number, (name, m) in enumerate((("h", 24), ("p", 12), ("q", 12))):
        assert list(engine.request(name).output) == expected_output(distinct(4 if name == "h" else 5, number), m)


@pytest.mark.parametrize("ending", ["finish", "abort", "reset"])
def test_host_memory_is_empty_when_all_is_done(ending: str) -> None:  # I5
    engine = swapping(host_blocks=8)
    most = 0
    while engine.has_requests:
        engine.step()
        engine.check()
        most = max(most, engine.counters().host_used)
        if ending != "finish" and engine.counters().host_used >= 4:
            engine.reset_prefix_cache()
            if ending == "abort":
                assert all(engine.abort(name) for name in "hpq")
                engine.check()
    assert most >= 4
    engine.reset_prefix_cache()
    assert (engine.counters().host_used, engine.counters().used) == (0, 0)
