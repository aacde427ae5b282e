"""Requests as chains of blocks, and the blocks in *runs*: neighbours that the same requests ask for.

A run is asked for as a whole or not at all, so a simulated cache handles it at once. A trace of long prompts has far
fewer runs than blocks, and about as many of them whatever the size of a block is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from kvtop.workloads.oracle.prefixes import PrefixTree

NO_RUN = -1


class Request(NamedTuple):
    """The runs of one request from its first block on."""

    runs: tuple[int, ...]
    num_eligible: int  # runs at the head that may be hits; what follows is computed even when it is cached


@dataclass(frozen=True, slots=True)
class Chains:
    """What a cache is asked for. By run: its number of blocks, the run before it, the blocks before it."""

    requests: list[Request]
    size: list[int]
    parent: list[int]  # NO_RUN: it begins the prompt
    depth: list[int]
    num_blocks: int  # of prompts, each counted whenever it is asked for
    block_size: int

    @property
    def num_distinct(self) -> int:
        """Different blocks: what an infinite cache ends up with."""
        return sum(self.size)

    @property
    def largest(self) -> int:
        """Blocks of the largest request."""
        return max((self.depth[r.runs[-1]] + self.size[r.runs[-1]] for r in self.requests if r.runs), default=0)

    def infinite_hits(self) -> int:
        """Hits of an infinite cache, in blocks."""
        seen = bytearray(len(self.size))
        hits = 0
        for runs, num_eligible in self.requests:
            hits += sum(self.size[run] for run in runs[:num_eligible] if seen[run])
            for run in runs:
                seen[run] = 1
        return hits


class End(NamedTuple):
    """Where a request ends in the tree, in blocks from its start."""

    node: int
    in_tree: int  # blocks it leaves behind that end within the tree
    own: int  # and beyond it: nobody else's
    eligible: int  # how many of them all may be hits


@dataclass(slots=True)
class _Runs:
    """The runs made so far, with how many requests touch one and for how many of those it may be a hit."""

    size: list[int] = field(default_factory=list)
    parent: list[int] = field(default_factory=list)
    depth: list[int] = field(default_factory=list)
    counts: list[tuple[int, int]] = field(default_factory=list)

    def extend(self, run: int, start: int, end: int, counts: tuple[int, int]) -> int:
        """Blocks ``start`` to ``end`` behind ``run``: part of it if the same requests touch both, else a new run."""
        if run != NO_RUN and self.counts[run] == counts:
            self.size[run] += end - start
            return run
        self.size.append(end - start)
        self.parent.append(run)
        self.depth.append(start)
        self.counts.append(counts)
        return len(self.size) - 1

    def path(self, run: int) -> list[int]:
        found = []
        while run != NO_RUN:
            found.append(run)
            run = self.parent[run]
        return found[::-1]


def cut_into_runs(tree: PrefixTree, ends: Sequence[End], block_size: int, num_blocks: int) -> Chains:
    """The requests that end at ``ends``, in order. A block belongs to the node that holds its last token."""
    first = [start // block_size for start in tree.start]  # block of each node
    cuts = _count(tree, first, ends)
    runs = _Runs()
    last_run: list[dict[int, int]] = []  # of each node: cut -> the run that ends there
    for node, counts in enumerate(cuts):
        start = first[node]
        run = last_run[tree.parent[node]][start] if node else NO_RUN
        found = {start: run}
        for cut, touching in _touching(counts):
            if cut > start:
                run = found[cut] = runs.extend(run, start, cut, touching)
                start = cut
        last_run.append(found)
    requests = [_request(runs, last_run[end.node][end.in_tree], end) for end in ends]
    return Chains(requests, runs.size, runs.parent, runs.depth, num_blocks, block_size)


def _count(tree: PrefixTree, first: list[int], ends: Sequence[End]) -> list[dict[int, list[int]]]:
    """By node: block -> how many requests end before it, or leave the node there; and of what may be hits the same."""
    cuts: list[dict[int, list[int]]] = [{} for _ in first]
    for end in ends:
        cuts[end.node].setdefault(end.in_tree, [0, 0])[0] += 1
        node, eligible = end.node, min(end.eligible, end.in_tree)
        while eligible < first[node]:
            node = tree.parent[node]
        cuts[node].setdefault(eligible, [0, 0])[1] += 1
    for node in range(len(first) - 1, 0, -1):
        above = cuts[tree.parent[node]].setdefault(first[node], [0, 0])
        for touched, eligible in cuts[node].values():
            above[0] += touched
            above[1] += eligible
    return cuts


def _touching(counts: dict[int, list[int]]) -> list[tuple[int, tuple[int, int]]]:
    """Cuts in order, each with how many requests touch the blocks before it, and may have them as hits."""
    found = []
    touched = eligible = 0
    for cut in sorted(counts, reverse=True):
        touched += counts[cut][0]
        eligible += counts[cut][1]
        found.append((cut, (touched, eligible)))
    return found[::-1]


def _request(runs: _Runs, run: int, end: End) -> Request:
    if end.own:
        counts = (1, 1) if run == NO_RUN or runs.counts[run][0] > 1 else runs.counts[run]  # nobody else's: one run
        run = runs.extend(run, end.in_tree, end.in_tree + end.own, counts)
    path = runs.path(run)
    num_eligible = sum(runs.depth[run] + runs.size[run] <= end.eligible for run in path)
    return Request(tuple(path), num_eligible)
