"""Log-probabilities of prompt tokens: which rows of logits they come from, and what they are."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from kvtop.engine.errors import ModelError
from kvtop.engine.executors.torch_rows import Row
from kvtop.engine.types import Chunk

ROWS_AT_ONCE = 64  # a slice of fp32 log-probabilities, 12 MB over 49,152 tokens, instead of a whole chunk's


def scored_rows(rows: Sequence[Row], chunks: Sequence[Chunk]) -> list[int]:
    """Pack indices of every ``Chunk.scored`` position, chunk after chunk. The key of a row is its chunk's index."""
    begin, begins = 0, {}
    for row in rows:
        begins[row.key] = begin
        begin += row.count
    return [begins[index] + p - chunk.start for index, chunk in enumerate(chunks) for p in chunk.scored]


def prompt_scores(logits: Tensor, chunks: Sequence[Chunk]) -> dict[str, list[float]]:
    """By sequence id, from ``logits`` (len(scored_rows), V): natural logarithms over the whole vocabulary, in fp32.

    Raises:
        ModelError: a value is not finite.
    """
    asking = [chunk for chunk in chunks if chunk.scored]
    targets = [chunk.sequence.tokens[p + 1] for chunk in asking for p in chunk.scored]
    columns = torch.tensor(targets, device=logits.device)[:, None]
    values = iter(
        value
        for rows, wanted in zip(logits.split(ROWS_AT_ONCE), columns.split(ROWS_AT_ONCE), strict=True)
        for value in rows.float().log_softmax(-1).gather(-1, wanted)[:, 0].tolist()
    )
    scores = {chunk.request_id: [next(values) for _ in chunk.scored] for chunk in asking}
    for name, found in scores.items():
        if not all(map(math.isfinite, found)):
            raise ModelError(f"the model gave a prompt token of {name} a log-probability that is not finite")
    return scores
