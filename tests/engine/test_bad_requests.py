"""Values of a wrong type or range are refused at the door, in one line: no step ever meets them."""

from __future__ import annotations

import math
import random
from array import array
from typing import Any

import pytest
from engine_helpers import make_engine, steps_until_idle

from kvtop.engine.api import ConfigError, EngineConfig, InvalidRequest, NullExecutor, RequestSpec, SamplingParams
from kvtop.engine.beam import BeamState, Pick
from kvtop.engine.events import RequestEvent
from kvtop.engine.types import GREEDY_BELOW, MAX_BRANCHES


class SmallVocabulary(NullExecutor):
    """Tokens 0 to 9; those of an answer are 0, 1, 2, ..."""

    vocab_size = 10

    def __init__(self) -> None:
        super().__init__(
            token_fn=lambda request_id, branch, index: index % 10,
            top_fn=lambda request_id, tokens, num_prompt, count: [(t, -float(t + 1)) for t in range(count)],
        )


def one_line(error: Exception, name: str) -> None:
    assert name in str(error)
    assert "expected" in str(error)
    assert "\n" not in str(error)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("forced_output", [5, "abc", ("a",) * 16, (1.5,) * 16, (True,) * 16, (3, -2) * 8, iter([1] * 16)]),
        ("stop", [None, 5, "end", b"end", [b"a"], ("",), (5,), iter(["a"]), {"a"}]),
        ("stop_token_ids", [None, 5, "12", ("a",), ([1],), (1.5,), (True,), iter([1]), ("a", 1)]),
        ("temperature", ["0", None, True, -0.1, math.nan, math.inf, 10**400, 1j]),
        ("top_p", ["1", None, True, 0, 1.01, math.nan]),
        ("length_penalty", ["1", None, True, math.nan, 11]),
        ("early_stopping", ["Never", 1, None]),
        ("seed", ["x", 1.5, True]),
        ("prompt_logprobs", ["no", 0, None]),
        ("ignore_eos", ["x", 1, None]),
        *[(name, [True, 2.0, "2", None, -1, 1 << 63]) for name in ("max_tokens", "min_tokens", "n", "top_k")],
        ("num_beams", [True, 2.0, "2", None, 0]),
    ],
)
def test_a_sampling_value_of_another_type_or_range_is_refused(name: str, values: list[Any]) -> None:
    for value in values:
        with pytest.raises(InvalidRequest) as caught:
            SamplingParams(**{name: value})
        one_line(caught.value, name)


def test_sequences_of_a_request_are_its_own_tuples() -> None:
    forced, stop, ids = [4, 5, 6], ["x"], array("i", [1, 2])
    params = SamplingParams(max_tokens=3, forced_output=forced, stop=stop, stop_token_ids=ids)  # pyright: ignore
    forced.append("late")  # pyright: ignore[reportArgumentType]
    stop.clear()
    assert (params.forced_output, params.stop, params.stop_token_ids) == ((4, 5, 6), ("x",), (1, 2))
    assert SamplingParams(stop_token_ids=range(3)).stop_token_ids == (0, 1, 2)  # pyright: ignore[reportArgumentType]
    assert SamplingParams(seed=10**40, top_p=1, temperature=2).seed == 10**40


BAD_SPECS: list[tuple[str, Any]] = [
    *[("params", value) for value in ({"n": 1}, {}, 0, "x")],
    *[("priority", value) for value in ("x", None, math.nan, 2.5, True, 1 << 63)],
    *[("arrival_ns", value) for value in ("x", 1.5, True, 1 << 63)],
    *[("request_id", value) for value in (5, ["a"], b"a")],
    *[("block_keys", value) for value in ([1], "x", {0: [1]}, {"0": "x"}, {-1: "x"}, {0: None}, {True: 1}, {0: True})],
    *[(name, value) for name in ("tenant", "klass", "session_id", "parent_request_id") for value in (None, 5, ["a"])],
    ("turn", "x"),
]


@pytest.mark.parametrize(("name", "value"), BAD_SPECS)
def test_a_field_of_another_type_is_refused_and_the_others_are_served(name: str, value: Any) -> None:
    engine = make_engine(16, 4, policy="priority")
    engine.submit([1, 2, 3], SamplingParams(max_tokens=2), request_id="good")
    before = engine.recorder.has_decisions, len(engine.accountant.sealer.pending), engine._num_submitted
    with pytest.raises(InvalidRequest) as caught:
        engine.submit_spec(RequestSpec(prompt=[1, 2, 3], **{name: value}))
    one_line(caught.value, name)
    assert (engine.recorder.has_decisions, len(engine.accountant.sealer.pending), engine._num_submitted) == before
    engine.submit([4, 5], SamplingParams(max_tokens=2), request_id="next")
    steps_until_idle(engine)
    assert [len(engine.request(rid).output) for rid in ("good", "next")] == [2, 2]


