"""LRU for every capacity in one pass: a block is a hit wherever its stack distance fits.

Mattson, Gecsei, Slutz and Traiger, "Evaluation techniques for storage hierarchies", IBM Systems Journal 9(2), 1970; the
distances come from a tree of partial sums (Fenwick), O(log n) a run.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kvtop.workloads.oracle.runs import Chains


def lru_hits(chains: Chains, capacities: Sequence[int]) -> list[int]:
    """Hits at each capacity, in blocks.

    Everything is looked up when the request begins, then touched tail first, so its first block is the most recent.
    """
    above, sizes = _distances(chains)
    return [int(np.clip(capacity - above, 0, sizes).sum()) for capacity in capacities]


def _distances(chains: Chains) -> tuple[np.ndarray, np.ndarray]:
    """Of every run that an infinite cache would have: blocks above it in the stack, and its own."""
    size = chains.size
    num_slots = sum(len(request.runs) for request in chains.requests)
    sums = [0] * (num_slots + 1)
    slot = [0] * len(size)  # of the run's latest touch, from 1; 0: never
    above: list[int] = []
    sizes: list[int] = []
    used = total = 0
    for runs, num_eligible in chains.requests:
        for run in runs[:num_eligible]:
            if not slot[run]:
                break
            above.append(total - _sum(sums, slot[run]))
            sizes.append(size[run])
        for run in reversed(runs):
            if slot[run]:
                _add(sums, slot[run], -size[run])
            else:
                total += size[run]
            used += 1
            slot[run] = used
            _add(sums, used, size[run])
    return np.array(above, dtype=np.int64), np.array(sizes, dtype=np.int64)


def _sum(sums: list[int], index: int) -> int:
    """Of slots 1 to ``index``."""
    total = 0
    while index:
        total += sums[index]
        index &= index - 1
    return total


def _add(sums: list[int], index: int, value: int) -> None:
    while index < len(sums):
        sums[index] += value
        index += index & -index
