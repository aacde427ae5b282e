"""Beam requests in the engine: what is shared and copied, when answers come, who waits and who is refused."""

from __future__ import annotations

import random
from collections.abc import Iterator
from collections.abc import Sequence as Seq
from typing import Any

import pytest
from engine_helpers import (
    STEP_NS,
    KVExecutor,
    decisions,
    distinct,
    expected_answers,
    kv_engine,
    make_engine,
    request_rows,
    steps_until_idle,
    submit,
)

from kvtop.engine.api import FinishReason, InvalidRequest, NullExecutor, SamplingParams, WaitReason
from kvtop.engine.published import default_key
from kvtop.engine.types import RequestState


def names(rid: str, count: int) -> list[str]:
    return [rid, *(f"{rid}#{i}" for i in range(1, count))]


def each_its_own(request_id: str, tokens: Seq[int], num_prompt: int, count: int) -> list[tuple[int, float]]:
    """The first choice keeps the best ``count`` // 2 tokens; after it no beam ever gives way to another."""
    first = len(tokens) == num_prompt
    return [(j, -0.01 * j if first else -100.0 * j) for j in range(count)]


def one_wins(request_id: str, tokens: Seq[int], num_prompt: int, count: int) -> list[tuple[int, float]]:
    """The best beam has all the children: the tokens of any other are improbable."""
    good = all(token == 0 for token in tokens[num_prompt:])
    return [(j, -0.01 * j if good else -50.0) for j in range(count)]


def run(engine: Any, rid: str, prompt: list[int], params: SamplingParams) -> list[list[int]]:
    engine.submit(prompt, params, request_id=rid)
    steps_until_idle(engine)
    return [list(engine.request(name).output) for name in names(rid, params.n)]


def steps_until_idle_by_one(engine: Any) -> Iterator[Any]:
    while engine.has_requests:
        yield engine.step()
        engine.check()


# -- sharing -----------------------------------------------------------------------------------------------------


def test_four_beams_share_the_32_blocks_of_a_prompt_of_512_tokens_and_save_most_of_them() -> None:
    engine = make_engine(64, 16, executor=NullExecutor(top_fn=each_its_own))
    submit(engine, distinct(512, 0), m=12, rid="a", num_beams=4)
    engine.step()
    for _ in range(10):
        engine.step()
        engine.check()
        tables = [engine.request(name).block_table for name in names("a", 4)]
        common = set(tables[0]).intersection(*tables)
        assert [tuple(table[:32]) for table in tables] == [tables[0][:32]] * 4
        assert len(common) == 32
        assert {engine.block(b).refcount for b in common} == {4}
        separate, used = sum(map(len, tables)), engine.counters().used
        assert (separate, used) == (4 * 33, 32 + 4)
        assert (separate - used) / separate == pytest.approx(0.727, abs=0.001)  # saved / without sharing
    steps_until_idle(engine)
    assert engine.counters().copies == 0


@pytest.mark.parametrize(("prompt", "copies_a_step"), [(8, [0, 3, 3, 3]), (9, [3, 3, 3, 0])])
def test_the_first_child_of_a_beam_stays_in_its_place(prompt: int, copies_a_step: list[int]) -> None:
    """All four children come from one beam: three of them are forks, and copy unless a block is just full."""
    engine = make_engine(32, 4, executor=NullExecutor(top_fn=one_wins))
    submit(engine, distinct(prompt, 0), m=8, rid="a", num_beams=4)
    engine.step()
    copies = []
    for _ in copies_a_step:
        before = engine.counters().copies
        engine.step()
        copies.append(engine.counters().copies - before)
    assert copies == copies_a_step
    rows = decisions(engine, "forked", "restarted")
    assert [(row["kind"], row["request_id"]) for row in rows[:3]] == [("forked", f"a#{i}") for i in (1, 2, 3)]
    assert {row["kind"] for row in rows[3:]} == {"restarted"}
    assert {row["other"] for row in rows} == {"a"}


