"""How a screen looks at the blocks: the prefix tree, an order to show them in, and who goes next, kept up to date."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from kvtop.state.block_orders import ORDERS
from kvtop.state.eviction_order import eviction_order, eviction_rate, policy_of, seconds_until
from kvtop.state.model import IDLE, RunState
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
        self._line: tuple[object, ...] = ()  # what ``_line_places`` was made for
        self._line_places: dict[int, int] | None = None

    def update(self, frame: Frame) -> bool:
        """Whether blocks have changed their places."""
        state = frame.state
        self.tree.update(state.pool, frame.dirty, whole=frame.whole)
        if state.pool is None:
            self.order = self.place = None
            return False
        made_for = (state.pool, self.order_name)
        fixed = self.order_name == "physical"
        now_s = time.monotonic()
        if self.order is not None and self._sorted == made_for:
            unchanged = not frame.dirty and not frame.whole
            if fixed or unchanged or (frame.timeline.at_live and now_s - self._sorted_s < RESORT_S):
                return False
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
        made_for = (pool, state.version)
        if made_for != self._line:
            self._line = made_for
            order = eviction_order(pool, self.tree, policy_of(state))
            self._line_places = None if order is None else dict(zip(order.tolist(), range(len(order)), strict=True))
        return None if self._line_places is None else self._line_places.get(block)

    def until_evicted(self, state: RunState, block: int) -> tuple[int | None, float | None]:
        """Place in the line, and an estimate of the seconds at the rate of the last ten; None: not reported."""
        place = self.line_place(state, block)
        return place, None if place is None else seconds_until(place, eviction_rate(state))
