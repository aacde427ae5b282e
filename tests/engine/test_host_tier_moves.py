"""Copies to and from the host tier that are still to be made: failed steps, aborts, resets, preemptions."""

from __future__ import annotations

import pytest
from engine_helpers import KVExecutor, decisions, distinct, make_engine, pool_state, serve, submit
from host_tier_helpers import LONG, evict_all, found, tier_engine, tier_state

from kvtop.engine.api import Engine, Plan, RequestState


@pytest.mark.parametrize("between", [False, True])
def test_a_forced_eviction_is_copied_out_before_its_block_is_written(between: bool) -> None:
    engine = tier_engine(3, 4)
    serve(engine, LONG)
    evict_all(engine)
    if between:
        serve(engine, distinct(9, 1))  # over the same three blocks
    assert found(engine, LONG) == (0, 8)  # without anything between, out and in are moves of one plan


def test_a_reset_between_the_eviction_and_the_next_step_drops_the_copy() -> None:
    engine = tier_engine(3, 4)
    serve(engine, LONG)
    evict_all(engine)
    engine.reset_prefix_cache()
    engine.check()
    plans: list[Plan] = []
    engine.executor.on_execute = plans.append  # type: ignore[attr-defined]
    assert found(engine, LONG) == (0, 0)
    assert not any(plan.swap_out or plan.swap_in for plan in plans)


class _Failure(Exception):
    pass


def _failing(engine: Engine, where: str) -> None:
    """The next step fails once, before its moves or after everything is written."""

    def fail(plan: Plan) -> None:
        setattr(engine.executor, where, None)
        raise _Failure

    setattr(engine.executor, where, fail)


@pytest.mark.parametrize("where", ["on_execute", "on_written"])
@pytest.mark.parametrize("then", ["again", "abort", "reset"])
def test_a_step_that_failed_keeps_its_moves(where: str, then: str) -> None:
    engine = tier_engine(3, 6)
    serve(engine, LONG)
    serve(engine, distinct(9, 1))
    rid = submit(engine, LONG, m=2)
    _failing(engine, where)
    with pytest.raises(_Failure):
        engine.step()
    engine.check()
    if then == "abort":
        engine.abort(rid)
        engine.check()
        submit(engine, distinct(9, 2), m=2)  # into the blocks that were to be filled
    elif then == "reset":
        engine.reset_prefix_cache()
        engine.check()
    engine.run()
    engine.check()
    if then != "reset":
        assert found(engine, distinct(9, 1)) == (0, 8)
        assert sum(found(engine, LONG)) == 8
    else:
        assert engine.counters().host_cached == 0


def test_what_is_not_filled_yet_is_not_swapped_out() -> None:
    engine = tier_engine(3, 4, preemption="swap", host_blocks=4)
    serve(engine, LONG)
    serve(engine, distinct(9, 1))
    submit(engine, LONG, m=2)
    _failing(engine, "on_execute")
    with pytest.raises(_Failure):
        engine.step()
    assert not engine.allocator.swap_out(engine.scheduler.running[0])
    assert engine.counters().host_used == 0


def test_a_copy_that_a_dropped_load_waited_for_is_dropped_with_it() -> None:
    engine = tier_engine(3, 4)
    serve(engine, LONG)
    evict_all(engine)
    rid = submit(engine, LONG, m=2)
    _failing(engine, "on_execute")
    with pytest.raises(_Failure):
        engine.step()
    engine.reset_prefix_cache()
    engine.check()
    assert engine.counters().host_cached == 2  # about to be read: out of the one block and into the other in one plan
    engine.abort(rid)
    engine.check()
    assert engine.counters().host_cached == 0
    plans: list[Plan] = []
    engine.executor.on_execute = plans.append  # type: ignore[attr-defined]
    serve(engine, distinct(9, 1))
    assert not any(plan.swap_out or plan.swap_in for plan in plans)


