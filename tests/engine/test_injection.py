"""Faults put in on purpose, each by a public option: they cost time, and never a wrong token.

All of them together, at random: ``test_engine_state_machine``.
"""

from __future__ import annotations

from typing import Any

import pytest
from engine_helpers import KVExecutor, decisions, distinct, expected_output, kv_engine, make_engine, serve, submit

from kvtop.engine.api import ConfigError, Engine, EngineConfig, WaitReason

# -- copies that are done late -------------------------------------------------------------------------------------


def copying(late: int, **config: Any) -> Engine:
    """a#2 gets copies of a#1's blocks; a#1 is gone before they are made, and its blocks go to b, which is computed
    ahead of a#2 in the very step that is to copy."""
    executor = KVExecutor(12, 4)
    executor.late = late
    allocator = {"allocator": "contiguous-oracle", "batch_policy": "prefill-first"}
    engine = make_engine(12, 4, executor=executor, **allocator, **config)
    submit(engine, distinct(5, 0), m=6, rid="a")
    engine.step()
    assert engine.fork("a", 2) == ["a#1"]
    engine.step()
    assert engine.fork("a#1", 2) == ["a#2"]
    freed = engine.request("a#1").block_table
    engine.abort("a#1")
    submit(engine, distinct(9, 1), m=2, rid="b")
    out = engine.step()
    assert freed[0] in [source for source, _ in out.plan.copies]
    assert (engine.request("b").block_table[:1] == freed[:1]) == ("deferred_copy_steps" not in config)
    engine.check()
    return engine


def test_blocks_of_a_copy_are_given_to_nobody_before_it_is_done() -> None:
    engine = copying(late=1, deferred_copy_steps=1)
    engine.run()
    assert list(engine.request("a#2").output[2:]) == expected_output(
        [*distinct(5, 0), *engine.request("a#2").output[:2]], 4, branch=2
    )
    assert list(engine.request("b").output) == expected_output(distinct(9, 1), 2)


def test_an_executor_that_copies_late_without_being_allowed_to_reads_what_is_not_its_own() -> None:
    copying(late=0)
    with pytest.raises(AssertionError, match=r"a#2 reads .* its tokens are"):
        copying(late=1)


@pytest.mark.parametrize("steps", [1, 3])
def test_blocks_of_a_copy_are_in_transfer_until_it_is_done(steps: int) -> None:
    engine = kv_engine(8, 4, deferred_copy_steps=steps)
    submit(engine, distinct(6, 0), m=3, rid="a", n=2)
    engine.step()
    engine.step()  # one of the two copies the half full block
    assert engine.counters().copies == 1
    engine.abort("a")  # one whole block is idle; the last blocks are the two of the copy
    counters = engine.counters()
    assert (counters.used, counters.in_transfer) == (0, 3)
    waited = 0
    while engine.counters().in_transfer:
        engine.step()
        engine.check()
        waited += 1
    assert waited == steps + 1
    assert (engine.counters().idle, engine.counters().fresh) == (1, 7)


def test_who_needs_such_a_block_waits_for_it_and_preempts_nobody_else() -> None:
    engine = kv_engine(5, 4, deferred_copy_steps=2)
    submit(engine, distinct(6, 0), m=5, rid="a", n=2)
    submit(engine, distinct(4, 1), m=6, rid="b")
    engine.run()
    engine.check()
    for branch, name in enumerate(("a", "a#1")):
        assert list(engine.request(name).output) == expected_output(distinct(6, 0), 5, branch)
    assert list(engine.request("b").output) == expected_output(distinct(4, 1), 6)


def test_negative_steps_are_refused() -> None:
    with pytest.raises(ConfigError, match="deferred_copy_steps is -1, expected an integer >= 0"):
        EngineConfig(num_blocks=4, deferred_copy_steps=-1)


# -- the others ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_a_fault_at_any_block_is_a_reason_to_wait(k: int) -> None:
    engine = kv_engine(8, 4)
    rid = submit(engine, distinct(16, 0), m=4)
    engine.inject_fault(lambda block: block == k)
    out = engine.step()
    assert out.stalled is not None
    assert (out.stalled.request_id, out.stalled.reason) == (rid, WaitReason.FAULT)
    assert engine.counters().fresh == 8
    engine.inject_fault(None)
    engine.run()
    assert list(engine.request(rid).output) == expected_output(distinct(16, 0), 4)


def test_a_fault_while_growing_delays_the_one_that_grows_alone() -> None:
    engine = kv_engine(8, 4)
    submit(engine, distinct(4, 0), m=6, rid="a")
    submit(engine, distinct(5, 1), m=6, rid="b")
    engine.step()
    engine.inject_fault(lambda block: True)
    out = engine.step()
    assert list(out.tokens) == ["b"]
    engine.inject_fault(None)
    engine.run()
    for number, name in enumerate("ab"):
        assert list(engine.request(name).output) == expected_output(distinct(4 + number, number), 6)


def test_a_forced_eviction_costs_the_hit_and_nothing_else() -> None:
    engine, prompt = kv_engine(8, 4), distinct(9, 0)
    cold = serve(engine, prompt, m=3)
    engine.recorder.drain()
    serve(engine, prompt, m=1)
    hits = [row["block"] for row in decisions(engine, "share")]
    engine.evict(hits[-1])
    warm = serve(engine, prompt, m=3)
    assert (warm.cached_tokens, warm.output) == (4, cold.output)
