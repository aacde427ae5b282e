"""Sampling: what may be drawn, how often, and that a draw depends on the request alone."""

from __future__ import annotations

import pytest
import torch

from kvtop.engine.executors.sampling import NO_TOKEN, SampleSpec, best, sample, uniform
from kvtop.engine.types import GREEDY_BELOW, SamplingParams

VOCAB = 50


def logits(seed: int = 0, size: int = VOCAB) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed)) * 2


def spec(params: SamplingParams, *, branch: int = 0, num_output: int = 0, num_samples: int = 1, submission: int = 0):
    return SampleSpec(params, submission, branch, num_output, num_samples)


def draw_many(row: torch.Tensor, params: SamplingParams, num: int = 4000) -> torch.Tensor:
    """Frequencies over ``num`` output indices of one request."""
    specs = [spec(params, num_output=i) for i in range(num)]
    tokens = [t[0] for t in sample(row.expand(num, -1), specs, ())]
    return torch.bincount(torch.tensor(tokens), minlength=len(row)) / num


def close(frequencies: torch.Tensor, probabilities: torch.Tensor) -> bool:
    """Total variation distance of a sample of 4000 over 50 tokens: about 0.04 when the distribution is right."""
    return float((frequencies - probabilities).abs().sum() / 2) < 0.08


def test_temperature_zero_takes_the_first_maximum_for_every_branch() -> None:
    row = torch.tensor([[0.0, 3.0, 3.0, 1.0]])
    assert sample(row, [spec(SamplingParams(n=3), num_samples=3)], ()) == [(1, 1, 1)]


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_frequencies_follow_the_softmax(temperature: float) -> None:
    row = logits()
    params = SamplingParams(temperature=temperature, seed=1)
    assert close(draw_many(row, params), (row / temperature).softmax(-1))


def test_top_k_draws_from_the_k_best_in_proportion() -> None:
    row = logits()
    best = row.topk(5)
    expected = torch.zeros(VOCAB).index_copy(0, best.indices, best.values.softmax(-1))
    got = draw_many(row, SamplingParams(temperature=1.0, top_k=5, seed=1))
    assert set(got.nonzero().flatten().tolist()) == set(best.indices.tolist())
    assert close(got, expected)


@pytest.mark.parametrize("top_k", [0, 20])
def test_top_p_draws_from_the_smallest_set_that_reaches_p(top_k: int) -> None:
    row = logits()
    kept = row.clone()
    if top_k:
        kept[row < row.topk(top_k).values[-1]] = float("-inf")
    probabilities, order = kept.softmax(-1).sort(descending=True)
    size = int((probabilities.cumsum(-1) < 0.7).sum()) + 1
    got = draw_many(row, SamplingParams(temperature=1.0, top_p=0.7, top_k=top_k, seed=1))
    assert set(got.nonzero().flatten().tolist()) == set(order[:size].tolist())


def test_top_p_is_right_when_the_nucleus_is_larger_than_the_candidates() -> None:
    row = torch.zeros(5000)  # uniform: p = 0.5 needs half of all tokens, more than the first candidates
    specs = [spec(SamplingParams(temperature=1.0, top_p=0.5, seed=1), num_output=i) for i in range(300)]
    tokens = {t[0] for t in sample(row.expand(300, -1), specs, ())}
    assert len(tokens) > 270


def test_a_tiny_top_p_is_greedy() -> None:
    row = logits(3)
    params = SamplingParams(temperature=1.5, top_p=1e-6, seed=5)
    assert sample(row[None], [spec(params)], ()) == [(int(row.argmax()),)]


def test_a_draw_does_not_depend_on_the_other_rows() -> None:
    params = [
        SamplingParams(temperature=1.0, seed=3),
        SamplingParams(temperature=0.7, top_k=9, seed=3),
        SamplingParams(temperature=1.3, top_p=0.8, seed=4),
        SamplingParams(),
        SamplingParams(temperature=1.0),
    ]
    specs = [spec(p, num_output=i, submission=i) for i, p in enumerate(params)]
    rows = torch.stack([logits(i) for i in range(len(params))])
    together = sample(rows, specs, ())
    assert together == [sample(rows[i : i + 1], [specs[i]], ())[0] for i in range(len(params))]
    assert together[::-1] == sample(rows.flip(0), specs[::-1], ())


def test_a_row_with_nan_gives_no_token_and_the_others_their_own() -> None:
    params = [SamplingParams(), SamplingParams(temperature=1.0, seed=1), SamplingParams(temperature=1.0, seed=2, n=2)]
    specs = [spec(p, num_samples=p.n) for p in params]
    rows = torch.stack([logits(i) for i in range(3)])
    before = sample(rows, specs, ())
    for broken in range(3):
        wrong = rows.clone()
        wrong[broken, 7] = float("nan")
        found = sample(wrong, specs, ())
        assert found.pop(broken) == (NO_TOKEN,) * specs[broken].num_samples
        assert found == [tokens for i, tokens in enumerate(before) if i != broken]


