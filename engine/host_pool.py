"""Blocks in host memory, by id: where a swapped-out sequence waits, and where evicted prefixes are kept."""

from __future__ import annotations

from kvtop.engine.errors import InvariantError


class HostPool:
    """Host blocks ``first .. first + num_blocks - 1``, without refcounts: each holds one copy that somebody owns."""

    def __init__(self, num_blocks: int, first: int = 0) -> None:
        self.num_blocks = num_blocks
        self.ids = range(first, first + num_blocks)
        self._free = list(reversed(self.ids))

    @property
    def num_used(self) -> int:
        return self.num_blocks - len(self._free)

    def used(self) -> set[int]:
        return set(self.ids).difference(self._free)

    def take(self, k: int) -> list[int] | None:
        """``k`` free blocks, or None (and nothing taken) when there are fewer."""
        if k > len(self._free):
            return None
        return [self._free.pop() for _ in range(k)]

    def give(self, blocks: list[int]) -> None:
        """Raises InvariantError when a block was free already."""
        self._free.extend(reversed(blocks))
        if len(self._free) > self.num_blocks or len(set(self._free)) != len(self._free):
            raise InvariantError(f"host blocks {blocks} are given back twice")
