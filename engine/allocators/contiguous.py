"""The baseline every paged engine is measured against: one contiguous run of slots a sequence, reserved up front.

``contiguous-max`` reserves what the longest possible request would need. The run is cut into blocks with consecutive
ids, so that scheduler, executor and every chart are those of the paged engine; nothing is shared and forks copy.
"""

from __future__ import annotations

from bisect import insort

from kvtop.engine.allocators.base import Admission, Allocator
from kvtop.engine.config import EngineConfig
from kvtop.engine.prefix_cache import Lookup
from kvtop.engine.recorder import AnyRecorder
from kvtop.engine.sequence import Sequence
from kvtop.engine.types import MissReason, Shortage, WaitReason


class Holes:
    """Free runs of block ids, in order of address, neighbours merged."""

    def __init__(self, num_blocks: int) -> None:
        self._runs: list[tuple[int, int]] = [(0, num_blocks)]  # (first block, length)

    @property
    def largest(self) -> int:
        return max((length for _, length in self._runs), default=0)

    def first_fit(self, length: int) -> int | None:
        """First block of the lowest hole of at least ``length`` blocks. Complexity: O(holes)."""
        return next((start for start, have in self._runs if have >= length), None)

    def take(self, start: int, length: int) -> None:
        """Cut ``length`` blocks off the front of the hole that begins at ``start``."""
        index = next(i for i, (first, _) in enumerate(self._runs) if first == start)
        have = self._runs.pop(index)[1]
        if have > length:
            insort(self._runs, (start + length, have - length))

    def give(self, start: int, length: int) -> None:
        insort(self._runs, (start, length))
        merged: list[tuple[int, int]] = []
        for first, size in self._runs:
            if merged and sum(merged[-1]) == first:
                merged[-1] = (merged[-1][0], merged[-1][1] + size)
            else:
                merged.append((first, size))
        self._runs = merged


class ContiguousMaxAllocator(Allocator):
    """Reserves ``effective length - 1`` slots a sequence (the last token is never stored), rounded up to blocks."""

    def __init__(self, config: EngineConfig, recorder: AnyRecorder) -> None:
        super().__init__(config, recorder)
        self.holes = Holes(config.num_blocks)
        self._returning: list[tuple[int, int, int]] = []  # (step, first block, length) while frees are deferred

    def reservation(self, seq: Sequence) -> int:
        """Blocks reserved for ``seq``."""
        return self.blocks_for(self.config.effective_len - 1)

    def try_admit(self, seq: Sequence, budget: int, running: list[Sequence]) -> Admission | Shortage:
        need = self.reservation(seq)
        have = self.pool.num_fresh - (self.config.reserve_blocks if running else 0)
        if isinstance(shortage := self._reserve(seq, need, have), Shortage):
            return shortage
        count = min(seq.num_tokens, budget)
        return Admission(0, count, need, have, Lookup([], MissReason.CACHE_OFF))

    def grow(self, seq: Sequence, end: int) -> Shortage | None:
        assert end <= len(seq.block_table) * self.block_size, "a reservation covers every length a request can reach"
        return None

    def fork(self, parent: Sequence, child: Sequence) -> Shortage | None:
        shortage = self._reserve(child, self.reservation(child), self.pool.num_fresh)
        if shortage is not None:
            return shortage
        for index in range(self.blocks_for(parent.num_computed)):
            self._copy_block(parent.block_table[index], child.block_table[index], child, index)
        child.num_computed = parent.num_computed
        return None

    def begin_step(self, step: int) -> None:
        super().begin_step(step)
        while self._returning and self._returning[0][0] <= step:
            self.holes.give(*self._returning.pop(0)[1:])

    def release(self, seq: Sequence) -> None:
        table = seq.block_table
        super().release(seq)
        if not table:
            return
        if self.config.deferred_free_steps:
            self._returning.append((self.step + self.config.deferred_free_steps, table[0], len(table)))
        else:
            self.holes.give(table[0], len(table))

    def _reserve(self, seq: Sequence, need: int, have: int) -> Shortage | None:
        start = self.holes.first_fit(need)
        largest = self.holes.largest
        if need > have:
            return Shortage(WaitReason.NO_BLOCKS, need, have, largest)
        if start is None:
            return Shortage(WaitReason.NO_HOLE, need, have, largest)
        if self.pool.plan(need) is None:
            return Shortage(WaitReason.FAULT, need, have, largest)
        self.holes.take(start, need)
        self._take(list(range(start, start + need)), seq)
        return None