def test_a_dropped_beam_gives_its_blocks_back_tail_first() -> None:
    engine = make_engine(32, 4, executor=NullExecutor(top_fn=one_wins))
    submit(engine, distinct(9, 0), m=3, rid="a", num_beams=2)
    engine.step()
    engine.step()
    table = next(s for s in engine.scheduler.running if s.seq_id == "a#1").block_table
    rows = decisions(engine, "free", "restarted", "share", "chosen")
    last = [row for row in rows if row["step"] == 1 and row["request_id"] == "a#1"]
    assert [row["kind"] for row in last] == ["free"] * 3 + ["restarted"] + ["share"] * 3 + ["chosen"]
    assert [row["block"] for row in last[4:7]] == table
    assert [row["block"] for row in last[1:3]] == table[1::-1]  # the prompt's two blocks, which it has again
    steps_until_idle(engine)


def test_beams_that_start_over_publish_under_the_keys_of_their_own_tokens() -> None:
    engine = kv_engine(200, 2)
    submit(engine, distinct(5, 0), m=30, rid="a", num_beams=4)
    checked = 0
    for out in steps_until_idle_by_one(engine):
        for seq in engine.scheduler.running:
            keys, key = [], 0
            for end in range(2, 2 * len(seq.keys) + 1, 2):
                key = default_key(key, tuple(seq.tokens[end - 2 : end]), None)
                keys.append(key)
            assert seq.keys == keys, f"{seq.seq_id}, step {out.step}"
            published = [engine.block(block).published_key for block in seq.block_table[: seq.num_published]]
            assert published == keys[: len(published)]
            checked += len(published)
    assert checked > 500
    assert len(decisions(engine, "restarted")) > 10


# -- answers -----------------------------------------------------------------------------------------------------


def test_nothing_is_emitted_before_the_end_and_then_every_answer_whole() -> None:
    engine = kv_engine(64, 4)
    params = SamplingParams(max_tokens=7, num_beams=4, n=2)
    engine.submit(distinct(10, 0), params, request_id="a")
    outs = steps_until_idle(engine)
    assert len(outs) == 7
    assert all(not out.tokens and not out.finished for out in outs[:-1])
    want = [answer for answer, _ in expected_answers(distinct(10, 0), params, 1000)]
    assert outs[-1].tokens == {"a": want[0], "a#1": want[1]}
    length, dropped = FinishReason.LENGTH, FinishReason.DROPPED
    assert outs[-1].finished == {"a": length, "a#1": length, "a#2": dropped, "a#3": dropped}
    assert outs[-1].ended == ["a"]
    assert [list(engine.request(name).output) for name in names("a", 4)] == [*want, [], []]
    (row,) = request_rows(engine).values()
    assert (row.output_tokens, row.tpot_ns, row.itl_max_ns, row.finish_reason) == (14, None, None, "length")
    assert row.t_first_token_ns == row.t_last_token_ns == row.t_done_ns == 7 * STEP_NS  # when it is delivered


def test_one_token_to_come_needs_no_second_beam() -> None:
    engine = kv_engine(64, 4)
    params = SamplingParams(max_tokens=1, num_beams=3, n=3)
    answers = run(engine, "a", distinct(10, 0), params)
    assert answers == [answer for answer, _ in expected_answers(distinct(10, 0), params, 1000)]
    assert engine.num_steps == 1


def test_one_beam_is_plain_decoding() -> None:
    engine = kv_engine(64, 4)
    params = SamplingParams(max_tokens=5, num_beams=1, length_penalty=2.0, early_stopping=True)
    engine.submit(distinct(10, 0), params, request_id="a")
    assert [len(out.tokens["a"]) for out in steps_until_idle(engine)] == [1] * 5


def test_the_effective_length_ends_a_search_as_it_ends_any_answer() -> None:
    for config, reason in (({}, FinishReason.CAPACITY), ({"max_model_len": 12}, FinishReason.LENGTH)):
        engine = kv_engine(4, 4, **config)
        params = SamplingParams(max_tokens=20, num_beams=3, n=3)
        answers = run(engine, "a", distinct(9, 0), params)
        limit = engine.config.effective_len
        assert answers == [answer for answer, _ in expected_answers(distinct(9, 0), params, limit)]
        assert {len(answer) for answer in answers} == {limit - 9}
        assert engine.request("a").finish_reason is reason


