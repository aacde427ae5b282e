"""What a step computes of one sequence, as attention sees it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Row:
    """``len(tokens)`` tokens of one sequence from position ``start``; ``key`` is the caller's own."""

    key: int
    tokens: Sequence[int]
    start: int
    block_table: Sequence[int]
    other_tables: Sequence[Sequence[int]] = ()  # of the KV groups after the first

    def table(self, group: int) -> Sequence[int]:
        """Block table of a KV group."""
        return self.other_tables[group - 1] if group else self.block_table

    @property
    def count(self) -> int:
        return len(self.tokens)

    @property
    def last(self) -> int:
        """Position of the last token."""
        return self.start + len(self.tokens) - 1


def first_key(position, window: int | None):
    """First position a query at ``position`` (a number or an array) sees."""
    return position * 0 if window is None else np.maximum(position - window + 1, 0)
