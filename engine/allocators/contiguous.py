"""The baselines every paged engine is measured against: one contiguous run of slots a sequence, reserved up front.

    contiguous-max     what the longest request this engine serves would need
    contiguous-pow2    the next power of two of the true length, from a buddy allocator
    contiguous-oracle  the true length: prompt + requested output - 1 (nobody knows it before; a bound on the others)

The run is cut into blocks with consecutive ids, so that scheduler, executor and every chart are those of the paged
engine; nothing is shared and forks copy. (The three are the baselines of Kwon et al., SOSP 2023, §6.1.)
"""

from __future__ import annotations

from abc import abstractmethod
from bisect import insort
from collections.abc import Callable
from typing import ClassVar, Protocol

from kvtop.engine.allocators.base import Admission, Allocator
from kvtop.engine.config import EngineConfig
from kvtop.engine.prefix_cache import Lookup
from kvtop.engine.recorder import AnyRecorder
from kvtop.engine.sequence import Sequence
from kvtop.engine.types import MissReason, Shortage, WaitReason


class Space(Protocol):
    """Free runs of block ids."""

    @property
    def largest(self) -> int:
        """Length of the longest run that can be taken, in blocks."""
        ...

    def find(self, length: int) -> int | None:
        """First block of a run of ``length`` blocks, changing nothing."""
        ...

    def take(self, start: int, length: int) -> None: ...
    def give(self, start: int, length: int) -> None: ...


class Holes:
    """Free runs in order of address, neighbours merged; first fit."""

    def __init__(self, num_blocks: int) -> None:
        self._runs: list[tuple[int, int]] = [(0, num_blocks)]  # (first block, length)

    @property
    def largest(self) -> int:
        return max((length for _, length in self._runs), default=0)

    def find(self, length: int) -> int | None:
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


class Buddies:
    """Free runs of 2^k blocks, each aligned to its length: a run merges with its buddy only (Knuth, TAOCP 1, §2.5)."""

    def __init__(self, num_blocks: int) -> None:
        self._free: dict[int, list[int]] = {}  # length -> first blocks, sorted
        start = 0
        for power in range(num_blocks.bit_length() - 1, -1, -1):
            if num_blocks >> power & 1:  # a pool of 13 blocks is runs of 8, 4 and 1
                self._free[1 << power] = [start]
                start += 1 << power

    @property
    def largest(self) -> int:
        return max((length for length, runs in self._free.items() if runs), default=0)

    def find(self, length: int) -> int | None:
        fitting = [(have, runs[0]) for have, runs in self._free.items() if have >= length and runs]
        return min(fitting)[1] if fitting else None

    def take(self, start: int, length: int) -> None:
        """Take the run at ``start``, splitting off and keeping its upper halves."""
        have = min(size for size, runs in self._free.items() if size >= length and start in runs)
        self._free[have].remove(start)
        while have > length:
            have //= 2
            insort(self._free.setdefault(have, []), start + have)

    def give(self, start: int, length: int) -> None:
        while (buddy := start ^ length) in self._free.get(length, ()):
            self._free[length].remove(buddy)
            start, length = min(start, buddy), length * 2
        insort(self._free.setdefault(length, []), start)


class ContiguousAllocator(Allocator):
    """Base of the three: ``reservation`` says how many blocks a sequence gets, ``space`` where."""

    make_space: ClassVar[Callable[[int], Space]] = Holes

    def __init__(self, config: EngineConfig, recorder: AnyRecorder) -> None:
        super().__init__(config, recorder)
        self.space: Space = type(self).make_space(config.num_blocks)
        self._returning: list[tuple[int, int, int]] = []  # (step, first block, length) while frees are deferred

    @abstractmethod
    def reservation(self, seq: Sequence) -> int:
        """Blocks reserved for ``seq``."""

    def true_length(self, seq: Sequence) -> int:
        """Tokens ``seq`` will store if it uses its whole ``max_tokens``; the last one is never stored."""
        return min(seq.num_prompt + seq.params.max_tokens, self.config.effective_len) - 1

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
            self.space.give(*self._returning.pop(0)[1:])

    def release(self, seq: Sequence) -> None:
        table = seq.block_table
        super().release(seq)
        if not table:
            return
        if self.pool.num_in_transfer:
            self._returning.append((self.pool.last_due, table[0], len(table)))
        else:
            self.space.give(table[0], len(table))

    def _reserve(self, seq: Sequence, need: int, have: int) -> Shortage | None:
        start = self.space.find(need)
        largest = self.space.largest
        if need > have:
            return Shortage(WaitReason.NO_BLOCKS, need, have, largest)
        if start is None:
            return Shortage(WaitReason.NO_HOLE, need, have, largest)
        if self.pool.plan(need) is None:
            return Shortage(WaitReason.FAULT, need, have, largest)
        self.space.take(start, need)
        self._take(list(range(start, start + need)), seq)
        return None


class ContiguousMaxAllocator(ContiguousAllocator):
    """Reserves ``effective length - 1`` slots (the last token is never stored), rounded up to blocks."""

    def reservation(self, seq: Sequence) -> int:
        return self.blocks_for(self.config.effective_len - 1)


class ContiguousPow2Allocator(ContiguousAllocator):
    """Reserves the next power of two of the blocks ``seq`` will really need."""

    make_space = Buddies

    def reservation(self, seq: Sequence) -> int:
        return 1 << (self.blocks_for(self.true_length(seq)) - 1).bit_length()


class ContiguousOracleAllocator(ContiguousAllocator):
    """Reserves exactly the blocks ``seq`` will really need."""

    def reservation(self, seq: Sequence) -> int:
        return self.blocks_for(self.true_length(seq))