def test_an_aborted_search_has_no_answer_and_any_beam_stands_for_it() -> None:
    engine = kv_engine(64, 4)
    for rid in ("a", "b"):
        submit(engine, distinct(10, ord(rid)), m=9, rid=rid, num_beams=3)
    for _ in range(4):
        engine.step()
    assert engine.abort("a")
    assert engine.abort("b#2")
    assert not engine.has_requests
    for name in (*names("a", 3), *names("b", 3)):
        assert engine.request(name).finish_reason is FinishReason.ABORTED
        assert engine.request(name).output == ()
    assert (engine.counters().used, len(engine.scheduler.waiting)) == (0, 0)
    engine.check()


# -- pressure ----------------------------------------------------------------------------------------------------


def test_beams_that_do_not_fit_together_are_computed_one_after_the_other() -> None:
    """Four blocks, nothing cached: three beams never fit, and those that make room keep their candidates."""
    engine = kv_engine(4, 4, prefix_caching=False)
    params = SamplingParams(max_tokens=8, num_beams=3, n=3)
    engine.submit(distinct(9, 0), params, request_id="a")
    for out in steps_until_idle_by_one(engine):
        assert len(out.plan) <= 2 or out.step == 1
        # The child of a beam without blocks is admitted like anybody else.
        assert all(seq.block_table for seq in engine.scheduler.running)
    answers = [list(engine.request(name).output) for name in names("a", 3)]
    assert answers == [answer for answer, _ in expected_answers(distinct(9, 0), params, 1000)]
    rows = decisions(engine, "preempted", "skipped")
    assert sum(row["kind"] == "skipped" and row["reason"] == "beams" for row in rows) > 3
    rows = [row for row in rows if row["kind"] == "preempted"]
    assert {row["reason"] for row in rows} == {"no_blocks", "beams"}
    assert all(row["other"] != row["request_id"] for row in rows if row["reason"] == "beams")


def test_groups_that_hold_each_others_seats_go_on() -> None:
    """Three seats and two searches of three beams, whose branches wait for a seat as soon as they are born."""
    engine = kv_engine(64, 4, max_num_seqs=3)
    params = SamplingParams(max_tokens=6, num_beams=3, n=3)
    for rid in ("a", "b"):
        engine.submit(distinct(6, ord(rid)), params, request_id=rid)
    steps_until_idle(engine)
    for rid in ("a", "b"):
        want = [answer for answer, _ in expected_answers(distinct(6, ord(rid)), params, 1000)]
        assert [list(engine.request(name).output) for name in names(rid, 3)] == want


def test_a_beam_that_waits_for_its_group_says_so_and_holds_up_nobody() -> None:
    engine = kv_engine(4, 4, prefix_caching=False)
    submit(engine, distinct(9, 0), m=8, rid="a", num_beams=2)
    for _ in range(40):
        engine.step()
        engine.check()
        waiting = [engine.request(s.seq_id) for s in engine.scheduler.waiting]
        if any(view.wait_reason is WaitReason.BEAMS for view in waiting):
            break
    else:
        pytest.fail("no beam was ever set aside")
    (view,) = [view for view in waiting if view.wait_reason is WaitReason.BEAMS]
    assert view.state is RequestState.PREEMPTED
    head = engine.scheduler.waiting.head()
    assert head is None or head.seq_id != view.request_id
    row = next(row for row in engine.keyframe().sequences if row.seq_id == view.request_id)
    assert (row.wait_reason, row.wait_blocker) == ("beams", "")
    steps_until_idle(engine)


SQUEEZES: list[dict[str, Any]] = [
    {},
    {"prefix_caching": False},
    {"preemption": "swap", "host_blocks": 12},
    {"preemption": "swap", "host_blocks": 3, "deferred_free_steps": 1},
    {"policy": "lpm", "victim": "most-blocks"},
    {"batch_policy": "prefill-first", "max_batched_tokens": 7},
    {"allocator": "contiguous-oracle"},
    {"allocator": "contiguous-pow2", "num_blocks": 16},
]


