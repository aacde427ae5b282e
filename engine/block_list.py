"""An intrusive doubly linked list over block ids.

Why not a deque or an OrderedDict: a prefix hit takes an idle block out of the middle, and an admission walks the head
without changing it. Two flat integer lists do both in O(1) a block and allocate nothing while the engine runs.
"""

from __future__ import annotations

from collections.abc import Iterator

_OUT = -1  # value of ``next`` for an id that is not in the list


class BlockList:
    """Ids 0..n-1, each in the list at most once. Every operation is O(1) except iteration."""

    __slots__ = ("_end", "_len", "_next", "_prev")

    def __init__(self, n: int) -> None:
        self._end = n  # sentinel: before the first and after the last
        self._next = [_OUT] * n + [n]
        self._prev = [_OUT] * n + [n]
        self._len = 0

    def __len__(self) -> int:
        return self._len

    def __contains__(self, block: int) -> bool:
        return self._next[block] != _OUT

    def __iter__(self) -> Iterator[int]:
        """From the head. The list must not change while it is walked."""
        block = self._next[self._end]
        while block != self._end:
            yield block
            block = self._next[block]

    def push_front(self, block: int) -> None:
        self._link(block, self._end, self._next[self._end])

    def push_back(self, block: int) -> None:
        self._link(block, self._prev[self._end], self._end)

    def remove(self, block: int) -> None:
        before, after = self._prev[block], self._next[block]
        assert after != _OUT, f"block {block} is not in the list"
        self._next[before] = after
        self._prev[after] = before
        self._next[block] = self._prev[block] = _OUT
        self._len -= 1

    def _link(self, block: int, before: int, after: int) -> None:
        assert self._next[block] == _OUT, f"block {block} is in the list already"
        self._next[before] = self._prev[after] = block
        self._prev[block], self._next[block] = before, after
        self._len += 1
