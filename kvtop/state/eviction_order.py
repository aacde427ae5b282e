"""Which idle block goes next, and when: the engine's order of eviction, as the decision log tells it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from kvtop.state.model import IDLE, PoolState, RunState
from kvtop.state.prefix_tree import ABSENT, PrefixTree
from kvtop.state.windows import recent_rate

if TYPE_CHECKING:
    import numpy as np

NOT_TOLD = "not reported"  # the policy of attached servers
EVICTION_WINDOW_NS = 10_000_000_000

_Keys = Callable[[PoolState], "list[np.ndarray]"]


def _lru(pool: PoolState) -> list[np.ndarray]:
    """In order of release; before the log began, by last use."""
    return [column(pool.released), column(pool.last_use_step)]


def _lfu(pool: PoolState) -> list[np.ndarray]:
    return [column(pool.uses), column(pool.last_use_step)]


def _fifo(pool: PoolState) -> list[np.ndarray]:
    return [column(pool.published_step)]


def _two_queues(pool: PoolState) -> list[np.ndarray]:
    return [column(pool.uses).clip(max=1), column(pool.last_use_step)]


KEYS: dict[str, _Keys] = {"lru": _lru, "lfu": _lfu, "fifo": _fifo, "2q": _two_queues}
"""What each eviction policy sorts by, first things first. Of the others the order is not reported."""


def column(values: object) -> np.ndarray:
    """A view of an ``array("q")``: nothing is copied."""
    import numpy as np

    return np.frombuffer(values, np.int64)  # type: ignore[call-overload]


def policy_of(state: RunState) -> str:
    """The run's eviction policy; lru where the manifest does not name one, as in the engine. Servers do not tell it."""
    return NOT_TOLD if state.attached is not None else str(state.manifest.get("eviction") or "lru")


def eviction_order(pool: PoolState, tree: PrefixTree, policy: str) -> np.ndarray | None:
    """Idle blocks, the next to be evicted first; those that cannot go while a block below them is in use are left out.

    None: the log does not tell the order (policies from a file, belady; several KV groups, whose blocks leave apart).
    A block goes after all that hang under it, so it stands where the last of these does. ``tree`` follows ``pool``.
    Complexity: O(blocks · log), in NumPy.
    """
    import numpy as np

    if policy not in KEYS or tree.twin_of:
        return None
    parent, num_blocks = tree.parent, pool.num_blocks
    in_tree = parent != ABSENT
    idle = in_tree & (np.frombuffer(pool.state, np.uint8) == IDLE)
    blocks = idle.nonzero()[0]
    keys = [values[blocks] for values in KEYS[policy](pool)]
    if policy == "lru" and (keys[0] > 0).all():  # each has a place of its own
        own, depth = np.argsort(keys[0]), None
    else:
        depth = depths(parent)
        own = np.lexsort((blocks, -depth[blocks], *reversed(keys)))
    rank = np.full(num_blocks, num_blocks, np.int64)  # never
    rank[blocks[own]] = np.arange(len(blocks))
    above = parent[blocks]
    if not (rank[blocks] > rank[above])[above >= 0].any() and not _hold_back(in_tree & ~idle, parent, idle):
        return blocks[own]
    depth = depths(parent) if depth is None else depth
    below = (in_tree & (parent >= 0)).nonzero()[0]
    below = below[np.argsort(-depth[below], kind="stable")]
    for level in np.split(below, np.flatnonzero(np.diff(depth[below])) + 1):  # the deepest first
        np.maximum.at(rank, parent[level], rank[level])
    going = blocks[rank[blocks] < num_blocks]
    return going[np.lexsort((-depth[going], rank[going]))]


def _hold_back(others: np.ndarray, parent: np.ndarray, idle: np.ndarray) -> bool:
    """Whether a block that is not idle hangs under one that is."""
    above = parent[others]
    return bool(idle[above[above >= 0]].any())


def depths(parent: np.ndarray) -> np.ndarray:
    """By block: blocks before it in its chain. 0 for blocks that are not in the tree."""
    import numpy as np

    depth = (parent >= 0).astype(np.int64)
    up = np.where(parent >= 0, parent, np.arange(len(parent)))
    while True:
        further = up[up]
        if np.array_equal(further, up):
            return depth
        depth, up = depth + depth[up], further


def eviction_rate(state: RunState) -> float | None:
    """Blocks a second over the last ten; None before the first step."""
    return recent_rate(state.history, state.history.evictions, state.t_ns, EVICTION_WINDOW_NS)


def seconds_until(place: int, rate: float | None) -> float | None:
    """An estimate: until ``place`` blocks (from 0) are evicted before it, at ``rate`` a second. None: no telling."""
    return (place + 1) / rate if rate else None
