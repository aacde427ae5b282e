"""Hits over the size of the cache, by policy: the table of policies, and capacities worth looking at."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from kvtop.workloads.oracle.lru import lru_hits
from kvtop.workloads.oracle.online import FIFO, LFU, Cache, simulate
from kvtop.workloads.oracle.opt import opt_hits
from kvtop.workloads.oracle.runs import Chains

NUM_CAPACITIES = 24


class Policy(NamedTuple):
    meaning: str
    hits: Callable[[Chains, Sequence[int]], list[int]]
    """Hits in blocks at each capacity (blocks)."""


def _simulated(kind: type[Cache]) -> Callable[[Chains, Sequence[int]], list[int]]:
    return lambda chains, capacities: [simulate(kind, chains, capacity) for capacity in capacities]


POLICIES: dict[str, Policy] = {
    "fifo": Policy("the block that came in first goes first, however often it was hit", _simulated(FIFO)),
    "lru": Policy("least recently used first", lru_hits),
    "lfu": Policy("fewest hits since it came in first, then least recently used", _simulated(LFU)),
    "opt": Policy("wanted again furthest in the future first: no order of eviction has more hits", opt_hits),
}


def spread_capacities(chains: Chains, count: int = NUM_CAPACITIES) -> list[int]:
    """About ``count`` round numbers of blocks, evenly spaced as ratios, up to what an infinite cache would hold.

    They begin at half the largest request, or at a thousandth of the end where that is more.
    """
    end = max(1, chains.num_distinct)
    begin = min(end, max(1, chains.largest // 2, end // 1000))
    ratio = (end / begin) ** (1 / max(1, count - 1))
    inner = {_round(begin * ratio**k) for k in range(count - 1)}
    return [*sorted(value for value in inner if value < end), end]


def _round(value: float) -> int:
    """To two significant digits."""
    return int(float(f"{value:.1e}"))