@pytest.mark.parametrize("config", SQUEEZES, ids=str)
def test_random_searches_under_pressure_answer_as_in_a_roomy_pool(config: dict[str, Any]) -> None:
    rng = random.Random(str(config))
    requests = []
    for number in range(14):
        k = rng.randint(1, 4)
        params = SamplingParams(
            max_tokens=rng.randint(1, 14),
            num_beams=k,
            n=rng.randint(1, k) if k > 1 else 1,
            length_penalty=rng.choice([0.0, 1.0, -1.0]),
            early_stopping=rng.choice([True, False, "never"]),
            stop_token_ids=rng.choice([(), tuple(range(0, 997, 20))]),
        )
        requests.append((distinct(rng.randint(1, 20), number % 5), params))

    def outputs(**changes: Any) -> tuple[dict[str, tuple[int, ...]], Any]:
        engine = kv_engine(**{"block_size": 4, "num_blocks": 11, "max_model_len": 36, "max_num_seqs": 6, **changes})
        for number, (prompt, params) in enumerate(requests):
            engine.submit(prompt, params, request_id=f"q{number}")
        outs = steps_until_idle(engine)
        emitted = [(name, tuple(tokens)) for out in outs for name, tokens in out.tokens.items()]
        beams = {name for name, _ in emitted if requests[int(name.partition("#")[0][1:])][1].num_beams > 1}
        assert len([name for name, _ in emitted if name in beams]) == len(beams), "an answer came twice"
        return {name: engine.request(name).output for name, _ in emitted}, engine.counters()

    roomy, calm = outputs(num_blocks=600, max_num_seqs=64)
    squeezed, counters = outputs(**config)
    assert squeezed == roomy
    assert calm.preemptions == 0
    assert counters.preemptions > 0


# -- refusals ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"num_beams": 0}, "num_beams is 0"),
        ({"num_beams": 2, "temperature": 0.5}, "num_beams is 2 at temperature 0.5, expected 0"),
        ({"num_beams": 2, "max_tokens": 1, "forced_output": (1,)}, "forced_output cannot"),
        ({"num_beams": 2, "n": 3}, "n is 3, expected at most num_beams \\(2\\)"),
        ({"num_beams": 2, "length_penalty": float("nan")}, "length_penalty is nan"),
        ({"num_beams": 2, "length_penalty": "1"}, "length_penalty is '1'"),
        ({"num_beams": 2, "early_stopping": "always"}, "early_stopping is 'always', expected True, False or 'never'"),
        ({"num_beams": 2, "early_stopping": 1}, "early_stopping is 1"),
    ],
)
def test_parameters_that_make_no_search_are_refused(params: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        SamplingParams(**params)


def test_more_beams_than_seats_or_tokens_are_refused() -> None:
    engine = kv_engine(16, 4, max_num_seqs=8, max_batched_tokens=3)
    with pytest.raises(InvalidRequest, match="num_beams is 4, only 3 sequences can run at once"):
        submit(engine, distinct(4, 0), rid="a", num_beams=4)
    assert submit(engine, distinct(4, 0), rid="a", num_beams=3)
    executor = KVExecutor(16, 4)
    executor.vocab_size = 20_000  # type: ignore[attr-defined]
    engine = make_engine(16, 4, executor=executor)
    stops = tuple(range(100))
    submit(engine, [1, 2], rid="a", num_beams=4, stop_token_ids=stops)
    executor.vocab_size = 503  # type: ignore[attr-defined]
    with pytest.raises(InvalidRequest, match="num_beams 4 with 100 stop tokens needs 504 tokens to choose from"):
        submit(engine, [1, 2], rid="b", num_beams=4, stop_token_ids=stops)
    with pytest.raises(InvalidRequest, match="stop strings end no beam"):
        engine.submit([1, 2], SamplingParams(num_beams=2, stop=("x",)), request_id="c")


def test_beams_are_not_forked_from_outside() -> None:
    engine = kv_engine(64, 4)
    submit(engine, distinct(6, 0), m=9, rid="a", num_beams=2)
    engine.step()
    for name in names("a", 2):
        with pytest.raises(InvalidRequest, match="its beams fork by themselves"):
            engine.fork(name, 2)
    steps_until_idle(engine)


def test_only_beams_ask_for_candidates() -> None:
    engine = kv_engine(64, 4)
    submit(engine, distinct(6, 0), m=2, rid="plain", n=2)
    submit(engine, distinct(6, 1), m=2, rid="beams", num_beams=2)
    plan = engine.step().plan
    assert [(c.request_id, c.num_samples, c.num_top) for c in plan] == [("plain", 2, 0), ("beams", 1, 4)]
    steps_until_idle(engine)
