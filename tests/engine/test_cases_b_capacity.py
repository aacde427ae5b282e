"""Capacity accounting and admission: who may start, and what happens when it does not fit."""

from __future__ import annotations

import pytest
from engine_helpers import distinct, emitting_steps, make_engine, serve, steps_until_idle, submit

from kvtop.engine.api import FinishReason, RequestTooLong


def test_second_request_starts_only_after_the_first_ended() -> None:  # B3
    engine = make_engine(8, 4, max_batched_tokens=8)
    submit(engine, distinct(28, 1), m=4, rid="R1")
    submit(engine, distinct(28, 2), m=4, rid="R2")
    outs = steps_until_idle(engine)
    assert len(outs) == 14
    assert emitting_steps(outs, "R1") == [3, 4, 5, 6]
    assert emitting_steps(outs, "R2") == [10, 11, 12, 13]
    ended = next(out.step for out in outs if "R1" in out.finished)
    assert next(out.step for out in outs if "R2" in out.admitted) > ended
    assert engine.counters().preemptions == 0


def test_output_that_cannot_fit_ends_with_a_capacity_reason() -> None:  # B5
    engine = make_engine(4, 4)
    view = serve(engine, distinct(14, 0), m=10)
    assert len(view.output) == 3
    assert view.computed_tokens == 16
    assert view.finish_reason is FinishReason.CAPACITY
    assert view.preemptions == 0


def test_every_configured_block_is_usable() -> None:  # B7
    engine = make_engine(4, 4)
    submit(engine, distinct(16, 0), m=1)
    in_use = []
    engine.executor.execute = _watch(engine, in_use)
    engine.run()
    assert max(in_use) / 4 == 1.0
    assert engine.counters().idle == 4
    assert engine.counters().used / 4 == 0.0


def _watch(engine, in_use: list[int]):
    execute = engine.executor.execute

    def watched(plan):
        in_use.append(engine.counters().used)
        return execute(plan)

    return watched


def test_deferred_frees_do_not_preempt_everyone() -> None:  # B8
    engine = make_engine(3, 4, deferred_free_steps=1)
    for i in range(3):
        submit(engine, distinct(4, i), m=4, rid=f"R{i}")
    engine.step()
    assert engine.counters().used == 3
    shortage = engine.step()
    engine.check()
    assert len(shortage.preempted) <= 3  # one a missing block at most; the oldest is none of them
    assert "R0" not in shortage.preempted
    assert len(shortage.preempted) == len(set(shortage.preempted))
    after = engine.step()
    assert "R0" in after.tokens
    outs = steps_until_idle(engine)
    assert all(engine.request(f"R{i}").finish_reason is FinishReason.LENGTH for i in range(3))
    assert sum(len(out.preempted) for out in outs) + len(shortage.preempted) == engine.counters().preemptions


def test_capacity_is_counted_in_whole_blocks_rounded_up() -> None:  # B10
    assert make_engine(8, 4).allocator.blocks_for(5) == 2
    with pytest.raises(RequestTooLong, match=r"prompt of 5 tokens.*at most 4"):
        submit(make_engine(1, 4), distinct(5, 0))
    engine = make_engine(3, 4)
    submit(engine, distinct(8, 1), m=2, rid="holder")  # holds two, then three of the three blocks
    engine.step()
    rid = submit(engine, distinct(5, 0))
    engine.step()
    assert engine.request(rid).block_table == ()


def test_branches_wait_for_their_own_blocks_and_all_finish() -> None:  # B12
    engine = make_engine(3, 4)
    submit(engine, distinct(4, 0), m=4, rid="g", n=4)
    outs = steps_until_idle(engine)
    names = ["g", "g#1", "g#2", "g#3"]
    assert max(len(out.plan) for out in outs[1:]) <= 2
    for branch, name in enumerate(names):
        assert engine.request(name).output == tuple(1000 + i + 100_000 * branch for i in range(4))
        assert engine.request(name).finish_reason is FinishReason.LENGTH
    assert outs[-1].ended == ["g"]