def test_a_device_would_be_waited_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[str] = []
    for name in ("tolist", "item", "__bool__", "__int__", "__float__", "__index__"):
        own = getattr(torch.Tensor, name)
        monkeypatch.setattr(torch.Tensor, name, lambda x, name=name, own=own: (waits.append(name), own(x))[1])
    params = [
        SamplingParams(),
        SamplingParams(temperature=1.0),
        SamplingParams(temperature=0.7, top_k=9),
        SamplingParams(temperature=1.3, top_k=20, top_p=0.8),
    ]
    sample(torch.stack([logits(i) for i in range(4)]), [spec(p, submission=i) for i, p in enumerate(params)], ())
    assert waits == ["tolist"]


def test_the_stream_is_a_function_of_seed_branch_and_index() -> None:
    values = {uniform(seed, 0, branch, i) for seed in (1, 2) for branch in range(3) for i in range(50)}
    assert len(values) == 300
    assert all(0 <= v < 1 for v in values)
    assert uniform(1, 5, 0, 0) == uniform(1, 9, 0, 0)  # a seed makes it independent of when it was submitted
    assert uniform(None, 5, 0, 0) != uniform(None, 9, 0, 0)


def test_branches_from_one_row_equal_the_same_branches_drawn_alone() -> None:
    row, params = logits()[None], SamplingParams(temperature=1.5, seed=7, n=4)
    together = sample(row, [spec(params, num_samples=4)], ())[0]
    assert together == tuple(sample(row, [spec(params, branch=b)], ())[0][0] for b in range(4))
    assert len(set(together)) > 1


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_stops_cannot_be_drawn_before_min_tokens(temperature: float) -> None:
    row = torch.full((1, 6), -20.0)
    row[0, 2], row[0, 4], row[0, 5] = 9.0, 8.0, 1.0
    params = SamplingParams(
        min_tokens=3, temperature=temperature, seed=0, stop_token_ids=(4, 10**9, -1), ignore_eos=False
    )
    for num_output in range(3):
        assert sample(row, [spec(params, num_output=num_output)], (2, 99)) == [(5,)]
    assert sample(row, [spec(params, num_output=3)], (2, 99))[0][0] in (2, 4)
    assert row[0, 2] == 9.0  # the caller's logits are untouched


def test_an_ignored_end_token_may_be_drawn_at_any_time() -> None:
    row = torch.tensor([[0.0, 1.0]])
    assert sample(row, [spec(SamplingParams(min_tokens=3, ignore_eos=True))], (1,)) == [(1,)]


def test_the_best_candidates_have_their_log_probabilities_over_the_whole_vocabulary() -> None:
    rows = torch.stack([logits(1), logits(2)])
    params = SamplingParams(num_beams=2)
    tops = best(rows, [spec(params), spec(params)], [4, 7], ())
    assert [len(top) for top in tops] == [4, 7]
    for row, top in zip(rows, tops, strict=True):
        exact = row.double().softmax(-1).log()
        assert [token for token, _ in top] == exact.argsort(descending=True)[: len(top)].tolist()
        assert all(abs(logprob - float(exact[token])) < 1e-5 for token, logprob in top)


def test_a_forbidden_end_token_is_no_candidate_and_changes_no_other_score() -> None:
    row = logits(3)
    end = int(row.argmax())
    plain, forbidden = (
        best(row[None], [spec(SamplingParams(num_beams=2, min_tokens=least, ignore_eos=False))], [5], (end,))[0]
        for least in (0, 1)
    )
    assert plain[0][0] == end
    assert forbidden[:4] == plain[1:]


@pytest.mark.parametrize("temperature", [5e-324, 1e-308, 1e-20, 9.9e-6])
@pytest.mark.parametrize("more", [{}, {"top_k": 5}, {"top_p": 0.5}])
def test_a_tiny_temperature_is_greedy(temperature: float, more: dict) -> None:
    rows = torch.stack([logits(seed) for seed in range(8)])
    tiny = [spec(SamplingParams(temperature=temperature, seed=1, **more))] * 8
    assert sample(rows, tiny, ()) == sample(rows, [spec(SamplingParams())] * 8, ())


def test_the_smallest_temperature_that_draws_draws_the_maximum() -> None:
    rows = torch.stack([logits(seed) * 100 for seed in range(8)])
    drawn = [spec(SamplingParams(temperature=GREEDY_BELOW, seed=1))] * 8
    assert not drawn[0].params.greedy
    assert sample(rows, drawn, ()) == [(int(row.argmax()),) for row in rows]
