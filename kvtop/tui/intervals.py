"""Paired latencies with their intervals, worked out beside the screen: a bootstrap takes longer than a frame may."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable

from kvtop.analysis.side_by_side import Ended, Line, latencies

_SHARE = 4  # at most one part in so many of the time, while runs go on


class PairedLatencies:
    """``rows`` are those of the pair last worked out; ``done`` is called, in the worker's thread, when they are new."""

    def __init__(self, done: Callable[[], object]) -> None:
        self.rows: list[Line] = []
        self._done = done
        self._made: Hashable = None  # what ``rows`` were made from
        self._busy = False
        self._next_s = 0.0

    def ask(self, made: Hashable, ended: Callable[[], tuple[Ended, Ended]], *, at_once: bool = False) -> float | None:
        """Have rows for ``made`` worked out, unless they are there. Too soon: in how many seconds to ask again."""
        if made == self._made or self._busy:
            return None
        wait_s = self._next_s - time.monotonic()
        if wait_s > 0 and not at_once:
            return wait_s
        self._busy = True
        threading.Thread(target=self._work, args=(made, *ended()), daemon=True).start()
        return None

    def forget(self) -> None:
        """Another pair is compared."""
        self.rows, self._made, self._next_s = [], None, 0.0

    def _work(self, made: Hashable, first: Ended, other: Ended) -> None:
        began_s = time.monotonic()
        try:
            self.rows = latencies(first, other)
            self._made = made
        finally:
            ended_s = time.monotonic()
            self._next_s, self._busy = ended_s + _SHARE * (ended_s - began_s), False
        self._done()
