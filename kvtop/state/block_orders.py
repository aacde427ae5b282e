"""Orders in which a map may show the blocks: permutations of block ids. A new one is a function and a line below."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import TYPE_CHECKING

from kvtop.engine.types import NULL_BLOCK
from kvtop.state.eviction_order import column, depths, eviction_order, policy_of
from kvtop.state.model import FRESH, IDLE, IN_TRANSFER, USED, WITHHELD, RunState
from kvtop.state.prefix_tree import TOP, PrefixTree

if TYPE_CHECKING:
    import numpy as np

Order = Callable[["RunState", PrefixTree], "np.ndarray | None"]
"""Every block id once; None: the log does not tell this order."""


def _states(state: RunState) -> np.ndarray:
    import numpy as np

    assert state.pool is not None
    return np.frombuffer(state.pool.state, np.uint8)


def _physical(state: RunState, tree: PrefixTree) -> np.ndarray:
    import numpy as np

    assert state.pool is not None
    return np.arange(state.pool.num_blocks)


def _eviction(state: RunState, tree: PrefixTree) -> np.ndarray | None:
    """What an allocation takes: fresh blocks, idle ones in order of eviction; then what it cannot have.

    Blocks in use follow in the order of their last use, those in transfer before them.
    """
    import numpy as np

    pool = state.pool
    assert pool is not None
    idle = eviction_order(pool, tree, policy_of(state))
    if idle is None:
        return None
    states, last_use = _states(state), column(pool.last_use_step)
    stuck = np.setdiff1d((states == IDLE).nonzero()[0], idle)
    used = (states == USED).nonzero()[0]
    used = used[np.argsort(last_use[used], kind="stable")]
    fresh, moving = (states == FRESH).nonzero()[0], (states == IN_TRANSFER).nonzero()[0]
    return np.concatenate([fresh, idle, moving, stuck, used, (states == WITHHELD).nonzero()[0]])


def _owner(state: RunState, tree: PrefixTree) -> np.ndarray | None:
    """By sequence in order of arrival, each in the order of its tables; then what nobody holds. Servers name nobody."""
    import numpy as np

    pool = state.pool
    assert pool is not None
    if state.attached is not None:
        return None
    tables = [table for seq in state.sequences.values() for table in seq.tables]
    named = np.fromiter(chain.from_iterable(tables), np.int64)
    named = named[named != NULL_BLOCK]
    first = np.full(pool.num_blocks, len(named), np.int64)
    np.minimum.at(first, named, np.arange(len(named)))
    states = _states(state)
    rest = np.select([states == USED, states == IN_TRANSFER, states == IDLE], [0, 1, 2], 3) + (states == WITHHELD)
    return np.lexsort((rest, first))


def _prefix(state: RunState, tree: PrefixTree) -> np.ndarray:
    """Published blocks along the tree, depth first, the prefix that saved most tokens first; then the others."""
    import numpy as np

    pool = state.pool
    assert pool is not None
    runs = tree.runs
    place = np.full(len(runs), 0, np.int64)
    stack, number = [TOP], 0
    while stack:
        run = stack.pop()
        if run != TOP:
            place[run], number = number, number + 1
        below = runs.below(run)
        stack += below[np.lexsort((-below, runs.all_saved[below]))].tolist()
    depth = depths(tree.parent)
    run_of = runs.run_of
    by_run = np.where(run_of >= 0, place[run_of], len(runs)) if len(runs) else np.zeros(pool.num_blocks, np.int64)
    rest = np.where(_states(state) == USED, 0, 1)
    return np.lexsort((rest, depth, by_run))


def _age(state: RunState, tree: PrefixTree) -> np.ndarray:
    """The oldest content first; what was there before the log began is oldest; fresh blocks last."""
    import numpy as np

    pool = state.pool
    assert pool is not None
    return np.lexsort((column(pool.since_step), np.isin(_states(state), (FRESH, WITHHELD))))


ORDERS: dict[str, Order] = {
    "physical": _physical,
    "eviction": _eviction,
    "owner": _owner,
    "prefix": _prefix,
    "age": _age,
}

MEANING: dict[str, str] = {
    "physical": "by block id",
    "eviction": "first what is taken next: fresh, then idle in order of eviction",
    "owner": "by request in order of arrival, then by position",
    "prefix": "along the prefix tree, what saved most first",
    "age": "the oldest content first",
}