def test_submit_does_not_take_something_falsy_for_the_default() -> None:
    with pytest.raises(InvalidRequest, match="params is dict"):
        make_engine().submit([1], {})  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("where", ["check", "prepare", "push"])
def test_whatever_is_raised_at_the_door_the_log_has_an_end(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine()
    owner = {"check": engine._intake, "prepare": engine.accountant.endings, "push": engine.scheduler.waiting}[where]

    def fails(*_: Any) -> None:
        raise ZeroDivisionError("of somebody's policy")

    with monkeypatch.context() as patch:
        patch.setattr(type(owner), where, fails)
        with pytest.raises(ZeroDivisionError):
            engine.submit([1, 2], request_id="bad")
    assert not engine.has_requests
    engine.submit([1], SamplingParams(max_tokens=1), request_id="bad")  # the name is free
    engine.run()
    events = [e for e in engine.recorder.drain() if isinstance(e, RequestEvent)]
    phases = [(e.req_index, e.phase, e.finish_reason) for e in events]
    assert [p for p in phases if p[0] == 0] == [(0, "arrived", None), (0, "finished", "rejected")]
    assert [p for p in phases if p[0] == 1] == [(1, "arrived", None), (1, "finished", "length")]


def test_forced_tokens_lie_in_the_vocabulary() -> None:
    engine = make_engine(executor=SmallVocabulary())
    with pytest.raises(InvalidRequest, match="forced_output has 10, the vocabulary is 0 to 9"):
        engine.submit([1], SamplingParams(max_tokens=2, forced_output=(9, 10)))
    rid = engine.submit([1], SamplingParams(max_tokens=2, forced_output=(9, 0)))
    engine.run()
    assert engine.request(rid).output == (9, 0)


def test_min_tokens_needs_a_token_that_does_not_stop() -> None:
    engine, every = make_engine(executor=SmallVocabulary()), tuple(range(10))
    with pytest.raises(InvalidRequest, match="min_tokens is 1, but all 10 tokens of the vocabulary are stop tokens"):
        engine.submit([1], SamplingParams(min_tokens=1, stop_token_ids=every))
    with pytest.raises(InvalidRequest, match="all 10 tokens"):
        engine.submit([1], SamplingParams(min_tokens=1, stop_token_ids=(*every, 10, -1)))
    # Nothing is forbidden here; here one token is left, and ten ids of which one is none; here the tokens are given.
    engine.submit([1], SamplingParams(stop_token_ids=every))
    engine.submit([1], SamplingParams(min_tokens=1, stop_token_ids=(*every[1:], 10)))
    engine.submit([1], SamplingParams(min_tokens=1, max_tokens=2, stop_token_ids=every, forced_output=(1, 2)))


def test_eos_counts_among_the_stop_tokens_of_min_tokens() -> None:
    engine = make_engine(executor=SmallVocabulary(), eos_token_ids=(0,))
    rest = tuple(range(1, 10))
    engine.submit([1], SamplingParams(min_tokens=1, stop_token_ids=rest))
    with pytest.raises(InvalidRequest, match="all 10 tokens"):
        engine.submit([1], SamplingParams(min_tokens=1, stop_token_ids=rest, ignore_eos=False))


def test_stop_ids_outside_the_vocabulary_do_not_count_for_beams() -> None:
    engine = make_engine(executor=SmallVocabulary())
    answers = []
    for stops in ((), range(5000, 6000), (10, -1)):
        params = SamplingParams(max_tokens=3, num_beams=2, stop_token_ids=tuple(stops))
        rid = engine.submit([1], params)
        engine.run()
        answers.append(engine.request(rid).output)
    assert answers[1:] == answers[:1] * 2
    with pytest.raises(InvalidRequest, match="with 4 stop tokens needs 14"):
        engine.submit([1], SamplingParams(num_beams=2, stop_token_ids=(1, 2, 3, 4, 10, 11)))


@pytest.mark.parametrize("temperature", [5e-324, 1e-308, 1e-9, math.nextafter(GREEDY_BELOW, 0)])
def test_beams_take_a_temperature_that_is_greedy(temperature: float) -> None:
    assert SamplingParams(num_beams=2, temperature=temperature).greedy
    with pytest.raises(InvalidRequest, match="at temperature 1e-05"):
        SamplingParams(num_beams=2, temperature=GREEDY_BELOW)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("num_blocks", [True, "8", 1 << 63]),
        ("max_model_len", ["5", 5.0, True]),
        ("max_queue", ["x", -1, 1.5, True]),
        ("kv_groups", [None, ("a",), (8.0,), (True,), [None], 8, ()]),
        ("chunked_prefill", ["no", 0, None]),
        ("prefix_caching", ["x", 1]),
        ("eos_token_ids", [5, "12", ("a",), None]),
        ("policy_params", [None, [1]]),
        *[(name, [5, None]) for name in ("policy", "batch_policy", "victim", "eviction", "allocator", "preemption")],
        ("kv_dtype", [8]),
    ],
)
def test_a_config_value_of_another_type_is_refused(name: str, values: list[Any]) -> None:
    for value in values:
        with pytest.raises(ConfigError) as caught:
            EngineConfig(**{"num_blocks": 8, name: value})
        one_line(caught.value, name)


