"""From logits to tokens. What a request draws depends on its own seed, branch and output index, and on nothing else."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kvtop.engine.types import SamplingParams

# Enough candidates that a nucleus is nearly always inside: a full sort of 49,152 logits takes 3 ms, this 0.2 ms.
NUCLEUS_CANDIDATES = 1024
NO_TOKEN = -1  # of a row with NaN: nothing can be drawn from it


@dataclass(frozen=True, slots=True)
class SampleSpec:
    """One row of logits and the branches that draw from it: ``branch .. branch + num_samples - 1``."""

    params: SamplingParams
    submission: int
    branch: int
    num_output: int  # index of the token to draw
    num_samples: int


def sample(logits: Tensor, specs: Sequence[SampleSpec], eos_token_ids: Sequence[int]) -> list[tuple[int, ...]]:
    """``num_samples`` tokens for each row of ``logits`` (len(specs), V), which is not changed.

    Greedy rows (``SamplingParams.greedy``) take the first maximum, all of them in one operation. A row with NaN
    gives NO_TOKEN. A device is waited for once, at the end; once more for each row that draws with ``top_p`` alone.
    """
    logits = _forbid_stops(logits, specs, eos_token_ids)
    # NaN anywhere in a row shows in its maximum.
    greedy = logits.argmax(-1).masked_fill_(logits.amax(-1).isnan(), NO_TOKEN)
    drawing = [i for i, spec in enumerate(specs) if not spec.params.greedy]
    points = _points([specs[i] for i in drawing], logits.device)
    drawn = [_draw(logits[i], specs[i].params, part) for i, part in zip(drawing, points, strict=True)]
    found = iter(torch.cat([greedy, *drawn]).tolist())
    tokens = [
        (token,) * spec.num_samples for token, spec in zip(itertools.islice(found, len(specs)), specs, strict=True)
    ]
    for i in drawing:
        own = tuple(itertools.islice(found, specs[i].num_samples))
        tokens[i] = tokens[i] if NO_TOKEN in tokens[i] else own
    return tokens


def best(
    logits: Tensor, specs: Sequence[SampleSpec], num_top: Sequence[int], eos_token_ids: Sequence[int]
) -> list[tuple[tuple[int, float], ...]]:
    """The ``num_top`` best (token, log-probability) of each row of ``logits`` (len(specs), V), best first.

    Log-probabilities are over the whole vocabulary, in fp32 as in transformers: what ``min_tokens``
    forbids is left out afterwards, and changes no other score.
    """
    scores = _forbid_stops(logits.float().log_softmax(-1), specs, eos_token_ids)
    values, tokens = scores.topk(max(num_top))
    return [
        tuple(zip(row[:count], scores[:count], strict=True))
        for row, scores, count in zip(tokens.tolist(), values.tolist(), num_top, strict=True)
    ]


def uniform(seed: int | None, submission: int, branch: int, index: int) -> float:
    """The one random number in [0, 1) of an output token, 53 bits; without a seed the submission number is it."""
    stream = f"submission {submission}" if seed is None else f"seed {seed}"
    digest = hashlib.blake2b(f"{stream} branch {branch} token {index}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "big") >> 11) / (1 << 53)


def _points(specs: Sequence[SampleSpec], device: torch.device) -> Sequence[Tensor]:
    """The random numbers of each row, (num_samples,) fp64, sent together."""
    numbers = [
        uniform(spec.params.seed, spec.submission, spec.branch + i, spec.num_output)
        for spec in specs
        for i in range(spec.num_samples)
    ]
    points = torch.tensor(numbers, dtype=torch.float64, pin_memory=device.type == "cuda")
    return points.to(device, non_blocking=True).split([spec.num_samples for spec in specs]) if specs else ()


def _draw(row: Tensor, params: SamplingParams, points: Tensor) -> Tensor:
    """The token at each of ``points`` in [0, 1) of the row's distribution."""
    tokens, cumulative, last = _distribution(row, params)
    total = cumulative.gather(0, last)
    chosen = torch.searchsorted(cumulative, points * total, right=True).minimum(last)
    return chosen if tokens is None else tokens[chosen]


def _distribution(row: Tensor, params: SamplingParams) -> tuple[Tensor | None, Tensor, Tensor]:
    """Candidate tokens, best first (None: all, in vocabulary order), their cumulative probability, in fp64, and the
    index (1,) of the last that may be drawn."""
    scaled = row.double() / params.temperature
    size = scaled.shape[0]
    if not 0 < params.top_k < size and params.top_p >= 1.0:
        return None, scaled.softmax(-1).cumsum(-1), torch.full((1,), size - 1, device=row.device)
    if 0 < params.top_k < size:
        values, tokens = scaled.topk(params.top_k)
        return _nucleus(tokens, values.softmax(-1), params.top_p)
    log_total = scaled.logsumexp(-1)
    values, tokens = scaled.topk(min(NUCLEUS_CANDIDATES, size))
    if (values - log_total).exp().sum() < params.top_p:
        values, tokens = scaled.sort(descending=True)
    return _nucleus(tokens, (values - log_total).exp(), params.top_p)


def _nucleus(tokens: Tensor, probabilities: Tensor, top_p: float) -> tuple[Tensor, Tensor, Tensor]:
    """The fewest best tokens whose probability reaches ``top_p``: at least one."""
    cumulative = probabilities.cumsum(-1)
    return tokens, cumulative, (cumulative[:-1] < top_p).sum().view(1)


def _forbid_stops(logits: Tensor, specs: Sequence[SampleSpec], eos_token_ids: Sequence[int]) -> Tensor:
    """A row that has not reached ``min_tokens`` cannot draw a token that would end it."""
    size = logits.shape[-1]
    rows, columns = [], []
    for i, spec in enumerate(specs):
        if spec.num_output >= spec.params.min_tokens:
            continue
        stops = {*spec.params.stop_token_ids, *(() if spec.params.ignore_eos else eos_token_ids)}
        stops = [token for token in sorted(stops) if 0 <= token < size]
        rows += [i] * len(stops)
        columns += stops
    if not rows:
        return logits
    logits = logits.clone()
    logits[torch.tensor(rows, device=logits.device), torch.tensor(columns, device=logits.device)] = float("-inf")
    return logits
