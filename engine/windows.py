"""KV groups: layers that keep the same tokens. ``None`` keeps every token, a number W only the last W.

The query at position p sees the keys p - W + 1 .. p. With c tokens computed the next query is at c, so a block whose
last position is below c - W + 1 is never read again.
"""

from __future__ import annotations

from collections.abc import Callable

Windows = tuple[int | None, ...]
"""Window (tokens) of each KV group."""


def first_kept(num_computed: int, window: int | None, block_size: int) -> int:
    """Index of the first block that the query at position ``num_computed`` or a later one may read."""
    if window is None or num_computed < window:
        return 0
    return (num_computed - window + 1) // block_size


def span_blocks(window: int, block_size: int) -> int:
    """Blocks that a window can touch at most, wherever it lies: those of one token and the W - 1 before it."""
    return -(-(window - 1) // block_size) + 1


class KVGroups:
    """The groups of one engine, in blocks."""

    def __init__(self, windows: Windows, block_size: int) -> None:
        self.windows = windows
        self._block_size = block_size
        self._spans = [None if w is None else span_blocks(w, block_size) for w in windows]

    def __len__(self) -> int:
        return len(self.windows)

    def first_kept(self, num_computed: int, group: int) -> int:
        """Index of the first block of ``group`` that the query at ``num_computed`` may read."""
        return first_kept(num_computed, self.windows[group], self._block_size)

    def most_held(self, num_tokens: int) -> list[int]:
        """Blocks of each group that a sequence of ``num_tokens`` holds at most, computed token by token."""
        blocks = -(-num_tokens // self._block_size)
        return [blocks if span is None or blocks < span else span for span in self._spans]


def longest_that_fits(pool_blocks: int, windows: Windows, block_size: int) -> int | None:
    """Whole blocks that a lone sequence can reach in a pool of ``pool_blocks``; None: nothing bounds it."""
    groups = KVGroups(windows, block_size)

    def fits(num_blocks: int) -> bool:
        return sum(groups.most_held(num_blocks * block_size)) <= pool_blocks

    # One block more than the pool has: if that fits, nothing but windows counts, and they grow no further.
    return None if fits(pool_blocks + 1) else largest_that(pool_blocks, fits)


def largest_that(limit: int, fits: Callable[[int], bool]) -> int:
    """The largest number up to ``limit`` that fits, where all below it do too; 0 if none does."""
    if limit < 1 or fits(limit):
        return max(0, limit)
    low, high = 0, limit - 1
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low
