"""Chunked prefill, aborts, and what one step may and may not do."""

from __future__ import annotations

import pytest
from engine_helpers import (
    KVExecutor,
    decisions,
    distinct,
    emitting_steps,
    kv_engine,
    make_engine,
    serve,
    steps_until_idle,
    submit,
)

from kvtop.engine.api import FinishReason, WaitReason


def test_abort_in_the_middle_of_a_chunked_prefill() -> None:  # E1
    engine = kv_engine(16, 4, max_batched_tokens=8)
    prompt = distinct(20, 0)
    rid = submit(engine, prompt, m=4)
    engine.step()
    engine.step()
    assert engine.request(rid).num_computed == 16
    assert engine.abort(rid)
    engine.check()
    counters = engine.counters()
    assert (counters.used, counters.idle) == (0, 4)
    assert engine.request(rid).output == ()
    assert engine.request(rid).finish_reason is FinishReason.ABORTED
    assert not engine.step().plan
    assert serve(engine, prompt).cached_tokens == 16


def test_a_request_aborted_while_its_step_runs_emits_nothing() -> None:  # E2
    executor = KVExecutor(8, 4)
    engine = make_engine(8, 4, executor=executor)
    submit(engine, distinct(4, 0), m=8, rid="a")
    submit(engine, distinct(4, 1), m=8, rid="b")
    engine.step()
    executor.on_execute = lambda plan: engine.abort("a")
    out = engine.step()
    assert "a" not in out.tokens
    assert "b" in out.tokens
    assert out.finished == {"a": FinishReason.ABORTED}
    assert len(engine.request("a").output) == 1
    assert engine.counters().used == 2  # b's alone
    executor.on_execute = None
    outs = steps_until_idle(engine)
    assert not any("a" in o.tokens for o in outs)
    assert not engine.abort("a")


def test_an_abort_in_flight_also_ends_a_running_sequence_that_was_not_in_the_step() -> None:
    # R0 waits for a block that is still in transfer, so only R1 is computed in the step in which R0 is aborted.
    executor = KVExecutor(3, 4)
    engine = make_engine(3, 4, executor=executor, deferred_free_steps=1)
    for i, length in enumerate((4, 1, 4)):
        submit(engine, distinct(length, i), m=8, rid=f"R{i}")
    engine.step()
    planned = []

    def abort_the_first(plan) -> None:
        planned.extend(chunk.request_id for chunk in plan)
        assert engine.abort("R0")

    executor.on_execute = abort_the_first
    engine.step()
    assert planned == ["R1"]
    assert engine.request("R0").finish_reason is FinishReason.ABORTED
    assert not any("R0" in engine.block(b).owners for b in range(3))
    engine.check()
    executor.on_execute = None
    steps_until_idle(engine)


def test_an_unfinished_chunk_emits_nothing() -> None:  # E3
    engine = make_engine(8, 4, max_batched_tokens=8)
    rid = submit(engine, distinct(20, 0), m=2)
    outs = steps_until_idle(engine)
    assert outs[0].tokens == {}
    assert outs[1].tokens == {}
    assert outs[2].tokens == {rid: [1000]}


def test_every_position_of_a_chunked_prompt_is_computed_once() -> None:  # E4
    engine = kv_engine(8, 4, max_batched_tokens=8)
    m = 4
    rid = submit(engine, distinct(28, 0), m=m)
    steps_until_idle(engine)
    assert engine.request(rid).computed_tokens == 28 + (m - 1)
    assert engine.counters().computed_tokens == 28 + (m - 1)
    assert engine.counters().recomputed_tokens == 0
    positions = [
        p for row in decisions(engine, "chunk") for p in range(row["age_steps"], row["age_steps"] + row["num_tokens"])
    ]
    assert positions == list(range(31))


def test_a_long_prefill_does_not_starve_a_decode() -> None:  # E6
    engine = make_engine(64, 4, max_batched_tokens=8)
    submit(engine, distinct(4, 0), m=40, rid="R1")
    engine.step()
    submit(engine, distinct(64, 1), m=2, rid="R2")
    prefilled = 0
    while prefilled < 64:
        out = engine.step()
        assert len(out.tokens["R1"]) == 1
        chunk = next(chunk for chunk in out.plan if chunk.request_id == "R2")
        assert chunk.count <= 7
        prefilled += chunk.count
    assert "R2" in out.tokens


def test_a_prefill_behind_endless_decodes_waits_with_a_reason() -> None:  # E7
    # The rule: no more sequences run than the budget has tokens, so the fifth waits for a decode to end, and says so.
    engine = make_engine(64, 4, max_batched_tokens=4)
    for i in range(4):
        submit(engine, [i], m=30, rid=f"d{i}")
    engine.step()
    submit(engine, distinct(4, 9), rid="late")
    for _ in range(20):
        out = engine.step()
        assert len(out.tokens) == 4
        assert engine.request("late").wait_reason is WaitReason.BUDGET
    skips = decisions(engine, "skipped")
    assert [(row["request_id"], row["reason"]) for row in skips] == [("late", "budget")]
    steps_until_idle(engine)
    assert len(engine.request("late").output) == 1


def test_an_empty_step_calls_no_executor_and_moves_no_counter() -> None:  # E8
    executor = KVExecutor(8, 4)
    engine = make_engine(8, 4, executor=executor)
    serve(engine, distinct(9, 0))
    engine.recorder.drain()
    calls, counters, now = executor.num_calls, engine.counters(), engine.clock.now_ns()
    for _ in range(3):
        out = engine.step()
        assert not out.plan
        assert (out.tokens, out.finished, out.admitted, out.stalled) == ({}, {}, [], None)
    assert executor.num_calls == calls
    assert engine.counters() == counters
    assert engine.clock.now_ns() == now
    assert engine.recorder.drain() == []


@pytest.mark.parametrize("budget", [1, 3, 8, 64])
def test_chunking_does_not_change_the_output(budget: int) -> None:
    engine = kv_engine(16, 4, max_batched_tokens=budget)
    whole = serve(kv_engine(16, 4), distinct(21, 0), m=6)
    assert serve(engine, distinct(21, 0), m=6).output == whole.output


def test_decoding_emits_in_consecutive_steps_after_the_last_chunk() -> None:
    engine = make_engine(8, 4, max_batched_tokens=8)
    rid = submit(engine, distinct(20, 0), m=5)
    assert emitting_steps(steps_until_idle(engine), rid) == [2, 3, 4, 5, 6]
