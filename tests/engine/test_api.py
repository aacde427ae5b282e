"""The public API as an example would use it: what it answers, refuses and explains."""

from __future__ import annotations

import pytest
from engine_helpers import KVExecutor, decisions, distinct, kv_engine, make_engine, serve, steps_until_idle, submit

from kvtop.engine.api import (
    BlockState,
    Engine,
    EngineConfig,
    ExecuteResult,
    FinishReason,
    InvalidRequest,
    KvtopError,
    MissReason,
    NullExecutor,
    Plan,
    QueueFull,
    Recorder,
    RequestState,
    RequestTooLong,
    ResetResult,
    SamplingParams,
    WaitReason,
)
from kvtop.engine.events import RequestEvent, StepEvent


def test_the_example_of_the_design() -> None:
    engine = Engine(
        EngineConfig(
            num_blocks=4, block_size=4, max_num_seqs=8, max_batched_tokens=64, max_model_len=64, policy="fcfs"
        ),
        executor=NullExecutor(),
    )
    assert engine.config.effective_len == 17
    rid = engine.submit([1, 2, 3, 4], SamplingParams(max_tokens=8), request_id="a", arrival_ns=0, priority=0)
    assert rid == "a"
    out = engine.step()
    assert (out.step, out.tokens, out.admitted, out.preempted, out.finished) == (0, {"a": [1000]}, ["a"], [], {})
    assert [(chunk.request_id, chunk.start, chunk.count, chunk.num_samples) for chunk in out.plan] == [("a", 0, 4, 1)]
    view = engine.request("a")
    assert (view.state, view.prompt, view.output) == (RequestState.RUNNING, (1, 2, 3, 4), (1000,))
    (block,) = view.block_table
    assert engine.block(block).state is BlockState.USED
    assert engine.block(block).owners == ("a",)
    assert engine.block(block).published_key is not None
    engine.run()
    view = engine.request("a")
    assert view.output == tuple(range(1000, 1008))
    assert view.finish_reason is FinishReason.LENGTH
    assert (view.cached_tokens, view.computed_tokens, view.preemptions) == (0, 11, 0)
    assert (view.wait_reason, view.miss_reason) == (None, MissReason.LAST_TOKEN)
    counters = engine.counters()
    assert (counters.used, counters.idle, counters.fresh, counters.in_transfer) == (0, 2, 2, 0)
    assert engine.reset_prefix_cache() is ResetResult.DONE
    engine.check()
    assert not engine.abort("a")


def test_branches_of_the_null_executor_are_recognisable() -> None:
    engine = make_engine()
    submit(engine, [1, 2], m=2, rid="a", n=3)
    engine.run()
    assert [engine.request(name).output for name in ("a", "a#1", "a#2")] == [
        (1000, 1001),
        (101_000, 101_001),
        (201_000, 201_001),
    ]


def test_virtual_time_gives_exact_times() -> None:
    engine = make_engine(8, 4, max_batched_tokens=4)
    engine.submit(distinct(8, 0), SamplingParams(max_tokens=3), request_id="a", arrival_ns=0)
    engine.run()
    times = engine.request("a").times
    assert times.t_first_sched_ns == 0
    assert times.t_first_token_ns == 20_000_000
    assert times.t_last_token_ns == times.t_done_ns == 40_000_000


# -- refusals ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompt", "kw", "message"),
    [
        ([], {}, "empty prompt"),
        ([1, -2], {}, "token id -2"),
        ([1], {"extra_key": "x"}, r"extra_key is 'x', expected tags"),
        ([1], {"extra_key": {"salt": 1.5}}, r"extra_key 'salt' is 1.5"),
    ],
)
def test_a_wrong_request_is_refused_alone(prompt: list[int], kw: dict, message: str) -> None:
    engine = make_engine()
    submit(engine, [1, 2], m=2, rid="good")
    with pytest.raises(InvalidRequest, match=message):
        submit(engine, prompt, rid="bad", **kw)
    engine.run()
    assert len(engine.request("good").output) == 2
    with pytest.raises(InvalidRequest, match="no request 'bad'"):
        engine.request("bad")


