"""Keys that have left the prefix cache, and who drove them out: what explains a later miss.

Kept by the run, as they leave: an ordered dict, with a link for every key, takes a third more time (results/LOG.md).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable
from collections.abc import Sequence as Seq
from itertools import repeat


class End:
    """When blocks left, and on whose account: one object for all that left together, equal to no other."""

    __slots__ = ("cause", "step")

    def __init__(self, step: int, cause: str) -> None:
        self.step, self.cause = step, cause


class Ghosts:
    """The last ``num_entries`` keys that left and have not come back. Complexity: O(1) a key, amortised."""

    def __init__(self, num_entries: int) -> None:
        self._num_entries = num_entries
        self._ends: dict[Hashable, End] = {}
        # Oldest first. A key counts in the run whose very own End it has; in others it is a leftover: it came back,
        # or left once more since.
        self._runs: deque[tuple[End, Seq[Hashable]]] = deque()
        self._at = 0  # keys of the first run that are dropped already
        self._num_in_runs = 0

    def __len__(self) -> int:
        return len(self._ends)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._ends

    def get(self, key: Hashable) -> End | None:
        return self._ends.get(key)

    def remember(self, keys: Seq[Hashable], step: int, cause: str) -> None:
        """``keys`` left in this order; of equal ones the last counts."""
        end, before = End(step, cause), len(self._ends)
        self._ends.update(zip(keys, repeat(end)))
        if len(self._ends) - before < len(keys):  # keys collide
            keys = list(dict.fromkeys(reversed(keys)))[::-1]
        self._runs.append((end, keys))
        self._num_in_runs += len(keys)
        if len(self._ends) > self._num_entries:
            self._drop_oldest(len(self._ends) - self._num_entries)
        if self._num_in_runs > 2 * len(self._ends) + 1024:
            self._forget_leftovers()

    def forget(self, keys: Iterable[Hashable], *, chained: bool = False) -> None:
        """``keys`` are published again. ``chained``: behind the first that is not here, none is."""
        ends = self._ends
        for key in keys:
            if ends.pop(key, None) is None and chained:
                return

    def _drop_oldest(self, excess: int) -> None:
        ends, runs, at = self._ends, self._runs, self._at
        while excess:
            end, keys = runs[0]
            oldest = keys[at : at + excess]
            at += len(oldest)
            if [*map(ends.get, oldest)].count(end) < len(oldest):
                oldest = [key for key in oldest if ends.get(key) is end]
            for key in oldest:
                del ends[key]
            excess -= len(oldest)
            if at == len(keys):
                runs.popleft()
                self._num_in_runs -= at
                at = 0
        self._at = at

    def _forget_leftovers(self) -> None:
        """Keys that came back would pile up in the runs where nothing is ever dropped."""
        ends = self._ends
        current = [(end, [key for key in keys if ends.get(key) is end]) for end, keys in self._runs]
        self._runs = deque(run for run in current if run[1])
        self._at, self._num_in_runs = 0, len(ends)
