"""Log-probabilities of a prompt: every value once and at its place, whatever becomes of the request on the way."""

from __future__ import annotations

from typing import Any

import pytest
from engine_helpers import KVExecutor, decisions, distinct, kv_engine, make_engine, score_after, serve, steps_until_idle
from engine_helpers import submit as submit_plain

from kvtop.engine.api import Engine, InvalidRequest, MissReason, NullExecutor
from kvtop.engine.executors.null import hashed_logprob


def submit(engine: Engine, prompt: list[int], m: int = 1, rid: str | None = None, **kw: Any) -> str:
    return submit_plain(engine, prompt, m, rid, prompt_logprobs=True, **kw)


def expected(prompt: list[int]) -> tuple[float, ...]:
    return tuple(score_after(prompt[:i], prompt[i]) for i in range(1, len(prompt)))


@pytest.mark.parametrize("budget", [1, 3, 4, 64])
@pytest.mark.parametrize("length", [1, 2, 8, 9, 13])
def test_all_but_the_first_token_have_a_value_at_every_chunk_size(budget: int, length: int) -> None:
    engine, prompt = kv_engine(16, 4, max_batched_tokens=budget), distinct(length, 0)
    view = serve(engine, prompt, m=3, prompt_logprobs=True)
    assert view.prompt_logprobs == expected(prompt)
    assert view.output == serve(engine, prompt, m=3).output


def test_nothing_is_taken_from_the_cache_and_others_may_take_from_it() -> None:  # M7
    engine, prompt = kv_engine(16, 4), distinct(13, 0)
    serve(engine, prompt)
    view = serve(engine, prompt, prompt_logprobs=True)
    assert (view.cached_tokens, view.computed_tokens, view.miss_reason) == (0, 13, MissReason.PROMPT_LOGPROBS)
    assert view.prompt_logprobs == expected(prompt)
    assert engine.counters().query_tokens == 26
    lookup = decisions(engine, "lookup")[-1]
    assert (lookup["num_tokens"], lookup["reason"]) == (0, "prompt_logprobs")
    fresh = kv_engine(16, 4)
    serve(fresh, prompt, prompt_logprobs=True)
    assert serve(fresh, prompt).cached_tokens == 12


def test_a_policy_that_looks_at_the_cache_sees_no_hit() -> None:
    engine, prompt = kv_engine(16, 4, policy="lpm", max_num_seqs=1), distinct(13, 0)
    serve(engine, prompt)
    submit(engine, prompt, rid="scored")
    submit_plain(engine, prompt, rid="plain")
    order = [name for out in steps_until_idle(engine) for name in out.admitted]
    assert order == ["plain", "scored"]


def test_without_the_cache_the_reason_is_that_it_is_off() -> None:
    view = serve(kv_engine(16, 4, prefix_caching=False), distinct(9, 0), prompt_logprobs=True)
    assert view.miss_reason is MissReason.CACHE_OFF


@pytest.mark.parametrize("config", [{}, {"prefix_caching": False}, {"preemption": "swap", "host_blocks": 8}])
def test_a_preemption_in_the_middle_of_the_prompt_repeats_and_loses_no_value(config: dict[str, Any]) -> None:
    """b has computed 8 of 12 tokens when a takes the last block (as told in the tests of ``kvtop why``)."""
    engine = kv_engine(4, 4, max_batched_tokens=6, **config)
    submit_plain(engine, distinct(4, 1), m=9, rid="a")
    prompt = distinct(12, 2)
    submit(engine, prompt, rid="b")
    partial = []
    while engine.has_requests:
        engine.step()
        engine.check()
        partial.append(len(engine.request("b").prompt_logprobs or ()))
    view = engine.request("b")
    assert view.preemptions == 1
    assert 0 < partial[3] < 11
    assert view.prompt_logprobs == expected(prompt)
    assert view.computed_tokens == 12
    assert view.cached_tokens == view.restored_tokens * ("preemption" not in config) == 0


def test_once_all_values_are_there_a_preempted_answer_may_take_its_blocks_back() -> None:
    engine = kv_engine(4, 4)
    for name in ("a", "b"):
        submit(engine, distinct(4, ord(name)), m=8, rid=name)
    steps_until_idle(engine)
    view = engine.request("b")
    assert (view.preemptions, view.restored_tokens) == (1, 4)
    assert view.prompt_logprobs == expected(distinct(4, ord("b")))


@pytest.mark.parametrize("branches", [{"n": 3}, {"num_beams": 3, "n": 2}])
def test_branches_and_beams_have_the_values_of_their_prompt_once(branches: dict[str, int]) -> None:
    engine, prompt = kv_engine(32, 4, max_batched_tokens=5), distinct(11, 0)
    submit(engine, prompt, m=4, rid="a", **branches)
    steps_until_idle(engine)
    assert engine.request("a").prompt_logprobs == engine.request("a#1").prompt_logprobs == expected(prompt)


@pytest.mark.parametrize("allocator", ["contiguous-max", "contiguous-pow2", "contiguous-oracle"])
def test_contiguous_allocators(allocator: str) -> None:
    prompt = distinct(13, 0)
    view = serve(kv_engine(16, 4, allocator=allocator, max_batched_tokens=4), prompt, m=2, prompt_logprobs=True)
    assert view.prompt_logprobs == expected(prompt)


def test_windowed_groups() -> None:
    engine, prompt = make_engine(32, 4, kv_groups=(None, 8), max_batched_tokens=6), distinct(21, 0)
    serve(engine, prompt)
    view = serve(engine, prompt, prompt_logprobs=True)
    assert (view.cached_tokens, view.miss_reason) == (0, MissReason.PROMPT_LOGPROBS)
    assert view.prompt_logprobs == tuple(hashed_logprob(i, prompt[i]) for i in range(1, 21))


def test_an_abort_in_the_prompt_keeps_what_was_computed() -> None:
    engine, prompt = kv_engine(16, 4, max_batched_tokens=4), distinct(13, 0)
    submit(engine, prompt, rid="a")
    engine.step()
    engine.abort("a")
    assert engine.request("a").prompt_logprobs == expected(prompt)[:4]


def test_the_null_executor_has_a_value_for_every_place_and_others_get_none() -> None:
    engine, prompt = make_engine(16, 4), [7, 7, 7, 7, 7]
    view = serve(engine, prompt, prompt_logprobs=True)
    scores = [hashed_logprob(i, 7) for i in range(1, 5)]
    assert view.prompt_logprobs == tuple(scores)
    assert len(set(scores)) == 4
    assert all(-1 < value <= 0 for value in scores)
    assert serve(engine, prompt).prompt_logprobs is None


def test_an_executor_that_gives_none_is_named() -> None:
    class Silent(NullExecutor):
        name, scores_prompts = "silent", False

    engine = make_engine(8, 4, executor=Silent())
    with pytest.raises(InvalidRequest, match="'a': executor silent gives no prompt_logprobs"):
        submit(engine, [1, 2, 3], rid="a")


def test_a_failed_step_counts_no_value_twice() -> None:
    class Flaky(KVExecutor):
        fails = 0

        def execute(self, plan):
            if self.fails:
                self.fails -= 1
                raise RuntimeError("device lost")
            return super().execute(plan)

    executor, prompt = Flaky(16, 4), distinct(13, 0)
    engine = make_engine(16, 4, executor=executor, max_batched_tokens=4)
    submit(engine, prompt, rid="a")
    engine.step()
    executor.fails = 2
    for _ in range(2):
        with pytest.raises(RuntimeError, match="device lost"):
            engine.step()
    engine.run()
    assert engine.request("a").prompt_logprobs == expected(prompt)