def test_a_refused_request_is_in_the_stream_with_its_reason() -> None:
    engine = make_engine(4, 4)
    with pytest.raises(RequestTooLong) as caught:
        submit(engine, distinct(20, 0), rid="long")
    assert (caught.value.prompt_tokens, caught.value.effective_len) == (20, 17)
    engine.step()
    events = [e for e in engine.recorder.drain() if isinstance(e, RequestEvent)]
    assert [(e.phase, e.request_id, e.finish_reason) for e in events] == [
        ("arrived", "long", None),
        ("finished", "long", "rejected"),
    ]
    assert events[1].error == str(caught.value)


def test_an_id_in_use_is_refused_and_a_finished_one_is_free() -> None:
    engine = make_engine()
    submit(engine, [1], m=2, rid="a")
    with pytest.raises(InvalidRequest, match="'a' is in use"):
        submit(engine, [2], rid="a")
    engine.run()
    assert engine.request("a").prompt == (1,)
    assert serve(engine, [2], rid="a").prompt == (2,)


def test_an_id_of_our_own_never_collides_with_one_of_the_user() -> None:
    engine = make_engine()
    submit(engine, [1], m=2, rid="r1")
    names = {submit(engine, [2], m=2), submit(engine, [3], m=2)}
    assert len(names) == 2
    assert "r1" not in names
    engine.run()


def test_the_branch_ids_of_a_request_belong_to_it() -> None:
    # Otherwise branch a#1 of request a and a request of that name would be one entry in every table.
    engine = make_engine()
    submit(engine, [1], m=4, rid="a", n=2)
    with pytest.raises(InvalidRequest, match="a#1"):
        submit(engine, [2], m=4, rid="a#1")
    engine.run()
    engine.check()


def test_the_queue_is_bounded() -> None:
    engine = make_engine(8, 4, max_num_seqs=1, max_queue=2)
    submit(engine, [1], m=4, rid="runs")
    engine.step()
    for rid in ("w1", "w2"):
        submit(engine, [2], rid=rid)
    with pytest.raises(QueueFull, match="2 wait"):
        submit(engine, [3], rid="w3")
    assert len(steps_until_idle(engine)) > 1
    assert serve(engine, [3], rid="w3").finish_reason is FinishReason.LENGTH


def test_what_only_paging_can_do_is_refused_by_name() -> None:
    engine = make_engine(8, 4, allocator="contiguous-max", max_model_len=9)
    for call in (engine.reset_prefix_cache, lambda: engine.evict(0)):
        with pytest.raises(KvtopError, match=r"needs the paged allocator.*contiguous-max"):
            call()


def test_evicting_what_is_not_idle_or_has_children_is_refused() -> None:
    engine = make_engine(8, 4)
    serve(engine, distinct(9, 0))
    parent, child = [row["block"] for row in decisions(engine, "publish")]
    fresh = next(b for b in range(8) if engine.block(b).state is BlockState.FRESH)
    for block in (parent, fresh):
        with pytest.raises(InvalidRequest, match=f"cannot evict block {block}"):
            engine.evict(block)
    engine.evict(child)
    engine.evict(parent)
    engine.check()
    assert engine.counters().fresh == 8
    engine.step()  # nothing runs: it only tells what happened between two steps
    first, second = decisions(engine, "evict")
    assert (first["block"], second["block"]) == (child, parent)
    assert first["request_id"] == "forced"


# -- injection -----------------------------------------------------------------------------------------------------


def test_a_constant_key_costs_hits_and_never_gives_a_wrong_one() -> None:
    engine = kv_engine(32, 4, key_fn=lambda parent, tokens, extra: 5)
    prompts = [distinct(13, i % 3) for i in range(9)]
    for prompt in prompts:
        view = serve(engine, prompt, m=3)
        assert view.output == serve(kv_engine(32, 4), prompt, m=3).output
    assert engine.counters().hit_tokens < 13 * 6
    engine.check()


