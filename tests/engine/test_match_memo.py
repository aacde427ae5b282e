"""What a lookup would find is remembered, and never longer than it is true."""

from __future__ import annotations

from engine_helpers import distinct, make_engine, submit

from kvtop.engine.sequence import Request, Sequence
from kvtop.engine.types import RequestSpec


def a_sequence(tokens: list[int]) -> Sequence:
    request = Request("x", RequestSpec(tokens), 0, 0, 0)
    return Sequence("x", 0, request, (0, 0, 0, 0), list(tokens), len(tokens))


def test_it_is_asked_again_when_the_sequence_has_grown_though_the_tree_has_not_changed() -> None:
    engine = make_engine(16, 4)
    stem = distinct(8, 0)
    submit(engine, [*stem, 1], m=1, rid="a")
    engine.run()
    seq, cached = a_sequence(stem[:4]), engine.allocator.cached_tokens
    assert cached(seq) == 0  # one token is always computed
    seq.tokens += stem[4:6]
    assert cached(seq) == 4
    seq.tokens += [*stem[6:], 2]
    assert cached(seq) == 8


def test_a_beam_that_starts_over_forgets_what_it_would_have_found() -> None:
    engine = make_engine(16, 4)
    stem = distinct(8, 0)
    submit(engine, [*stem, 1], m=1, rid="a")
    engine.run()
    seq, other, cached = a_sequence([*stem, 2]), a_sequence([*distinct(8, 1), 3]), engine.allocator.cached_tokens
    assert (cached(seq), cached(other)) == (8, 0)
    seq.start_over(other, now_ns=0)  # as many tokens, and the tree has not changed
    assert cached(seq) == 0
    other.start_over(a_sequence([*stem, 4]), now_ns=0)
    assert cached(other) == 8


def test_without_chunks_what_is_left_of_a_prompt_is_held_against_the_budget_as_it_is_now() -> None:
    engine = make_engine(16, 4, policy="lpm", chunked_prefill=False, max_model_len=33, max_batched_tokens=32)
    stem = distinct(12, 0)
    submit(engine, [*stem, 1], m=1, rid="a")
    engine.run()
    seq = a_sequence(stem[:3])
    assert engine.allocator.cached_tokens(seq) == 0
    seq.tokens += [*stem[3:], *range(8)]
    assert engine.scheduler._refusal(seq, 8) is None, "20 tokens less the 12 that are cached"
    refusal = engine.scheduler._refusal(seq, 7)
    assert refusal is not None
    assert (refusal.need, refusal.have) == (8, 7)
