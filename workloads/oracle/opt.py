"""OPT (Belady): the most hits that any order of eviction can have, by looking into the future.

The rules are those of the other policies (``kvtop.workloads.oracle.online``): while a request runs its blocks take up
room, and between two requests the cache holds at most its capacity. Keeping a block until its next use is worth one
hit, whatever the block, so it is best to let go of the one wanted furthest in the future. A block is never wanted
sooner than the one before it in a prompt: the order keeps chains whole by itself, and breaking one gains nothing.
L. A. Belady, "A study of replacement algorithms for a virtual-storage computer", IBM Systems Journal 5(2), 1966.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush

from kvtop.workloads.oracle.runs import Chains

Wanted = list[tuple[int, ...]]
_DEPTH_BITS = 40


def opt_hits(chains: Chains, capacities: Sequence[int]) -> list[int]:
    """Hits at each capacity, in blocks: one pass a capacity, O(log n) a run."""
    wanted = _next_uses(chains)
    return [_simulate(chains, wanted, capacity) for capacity in capacities]


def _next_uses(chains: Chains) -> Wanted:
    """By request and run: a key that is smaller the later the run can be a hit, then the deeper it is; 0: never."""
    coming = [0] * len(chains.size)
    wanted: Wanted = []
    for index in range(len(chains.requests) - 1, -1, -1):
        runs, num_eligible = chains.requests[index]
        wanted.append(tuple([coming[run] for run in runs]))
        for place, run in enumerate(runs):
            coming[run] = -(((index + 1) << _DEPTH_BITS) + chains.depth[run]) if place < num_eligible else 0
    return wanted[::-1]


def _simulate(chains: Chains, wanted: Wanted, capacity: int) -> int:
    cache = _Cache(chains.size)
    hits = 0
    for (runs, num_eligible), keys in zip(chains.requests, wanted, strict=True):
        hits += sum(map(cache.held.__getitem__, runs[:num_eligible]))
        cache.make_room(runs, capacity)
        cache.store(runs, keys)
        cache.evict(capacity)
    return hits


class _Cache:
    """Runs that will be wanted again, each with the key it was last given; of a run in part, its head."""

    def __init__(self, size: list[int]) -> None:
        self.size = size
        self.held = [0] * len(size)  # blocks
        self.total = 0
        self._key = [0] * len(size)
        self._heap: list[tuple[int, int]] = []  # key, run; those with another key than the run's are stale

    def make_room(self, runs: Sequence[int], capacity: int) -> None:
        """For all blocks of ``runs`` beside what is held of others; a larger request has the cache for itself."""
        found = sum(map(self.held.__getitem__, runs))
        needed = sum(map(self.size.__getitem__, runs))
        # What is held of these runs is wanted now, hence soonest: only others are let go.
        self.evict(found + max(0, capacity - needed))

    def store(self, runs: Sequence[int], keys: Sequence[int]) -> None:
        """All that will be wanted again, be it too much."""
        for run, key in zip(runs, keys, strict=True):
            kept = self.size[run] if key else 0
            self.total += kept - self.held[run]
            self.held[run] = kept
            self._key[run] = key
            if key:
                heappush(self._heap, (key, run))

    def evict(self, capacity: int) -> None:
        """Let go of what is wanted last, until no more than ``capacity`` blocks are held."""
        while self.total > capacity:
            key, run = self._heap[0]
            taken = min(self.held[run], self.total - capacity) if self._key[run] == key else 0
            self.held[run] -= taken
            self.total -= taken
            if not taken or not self.held[run]:
                heappop(self._heap)