@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_a_fault_at_any_block_only_delays(k: int) -> None:
    engine = kv_engine(8, 4)
    rid = submit(engine, distinct(16, 0), m=4)
    engine.allocator.pool.fault = lambda block: block == k
    assert not engine.step().plan
    assert engine.request(rid).wait_reason is WaitReason.FAULT
    assert engine.counters().fresh == 8
    engine.allocator.pool.fault = None
    engine.run()
    assert len(engine.request(rid).output) == 4


class _Flaky(KVExecutor):
    """Fails ``fails`` times, before it has done anything."""

    fails = 0

    def execute(self, plan: Plan) -> ExecuteResult:
        if self.fails:
            self.fails -= 1
            raise RuntimeError("device lost")
        return super().execute(plan)


def test_a_step_whose_executor_failed_can_be_tried_again() -> None:
    executor = _Flaky(8, 4)
    engine = make_engine(8, 4, executor=executor)
    executor.fails = 3
    rid = submit(engine, distinct(6, 0), m=3, n=2)
    for _ in range(3):
        with pytest.raises(RuntimeError, match="device lost"):
            engine.step()
        engine.check()
    engine.run()
    assert engine.request(rid).output == serve(kv_engine(8, 4), distinct(6, 0), m=3, n=2).output
    assert engine.counters().query_tokens == 6


def test_nothing_is_forked_between_a_failed_step_and_its_repetition() -> None:
    # A branch would share blocks whose copies are still to be made.
    executor = _Flaky(8, 4)
    engine = make_engine(8, 4, executor=executor)
    submit(engine, distinct(6, 0), m=4, rid="a", n=2)
    engine.step()
    executor.fails = 1
    with pytest.raises(RuntimeError, match="device lost"):
        engine.step()
    with pytest.raises(InvalidRequest, match="last step failed"):
        engine.fork("a", 2)
    engine.step()
    assert engine.fork("a", 2) == ["a#2"]
    steps_until_idle(engine)


def test_host_blocks_of_a_failed_return_are_given_back_by_an_abort() -> None:
    executor = _Flaky(4, 4)
    engine = make_engine(4, 4, executor=executor, preemption="swap", host_blocks=4)
    submit(engine, distinct(4, 0), m=8, rid="a")
    submit(engine, distinct(4, 1), m=8, rid="b")
    while engine.request("b").state is not RequestState.PREEMPTED:
        engine.step()
    assert engine.counters().host_used > 0
    while engine.request("a").state is RequestState.RUNNING:
        engine.step()
    executor.fails = 1
    with pytest.raises(RuntimeError, match="device lost"):
        engine.step()
    assert engine.request("b").state is RequestState.RUNNING
    assert engine.abort("b")
    engine.check()
    assert engine.counters().host_used == 0


# -- aborts --------------------------------------------------------------------------------------------------------


def test_waiting_running_and_single_branches_can_be_aborted() -> None:
    engine = kv_engine(8, 4, max_num_seqs=3)
    submit(engine, distinct(5, 0), m=8, rid="a", n=3)
    engine.step()
    submit(engine, distinct(5, 1), m=8, rid="w")
    assert engine.abort("w")
    assert engine.request("w").finish_reason is FinishReason.ABORTED
    assert engine.request("w").output == ()
    assert engine.abort("a#1")
    engine.check()
    assert engine.request("a").state is RequestState.RUNNING
    assert engine.abort("a")  # the request: its other branches with it
    assert engine.counters().used == 0
    assert not engine.has_requests
    assert [engine.request(name).finish_reason for name in ("a", "a#1", "a#2")] == [FinishReason.ABORTED] * 3
    assert not engine.abort("a#2")
    assert not engine.abort("never")


# -- looking in ----------------------------------------------------------------------------------------------------


