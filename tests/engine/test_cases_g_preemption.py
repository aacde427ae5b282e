"""Preemption, progress and fairness."""

from __future__ import annotations

from engine_helpers import decisions, distinct, kv_engine, make_engine, serve, steps_until_idle, submit

from kvtop.engine.api import FinishReason, RequestState, WaitReason


def test_equal_priorities_do_not_preempt_each_other_for_ever() -> None:  # G2
    engine = kv_engine(4, 4)
    submit(engine, distinct(4, 0), m=8, rid="R1")
    submit(engine, distinct(4, 1), m=8, rid="R2")
    outs = steps_until_idle(engine)
    assert sum(len(out.preempted) for out in outs) <= 1
    assert engine.request("R1").preemptions == 0


def test_a_waiting_request_of_equal_priority_displaces_nobody() -> None:  # G2
    engine = make_engine(4, 4)
    submit(engine, distinct(12, 0), m=4, rid="R1")
    engine.step()
    submit(engine, distinct(8, 1), m=2, rid="R2")
    outs = steps_until_idle(engine)
    assert not any(out.preempted for out in outs)
    assert engine.request("R2").finish_reason is FinishReason.LENGTH


def test_a_preempted_request_keeps_its_place_in_the_queue() -> None:  # G4
    engine = make_engine(6, 4, max_queue=3)
    for i in (1, 2, 3):
        submit(engine, distinct(8, i), m=8, rid=f"R{i}")
    engine.step()
    for i in (4, 5, 6):
        submit(engine, distinct(4, i), m=1, rid=f"R{i}")
    assert len(engine.scheduler.waiting) == engine.config.max_queue
    assert engine.step().preempted == ["R3"]
    # One more than may queue: whoever was admitted before is not thrown out for that.
    assert engine.request("R3").state is RequestState.PREEMPTED
    assert [seq.seq_id for seq in engine.scheduler.waiting] == ["R3", "R4", "R5", "R6"]
    admitted = [rid for out in steps_until_idle(engine) for rid in out.admitted]
    assert admitted.index("R3") < admitted.index("R4")
    assert engine.request("R3").finish_reason is FinishReason.LENGTH


def test_priority_goes_ahead_of_a_big_request_that_does_not_fit() -> None:  # G5
    for policy in ("priority", "fcfs"):
        engine = make_engine(6, 4, policy=policy)
        submit(engine, distinct(17, 0), m=4, rid="runs", priority=0)  # five blocks, one is free
        engine.step()
        submit(engine, distinct(17, 1), m=1, rid="big", priority=5)
        submit(engine, distinct(4, 2), m=1, rid="small", priority=1)
        out = engine.step()
        if policy == "priority":
            assert out.admitted == ["small"]
            assert engine.request("big").wait_reason is WaitReason.NO_BLOCKS
            assert engine.request("big").wait_blocker == "runs"
        else:
            assert out.admitted == []
            assert engine.request("big").wait_reason is WaitReason.NO_BLOCKS
            assert engine.request("small").wait_reason is WaitReason.HEAD_OF_LINE
            assert engine.request("small").wait_blocker == "big"
            (skip,) = decisions(engine, "skipped")
            assert (skip["request_id"], skip["reason"], skip["other"]) == ("big", "no_blocks", "runs")
            assert (skip["need_blocks"], skip["have_blocks"]) == (5, 1)
        steps_until_idle(engine)
        assert len(engine.request("big").output) == len(engine.request("small").output) == 1


def test_two_chunked_prompts_do_not_hold_and_wait() -> None:  # G7
    engine = kv_engine(6, 4, max_batched_tokens=8)
    submit(engine, distinct(20, 0), m=1, rid="R1")
    submit(engine, distinct(20, 1), m=1, rid="R2")
    outs = steps_until_idle(engine)
    assert all(out.plan.num_tokens > 0 for out in outs)
    assert len(engine.request("R1").output) == len(engine.request("R2").output) == 1


def test_min_tokens_does_not_hide_the_context_length() -> None:  # G8
    view = serve(make_engine(8, 4, max_model_len=8), distinct(6, 0), m=10, min_tokens=5)
    assert len(view.output) == 2
    assert view.finish_reason is FinishReason.LENGTH


