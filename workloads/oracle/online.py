"""Policies without foresight, simulated for one capacity at a time: FIFO and LFU are no stack algorithms.

As in the engine: the blocks of a request stay while it runs, only blocks without cached children are evicted, and of
those the one with the smallest key goes. What does not fit of a request larger than the cache is its tail.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush

from kvtop.workloads.oracle.runs import NO_RUN, Chains


class Cache:
    """Runs in a cache of ``capacity`` blocks. A run may be there in part, its head; ``parts`` are added and taken off
    at its end, each with the mark it was given when it came in.
    """

    def __init__(self, chains: Chains, capacity: int) -> None:
        num_runs = len(chains.size)
        self.size, self.parent = chains.size, chains.parent
        self.capacity = capacity
        self.total = 0
        self.held = [0] * num_runs
        self.parts: list[list[tuple[int, int]]] = [[] for _ in range(num_runs)]  # (blocks, mark)
        self.num_children = [0] * num_runs  # runs behind it of which something is held
        self.in_use = [NO_RUN] * num_runs  # the request that touched it last
        self.uses = [0] * num_runs  # as a hit
        self._version = [0] * num_runs
        self._heap: list[tuple[int, int, int]] = []  # key, run, version: runs held without children

    def mark(self, run: int, now: int) -> int:
        """What to remember of blocks that come in with request ``now``."""
        raise NotImplementedError

    def key(self, run: int, mark: int) -> int:
        """Of blocks with ``mark``: the smallest of all goes first."""
        raise NotImplementedError

    def serve(self, runs: Sequence[int], num_eligible: int, now: int) -> int:
        """Look up, make room, store; return the hits in blocks."""
        hits = found = needed = 0
        for place, run in enumerate(runs):
            held = self.held[run]
            found += held
            needed += self.size[run]
            self.in_use[run] = now
            if held and place < num_eligible:
                hits += held
                self.uses[run] += 1
        self._evict(self.total + min(needed, max(found, self.capacity)) - found - self.capacity, now)
        self._store(runs, now)
        return hits

    def _evict(self, excess: int, now: int) -> None:
        while excess > 0:
            _, run, version = heappop(self._heap)
            if version != self._version[run] or self.num_children[run] or self.in_use[run] == now:
                continue  # those in use come back with the end of their chain
            blocks, mark = self.parts[run].pop()
            taken = min(blocks, excess)
            excess -= taken
            self.total -= taken
            self.held[run] -= taken
            if taken < blocks:
                self.parts[run].append((blocks - taken, mark))
            if self.held[run]:
                self._offer(run)
            elif (parent := self.parent[run]) != NO_RUN:
                self.num_children[parent] -= 1
                if not self.num_children[parent]:
                    self._offer(parent)

    def _store(self, runs: Sequence[int], now: int) -> None:
        last = NO_RUN
        for run in runs:
            held = self.held[run]
            missing = min(self.size[run] - held, self.capacity - self.total)
            if missing > 0:
                self.parts[run].append((missing, self.mark(run, now)))
                self.held[run] = held + missing
                self.total += missing
                if not held and last != NO_RUN:
                    self.num_children[last] += 1
            if not self.held[run]:
                break
            last = run
        if last != NO_RUN and not self.num_children[last]:
            self._offer(last)

    def _offer(self, run: int) -> None:
        self._version[run] += 1
        heappush(self._heap, (self.key(run, self.parts[run][-1][1]), run, self._version[run]))


class FIFO(Cache):
    """First in, first out, however often it was hit."""

    def mark(self, run: int, now: int) -> int:
        return now

    def key(self, run: int, mark: int) -> int:
        return mark


class LFU(Cache):
    """Fewest hits since it came in, then least recently used."""

    def mark(self, run: int, now: int) -> int:
        return self.uses[run]

    def key(self, run: int, mark: int) -> int:
        return (self.uses[run] - mark) << 32 | self.in_use[run]


class LRU(Cache):
    """Least recently used; ``lru_hits`` gives the same for all capacities at once."""

    def mark(self, run: int, now: int) -> int:
        return 0

    def key(self, run: int, mark: int) -> int:
        return self.in_use[run]


def simulate(kind: type[Cache], chains: Chains, capacity: int) -> int:
    """Hits of one policy at one capacity, in blocks: O(log n) a run."""
    cache = kind(chains, capacity)
    return sum(cache.serve(runs, num_eligible, now) for now, (runs, num_eligible) in enumerate(chains.requests))
