"""How a screen looks at the blocks: the prefix tree, an order to show them in, and who goes next, kept up to date."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from kvtop.state.block_orders import ORDERS
from kvtop.state.eviction_order import eviction_order, eviction_rate, policy_of, seconds_until
from kvtop.state.model import IDLE, PoolState, RunState
from kvtop.state.prefix_tree import ABSENT, PrefixTree
from kvtop.tui.frame import Frame

if TYPE_CHECKING:
    import numpy as np

RESORT_S = 1.0  # while the run goes on, blocks change places this often at most: cells must not dance


class BlockView:
    """Of one screen; ``update`` it with each frame before its panels draw."""

    def __init__(self) -> None:
        self.tree = PrefixTree()
        self.cursor = 0  # block looked at
        self.cell: list[int] = []  # the blocks shown with it in one cell
        self.order_name = "physical"
        self.order: np.ndarray | None = None  # block ids as they are shown
        self.place: np.ndarray | None = None  # of each block in ``order``
        self._sorted: tuple[object, ...] = ()  # pool and order name that ``order`` was made for
        self._sorted_s = 0.0
        self._line_pool: object = None  # what ``_line_places`` was made for
        self._line_s = 0.0
        self._line_places: np.ndarray | None = None
        self._exact = True  # nothing changes by itself: what is computed is computed anew
        self.is_stale = False  # something was left as it was for RESORT_S
        self._was_stale = False

    def update(self, frame: Frame) -> bool:
        """Whether blocks have changed their places."""
        state = frame.state
        self.tree.update(state.pool, frame.dirty, whole=frame.whole)
        if state.pool is None:
            self.order = self.place = None
            return False
        made_for = (state.pool, self.order_name)
        fixed = self.order_name == "physical"
        self._exact, self.is_stale = not frame.timeline.at_live or state.status != "running", False
        now_s = time.monotonic()
        if self.order is not None and self._sorted == made_for:
            unchanged = not frame.dirty and not frame.whole
            early = not self._exact and now_s - self._sorted_s < RESORT_S
            if fixed or early or (unchanged and not self._was_stale):
                self.is_stale = self._was_stale = early and not fixed and not (unchanged and not self._was_stale)
                return False
        self._was_stale = False
        self._sort(state)
        self._sorted, self._sorted_s = made_for, now_s
        return True

    def change_order(self, state: RunState) -> None:
        """To the next order that the log tells."""
        names = list(ORDERS)
        for _ in names:
            self.order_name = names[(names.index(self.order_name) + 1) % len(names)]
            if state.pool is None or ORDERS[self.order_name](state, self.tree) is not None:
                break
        self._sorted = ()
        self.order = None

    def _sort(self, state: RunState) -> None:
        import numpy as np

        order = ORDERS[self.order_name](state, self.tree)
        if order is None:  # the policy has become one that tells no order
            self.order_name = "physical"
            order = ORDERS["physical"](state, self.tree)
        assert order is not None
        self.order = order
        self.place = np.empty(len(order), np.int64)
        self.place[order] = np.arange(len(order))

    @property
    def published(self) -> np.ndarray:
        """By block: whether it is in the prefix cache."""
        found = self.tree.parent != ABSENT
        if self.tree.twin_of:
            found[list(self.tree.twin_of)] = True
        return found

    def line_place(self, state: RunState, block: int) -> int | None:
        """How many idle blocks are evicted before it; None: it cannot go now, or the order is not reported."""
        pool = state.pool
        if pool is None or pool.state[block] != IDLE:
            return None
        now_s = time.monotonic()
        if self._exact or pool is not self._line_pool or now_s - self._line_s >= RESORT_S:
            self._line_pool, self._line_s = pool, now_s
            self._line_places = self._places(state, pool)
        else:
            self.is_stale = True
        place = -1 if self._line_places is None else int(self._line_places[block])
        return place if place >= 0 else None

    def _places(self, state: RunState, pool: PoolState) -> np.ndarray | None:
        import numpy as np

        order = eviction_order(pool, self.tree, policy_of(state))
        if order is None:
            return None
        places = np.full(pool.num_blocks, -1, np.int64)
        places[order] = np.arange(len(order))
        return places

    def until_evicted(self, state: RunState, block: int) -> tuple[int | None, float | None]:
        """Place in the line, and an estimate of the seconds at the rate of the last ten; None: not reported."""
        place = self.line_place(state, block)
        return place, None if place is None else seconds_until(place, eviction_rate(state))
