"""Blocks in host memory: where a swapped-out sequence waits."""

from __future__ import annotations

from kvtop.engine.errors import InvariantError


class HostPool:
    """``num_blocks`` host blocks without refcounts: each holds a copy that belongs to one sequence."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._free = list(range(num_blocks - 1, -1, -1))

    @property
    def num_used(self) -> int:
        return self.num_blocks - len(self._free)

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