def test_a_keyframe_is_what_the_views_say() -> None:
    engine = make_engine(12, 4, max_num_seqs=2)
    serve(engine, distinct(9, 0))
    submit(engine, distinct(6, 1), m=5, rid="a", n=2)
    engine.step()
    submit(engine, distinct(6, 2), m=5, rid="w")
    engine.step()
    keyframe = engine.keyframe()
    assert [row.seq_id for row in keyframe.sequences] == ["a", "a#1", "w"]
    for row in keyframe.sequences:
        view = engine.request(row.seq_id)
        assert tuple(row.block_table) == view.block_table
        assert (row.num_tokens, row.num_computed) == (len(view.prompt) + len(view.output), view.num_computed)
        assert row.state == view.state.value
        assert row.wait_reason == (view.wait_reason.value if view.wait_reason else "")
    rows = {row.block: row for row in keyframe.blocks}
    for block in range(12):
        view = engine.block(block)
        assert (block in rows) == (view.state is not BlockState.FRESH)
        if block in rows:
            row = rows[block]
            assert (row.state, row.refcount, row.filled) == (view.state.value, view.refcount, view.tokens_filled)
            assert (row.key, row.uses, row.pins) == (view.published_key, view.uses, view.pins)
            assert sum(block in s.block_table for s in keyframe.sequences) == view.refcount
    assert keyframe.totals["used"] == engine.counters().used
    assert keyframe.num_blocks == 12


def test_being_observed_changes_nothing() -> None:
    outs = []
    for recorder in (None, Recorder()):
        config = EngineConfig(num_blocks=10, block_size=4, max_num_seqs=6, max_batched_tokens=16)
        engine = Engine(config, NullExecutor(), recorder=recorder)
        for i in range(12):
            submit(engine, distinct(3 + i, i % 4), m=8, rid=f"q{i}", n=1 + (i % 5 == 0))
        seen = []
        while engine.has_requests:
            out = engine.step()
            chunks = [(c.request_id, c.start, c.count, tuple(c.sequence.block_table)) for c in out.plan]
            seen.append((out.step, out.tokens, out.finished, out.preempted, out.admitted, out.evicted, chunks))
        assert engine.counters().preemptions
        outs.append((seen, engine.counters()))
    assert outs[0] == outs[1]


def test_a_reason_is_recorded_once_until_it_changes() -> None:
    engine = make_engine(4, 4)
    submit(engine, distinct(12, 0), m=4, rid="a")
    engine.step()
    submit(engine, distinct(12, 1), rid="b")
    submit(engine, distinct(1, 2), rid="c")
    for _ in range(3):
        engine.step()
    skips = decisions(engine, "skipped")
    assert [(r["request_id"], r["reason"], r["other"], r["need_blocks"], r["have_blocks"]) for r in skips] == [
        ("b", "no_blocks", "a", 3, 0)
    ]


# -- why somebody waits --------------------------------------------------------------------------------------------


def _waits(engine: Engine, rid: str) -> tuple[WaitReason | None, str | None]:
    view = engine.request(rid)
    return view.wait_reason, view.wait_blocker


def test_every_reason_to_wait_is_told() -> None:
    seats = make_engine(8, 4, max_num_seqs=1)
    submit(seats, [1], m=4, rid="a")
    submit(seats, [2], rid="b")
    submit(seats, [3], rid="c")
    seats.step()
    assert _waits(seats, "b") == (WaitReason.SEATS, None)
    assert _waits(seats, "c") == (WaitReason.HEAD_OF_LINE, "b")

    budget = make_engine(16, 4, max_batched_tokens=8)
    submit(budget, distinct(8, 0), m=4, rid="a")
    submit(budget, distinct(8, 1), rid="b")
    budget.step()
    assert _waits(budget, "b") == (WaitReason.BUDGET, None)

    preempting = make_engine(4, 4)
    for rid, salt in (("a", 0), ("b", 1)):
        submit(preempting, distinct(8, salt), m=8, rid=rid)
    preempting.step()
    out = preempting.step()
    assert out.preempted == ["b"]
    assert _waits(preempting, "b")[0] is WaitReason.PREEMPTING

    hole = make_engine(6, 4, allocator="contiguous-oracle")
    for i in range(3):
        submit(hole, distinct(5, i), m=4 if i == 1 else 2, rid=f"q{i}")
    hole.step()
    hole.step()  # q0 and q2 ended: two holes of two blocks around q1
    assert hole.counters().fresh == 4
    submit(hole, distinct(9, 9), m=4, rid="big")
    hole.step()
    assert _waits(hole, "big") == (WaitReason.NO_HOLE, "q1")


# -- why a prefix missed -------------------------------------------------------------------------------------------


