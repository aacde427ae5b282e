"""Prompt lengths, output lengths and block boundaries."""

from __future__ import annotations

import pytest
from engine_helpers import KVExecutor, distinct, kv_engine, make_engine, serve, steps_until_idle, submit

from kvtop.engine.api import FinishReason, InvalidRequest, RequestTooLong, SamplingParams


@pytest.mark.parametrize(("length", "cached"), [(1, 0), (4, 0), (7, 4), (8, 4), (9, 8)])
def test_one_token_is_always_computed(length: int, cached: int) -> None:  # D1
    engine = kv_engine(8, 4)
    prompt = distinct(length, 0)
    cold = serve(engine, prompt)
    warm = serve(engine, prompt)
    assert (cold.cached_tokens, warm.cached_tokens) == (0, cached)
    assert warm.computed_tokens == length - cached
    assert warm.output == cold.output


def test_an_empty_prompt_is_an_error_of_that_request_alone() -> None:  # D2
    engine = make_engine()
    with pytest.raises(InvalidRequest, match="empty prompt"):
        submit(engine, [])
    assert len(serve(engine, [1]).output) == 1


def test_the_last_block_of_an_exact_multiple_is_full() -> None:  # D3
    engine = make_engine(12, 4)
    submit(engine, distinct(8, 0), m=3, rid="a")
    engine.step()
    table = engine.request("a").block_table
    assert len(table) == 2
    assert [engine.block(b).tokens_filled for b in table] == [4, 4]
    engine.step()  # the ninth token needs a third block
    table = engine.request("a").block_table
    assert len(table) == 3
    assert [engine.block(b).tokens_filled for b in table] == [4, 4, 1]


@pytest.mark.parametrize(("length", "blocks", "last"), [(16, 1, 16), (17, 2, 1), (32, 2, 16), (33, 3, 1)])
def test_no_block_too_many_at_a_multiple(length: int, blocks: int, last: int) -> None:  # D4
    engine = make_engine(8, 16)
    submit(engine, distinct(length, 0), m=2, rid="a")
    engine.step()
    table = engine.request("a").block_table
    assert len(table) == blocks
    assert engine.block(table[-1]).tokens_filled == last


def test_a_prompt_of_the_context_length_is_refused_and_one_less_gives_one_token() -> None:  # D6
    engine = make_engine(8, 4, max_model_len=8)
    with pytest.raises(RequestTooLong, match=r"prompt of 8 tokens.*effective length 8"):
        submit(engine, distinct(8, 0))
    view = serve(engine, distinct(7, 0), m=5)
    assert len(view.output) == 1
    assert view.finish_reason is FinishReason.LENGTH


def test_the_context_length_is_not_overrun() -> None:  # D7
    view = serve(make_engine(8, 4, max_model_len=8), distinct(5, 0), m=100)
    assert len(view.output) == 3
    assert view.finish_reason is FinishReason.LENGTH


def test_no_tokens_cannot_be_asked_for_and_one_is_one() -> None:  # D8
    with pytest.raises(InvalidRequest, match="max_tokens is 0"):
        SamplingParams(max_tokens=0)
    assert len(serve(make_engine(), distinct(4, 0), m=1).output) == 1


def test_exactly_the_tokens_asked_for_at_every_length() -> None:  # D9
    for p in range(1, 10):
        for m in range(1, 10):
            view = serve(kv_engine(8, 4), distinct(p, 0), m=m)
            assert len(view.output) == m, f"p={p} m={m}"
            assert view.computed_tokens == p + m - 1
            assert view.finish_reason is FinishReason.LENGTH


def test_block_size_one() -> None:  # D10
    executor = KVExecutor(8, 1)
    engine = make_engine(8, 1, executor=executor)
    submit(engine, distinct(3, 0), m=3, rid="a")
    used = []
    executor.on_execute = lambda plan: used.append(engine.counters().used)
    steps_until_idle(engine)
    assert max(used) == 5
    assert engine.request("a").computed_tokens == 5
    assert len(engine.request("a").output) == 3


def test_a_block_larger_than_the_context_length() -> None:  # D10
    view = serve(kv_engine(2, 64, max_model_len=10), distinct(4, 0), m=100)
    assert len(view.output) == 6
    assert view.finish_reason is FinishReason.LENGTH


def test_the_last_full_block_of_a_finished_request_is_found_again() -> None:  # D12
    engine = kv_engine(8, 4)
    first = serve(engine, distinct(8, 0), m=5)
    follow_up = [*first.prompt, *first.output, 5]
    assert len(follow_up) == 14
    assert serve(engine, follow_up).cached_tokens == 12


def test_the_chunk_limit_does_not_cap_reuse() -> None:  # D13
    engine = kv_engine(16, 4, max_batched_tokens=8)
    serve(engine, distinct(33, 0))
    assert serve(engine, distinct(33, 0)).cached_tokens == 32
    assert serve(engine, distinct(36, 0)).cached_tokens == 32