def test_an_abort_while_the_step_is_in_flight_keeps_the_host_copy() -> None:
    engine = tier_engine(3, 4)
    serve(engine, LONG)
    serve(engine, distinct(9, 1))
    rid = submit(engine, LONG, m=4)
    engine.executor.on_execute = lambda plan: engine.abort(rid)  # type: ignore[attr-defined]
    engine.step()
    engine.executor.on_execute = None  # type: ignore[attr-defined]
    engine.check()
    assert found(engine, LONG) == (0, 8)


@pytest.mark.parametrize("k", [1, 2, 3])
def test_a_fault_at_any_block_changes_nothing(k: int) -> None:
    engine = tier_engine(3, 2)
    serve(engine, LONG)
    serve(engine, distinct(9, 1))
    submit(engine, LONG, rid="again")
    engine.inject_fault(lambda i: i == k)
    before = pool_state(engine), tier_state(engine)
    engine.step()
    assert (pool_state(engine), tier_state(engine)) == before
    engine.check()
    engine.inject_fault(None)
    engine.run()
    assert engine.request("again").host_hit_tokens == 8


def test_blocks_that_the_host_fills_are_needed_like_any_other() -> None:
    engine = tier_engine(4, 8)
    serve(engine, LONG)
    serve(engine, distinct(15, 1))  # everything of the first is in the tier
    submit(engine, distinct(5, 2), m=8, rid="holds")
    engine.step()  # two blocks, and two to come are promised
    submit(engine, LONG, rid="waits")
    before = tier_state(engine)
    engine.step()
    waiting = engine.request("waits")
    assert (waiting.state, str(waiting.wait_reason)) == (RequestState.WAITING, "no_blocks")
    assert [row[0] for row in tier_state(engine)[0]] == [row[0] for row in before[0]]
    engine.run()
    engine.check()
    assert engine.request("waits").host_hit_tokens == 8


def test_two_requests_of_one_step_are_filled_from_the_same_host_blocks() -> None:
    engine = tier_engine(6, 4)
    serve(engine, LONG)
    evict_all(engine)
    submit(engine, LONG, rid="a")
    submit(engine, LONG, rid="b")
    out = engine.step()
    assert out.admitted == ["a", "b"]
    engine.check()
    assert [engine.request(rid).host_hit_tokens for rid in "ab"] == [8, 8]
    assert engine.counters().idle == 2  # one of the two published, the other was given up for it


def test_swapped_sequences_and_evicted_prefixes_have_host_blocks_of_their_own() -> None:
    plans: list[Plan] = []
    executor = KVExecutor(5, 4, on_execute=plans.append)
    engine = make_engine(5, 4, executor=executor, preemption="swap", host_blocks=3, host_cache_blocks=4)
    for salt in range(3):
        serve(engine, distinct(12, salt))
    submit(engine, distinct(6, 4), m=10, rid="a")
    submit(engine, distinct(6, 5), m=10, rid="b")
    engine.run()
    engine.check()
    assert engine.counters().preemptions > 0
    assert engine.counters().recomputed_tokens == 0
    log = decisions(engine, "swap_out", "swap_in", "host_store", "host_load")
    assert {d["other"] for d in log if d["kind"].startswith("swap")} <= {0, 1, 2}
    assert {d["other"] for d in log if d["kind"].startswith("host")} == {3, 4, 5, 6}
    moved = [host for plan in plans for _, host in plan.swap_out]
    assert len(moved) == sum(d["kind"] == "swap_out" or d.get("reason") == "copied" for d in log)
    assert engine.counters().host_used == 0


def test_what_a_preempted_request_finds_in_the_tier_is_restored_and_no_hit() -> None:
    engine = tier_engine(5, 8)
    submit(engine, distinct(8, 0), m=9, rid="a")
    submit(engine, distinct(8, 1), m=9, rid="b")
    engine.run()
    engine.check()
    b = engine.request("b")
    assert b.preemptions > 0
    assert b.restored_tokens > 0
    assert (b.cached_tokens, b.host_hit_tokens) == (0, 0)
    assert (engine.counters().hit_tokens, engine.counters().host_hit_tokens) == (0, 0)
    assert decisions(engine, "host_hit")