def test_min_tokens_puts_a_stop_off() -> None:
    engine = make_engine(8, 4)
    assert len(serve(engine, [1], m=8, stop_token_ids=(1001,)).output) == 2
    view = serve(engine, [2], m=8, stop_token_ids=(1001, 1003), min_tokens=3)
    assert len(view.output) == 4
    assert view.finish_reason is FinishReason.STOP


def test_a_lone_request_that_cannot_grow_ends_soon_with_a_capacity_reason() -> None:  # G9
    engine = make_engine(1, 4)
    rid = submit(engine, distinct(4, 0), m=4)
    outs = steps_until_idle(engine, limit=3)
    assert engine.request(rid).finish_reason is FinishReason.CAPACITY
    assert all(out.plan or out.finished or out.stalled for out in outs)
    assert engine.counters().preemptions == 0


def test_a_lone_request_held_back_by_pins_ends_with_a_capacity_reason() -> None:
    engine = make_engine(4, 4)
    serve(engine, distinct(9, 0))
    for block in range(4):
        if engine.block(block).published_key is not None:
            engine.pin(block)
    view = serve(engine, distinct(4, 1), m=12)
    assert view.finish_reason is FinishReason.CAPACITY
    assert len(view.output) == 5  # two blocks: eight stored tokens, and the last one


def test_a_preempted_request_streams_every_token_once() -> None:  # G10
    engine, big = kv_engine(4, 4), kv_engine(64, 4)
    streamed: dict[str, list[int]] = {"R1": [], "R2": []}
    for i, rid in enumerate(streamed):
        submit(engine, distinct(4, i), m=8, rid=rid)
        submit(big, distinct(4, i), m=8, rid=rid)
    for out in steps_until_idle(engine):
        for rid, tokens in out.tokens.items():
            streamed[rid] += tokens
    big.run()
    assert engine.counters().preemptions >= 1
    for rid, tokens in streamed.items():
        assert tuple(tokens) == big.request(rid).output
        assert len(tokens) == 8


def test_nobody_is_admitted_in_a_step_that_preempted() -> None:
    engine = make_engine(4, 4)
    submit(engine, distinct(4, 0), m=12, rid="R1")
    submit(engine, distinct(8, 1), m=8, rid="R2")
    submit(engine, distinct(1, 2), m=1, rid="R3")
    outs = steps_until_idle(engine)
    assert any(out.preempted for out in outs)
    assert not any(out.preempted and out.admitted for out in outs)
    assert [
        row["reason"] for row in decisions(engine, "skipped") if row["step"] in {o.step for o in outs if o.preempted}
    ]


def test_recomputed_and_restored_tokens_of_a_preempted_request() -> None:
    engine = kv_engine(4, 4)
    submit(engine, distinct(4, 0), m=8, rid="R1")
    submit(engine, distinct(4, 1), m=8, rid="R2")
    outs = steps_until_idle(engine)
    resumed = next(row for row in decisions(engine, "resumed"))
    assert resumed["request_id"] == "R2"
    view = engine.request("R2")
    known = resumed["num_tokens"]
    assert view.computed_tokens == 4 + 8 - 1  # each position once, the last token never
    assert view.restored_tokens % 4 == 0
    assert view.restored_tokens + view.recomputed_tokens == known - 1  # what had been computed before
    assert engine.counters().recomputed_tokens == view.recomputed_tokens
    assert engine.counters().restored_tokens == view.restored_tokens
    assert outs[-1].ended == ["R2"]


def test_victims_that_only_shared_blocks_do_not_make_anybody_wait_for_a_transfer() -> None:
    engine = kv_engine(4, 4, deferred_free_steps=1)
    submit(engine, distinct(14, 0), m=3, rid="a", n=4)
    engine.step()
    assert engine.counters().used == 4
    out = engine.step()  # the others free nothing, but leave the last block to its only owner
    assert out.preempted == ["a#3", "a#2", "a#1"]
    assert list(out.tokens) == ["a"]
    steps_until_idle(engine)