def test_every_reason_to_miss_is_told() -> None:
    engine = make_engine(5, 4)
    prompt = distinct(9, 0)
    assert serve(engine, prompt).miss_reason is MissReason.NEVER_SEEN
    assert serve(engine, prompt).miss_reason is MissReason.LAST_TOKEN
    assert serve(engine, prompt, extra_key={"salt": "x"}).miss_reason is MissReason.OTHER_SALT
    serve(engine, distinct(17, 3), rid="big")  # takes every block
    engine.recorder.drain()
    assert serve(engine, prompt).miss_reason is MissReason.EVICTED
    (lookup,) = decisions(engine, "lookup")
    assert (lookup["num_tokens"], lookup["reason"], lookup["other"], lookup["age_steps"]) == (0, "evicted", "big", 1)

    running = make_engine(16, 4, max_batched_tokens=8)
    submit(running, distinct(14, 0), m=2, rid="first")
    running.step()
    submit(running, distinct(14, 0), m=2, rid="second")
    running.step()  # the first computes its last six tokens, the second starts with two
    view = running.request("second")
    assert (view.cached_tokens, view.miss_reason) == (8, MissReason.NOT_YET_COMPUTED)

    off = make_engine(8, 4, prefix_caching=False)
    serve(off, prompt)
    view = serve(off, prompt)
    assert (view.cached_tokens, view.miss_reason) == (0, MissReason.CACHE_OFF)


# -- longest prefix match ------------------------------------------------------------------------------------------


def test_lpm_takes_the_longest_cached_prefix_first() -> None:
    engine = make_engine(32, 4, policy="lpm", max_num_seqs=1)
    serve(engine, distinct(16, 0))
    for rid, prompt in (("cold", distinct(16, 5)), ("short", distinct(16, 0)[:6]), ("long", distinct(16, 0))):
        submit(engine, prompt, rid=rid)
    admitted = [rid for out in steps_until_idle(engine) for rid in out.admitted]
    assert admitted == ["long", "short", "cold"]


def test_lpm_starves_nobody_for_longer_than_its_bound() -> None:
    engine = make_engine(32, 4, policy="lpm", policy_params={"aging_steps": 10}, max_num_seqs=1)
    hot = distinct(12, 0)
    serve(engine, hot)
    start = engine.num_steps
    submit(engine, distinct(12, 5), rid="cold")
    admitted_at = None
    for i in range(40):  # a stream of requests that match better
        submit(engine, hot, rid=f"hot{i}")
        out = engine.step()
        if "cold" in out.admitted:
            admitted_at = out.step
            break
    assert admitted_at == start + 10
    assert engine.request("cold").finish_reason is FinishReason.LENGTH


def test_the_stream_of_a_whole_run_is_in_order() -> None:
    engine = make_engine(8, 4)
    for i in range(4):
        submit(engine, distinct(5, i), m=3, rid=f"q{i}")
    engine.run()
    events = engine.recorder.drain()
    steps = [e.step for e in events if isinstance(e, StepEvent)]
    assert steps == sorted(set(steps))
    ended = {e.request_id: i for i, e in enumerate(events) if isinstance(e, RequestEvent) and e.phase == "finished"}
    for i, event in enumerate(events):
        if isinstance(event, StepEvent):
            for kind, *fields in event.decisions:
                assert kind != "finished" or ended[fields[0]] > i


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        (None, "prompt is NoneType, expected a sequence of token ids"),
        ("abc", "prompt is str"),
        (["a"], r"prompt\[0\] is 'a', expected a token id"),
        ([1, 1.5], r"prompt\[1\] is 1\.5"),
        ([1, -1], "token id -1 is outside the vocabulary"),
    ],
)
def test_a_prompt_that_is_no_list_of_token_ids_is_refused_and_the_next_one_works(prompt, words):
    engine = Engine(EngineConfig(num_blocks=4, block_size=4), NullExecutor())
    with pytest.raises(InvalidRequest, match=words):
        engine.submit(prompt)
    rid = engine.submit([1, 2], SamplingParams(max_tokens=2))
    engine.run()
    assert engine.request(rid).output == (1000, 1001)