@pytest.mark.parametrize("block", [-1, 8, 1.0, "a", None, True, [1]])
def test_a_block_that_is_none_is_named(block: Any) -> None:
    engine = make_engine(8, 4)
    for call in (engine.pin, engine.unpin, engine.block, engine.evict):
        with pytest.raises(InvalidRequest, match="blocks are 0 to 7"):
            call(block)
    engine.check()


@pytest.mark.parametrize("n", ["2", 2.5, None, True, 1, 0])
def test_a_fork_takes_a_whole_number_of_branches(n: Any) -> None:
    engine = make_engine(8, 4)
    engine.submit([1, 2, 3], SamplingParams(max_tokens=3), request_id="a")
    engine.step()
    with pytest.raises(InvalidRequest, match="n is the total and at least 2"):
        engine.fork("a", n)
    assert engine.fork("a", 2) == ["a#1"]


@pytest.mark.parametrize("name", ["n", "num_beams"])
def test_the_branches_of_a_request_are_bounded(name: str) -> None:
    too_many: dict[str, Any] = {name: MAX_BRANCHES + 1}
    with pytest.raises(InvalidRequest) as caught:
        SamplingParams(**too_many)
    one_line(caught.value, name)
    assert f"is 1025, expected at most {MAX_BRANCHES}" in str(caught.value)
    most: dict[str, Any] = {name: MAX_BRANCHES}
    assert getattr(SamplingParams(**most), name) == MAX_BRANCHES


def test_more_branches_than_seats_are_answered_one_after_the_other() -> None:
    engine = make_engine(8, 4, max_num_seqs=2)
    engine.submit([1, 2, 3], SamplingParams(max_tokens=3, n=MAX_BRANCHES // 100), request_id="a")
    finished = [name for out in steps_until_idle(engine) for name in out.finished]
    assert sorted(finished) == sorted(["a", *(f"a#{i}" for i in range(1, MAX_BRANCHES // 100))])


def test_forks_count_towards_the_bound() -> None:
    engine = make_engine(8, 4)
    engine.submit([1, 2, 3], SamplingParams(max_tokens=9), request_id="a")
    engine.step()
    engine.fork("a", 2)
    with pytest.raises(InvalidRequest, match=f"more than {MAX_BRANCHES}"):
        engine.fork("a", MAX_BRANCHES)
    assert len(engine.fork("a", 3)) == 2
    engine.check()


def choose_by_sorting(state: BeamState, candidates: Any, num_output: int) -> list[Pick]:
    """Which beams go on, by a stable sort of everything."""
    scored = [
        Pick(parent, token, state.scores[parent] + logprob)
        for parent, tokens in enumerate(candidates)
        for token, logprob in tokens
    ]
    best = sorted(scored, key=lambda pick: -pick.score)[: state.num_top]
    going_on = [p for p in best if num_output < state.params.min_tokens or p.token not in state.stops]
    return going_on[: state.num_beams]


def test_a_choice_is_that_of_a_stable_sort_with_many_equal_scores() -> None:
    rng, num_ties = random.Random(3), 0
    for _ in range(300):
        beams, stops = rng.randint(2, 5), frozenset(rng.sample(range(40), rng.randint(0, 3)))
        params = SamplingParams(max_tokens=9, num_beams=beams, min_tokens=rng.choice([0, 2]), early_stopping="never")
        state = BeamState(params, stops, 9)
        outputs: list[list[int]] = [[]]
        while outputs and len(outputs[0]) < 5:
            rows = [
                list(zip(rng.sample(range(40), state.num_top), sorted(scores, reverse=True), strict=True))
                for scores in [[-rng.randint(0, 3) / 2 for _ in range(state.num_top)] for _ in outputs]
            ]
            expected = choose_by_sorting(state, rows, len(outputs[0]) + 1)
            picks = state.choose(rows, outputs)
            assert picks in (expected, [])
            num_ties += len(picks) - len({pick.score for pick in picks})
            outputs = [[*outputs[pick.parent], pick.token] for pick in picks]
    assert num_ties > 100
