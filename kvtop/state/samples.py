"""What was measured in the last minute. Thousands of samples are looked through at every frame, and copied with every
segment of the ring: as columns of numbers, not as rows."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, overload

from kvtop.analysis.stats import percentile

if TYPE_CHECKING:
    from kvtop.state.model import SequenceState

LATENCY_WINDOW_NS = 60_000_000_000  # p50/p99 on screen look back this long

Point = tuple[int, int, int]
"""When (ns), the value, how many."""


class Points:
    """Points in the order of their times, oldest first."""

    __slots__ = ("counts", "t_ns", "values")

    def __init__(self, points: Iterable[Point] = ()) -> None:
        self.t_ns, self.values, self.counts = array("q"), array("q"), array("q")
        for point in points:
            self.append(*point)

    def append(self, t_ns: int, value: int, count: int) -> None:
        self.t_ns.append(t_ns)
        self.values.append(value)
        self.counts.append(count)

    def take_before(self, t_ns: int) -> list[Point]:
        """Take away the points older than that."""
        gone = bisect_left(self.t_ns, t_ns)
        taken = list(zip(self.t_ns[:gone], self.values[:gone], self.counts[:gone], strict=True))
        for column in (self.t_ns, self.values, self.counts):
            del column[:gone]
        return taken

    def __len__(self) -> int:
        return len(self.t_ns)

    def __iter__(self) -> Iterator[Point]:
        return zip(self.t_ns, self.values, self.counts, strict=True)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Points) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]


class Counted(Sequence[int]):
    """How often each value occurs, kept as values come and go. As a sequence: all of them, ascending."""

    def __init__(self, points: Iterable[Point] = ()) -> None:
        self.values: list[int] = []  # that occur, ascending
        self._counts: dict[int, int] = {}
        self._sums: list[int] | None = None  # values up to each one; None: to be added up
        for _, value, count in points:
            self._counts[value] = self._counts.get(value, 0) + count
        self.values = sorted(self._counts)

    def add(self, value: int, count: int) -> None:
        """``count`` below zero: so many are gone."""
        before = self._counts.get(value, 0)
        self._sums = None
        if not before:
            insort(self.values, value)
        if before + count:
            self._counts[value] = before + count
        else:
            del self._counts[value], self.values[bisect_left(self.values, value)]

    @property
    def n(self) -> int:
        return self._added_up()[-1] if self.values else 0

    def __len__(self) -> int:
        return self.n

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> list[int]: ...
    def __getitem__(self, index: int | slice) -> int | list[int]:
        """A value by its rank, without a look at every one."""
        if isinstance(index, slice):
            return [self[rank] for rank in range(*index.indices(self.n))]
        return self.values[bisect_right(self._added_up(), range(self.n)[index])]

    def _added_up(self) -> list[int]:
        if self._sums is None:
            self._sums = list(accumulate(map(self._counts.__getitem__, self.values)))
        return self._sums

    def percentile(self, q: float) -> float | None:
        return percentile(self, q)


@dataclass(slots=True)
class Samples:
    """Latency samples (t_ns, value_ns, how many) inside LATENCY_WINDOW_NS of the newest, oldest first.

    Counted, since a step's gaps are nearly all the same one: a thousand sequences make two or three points of it.
    """

    points: Points = field(default_factory=Points)
    _counted: Counted | None = field(default=None, init=False, compare=False)  # of ``points``, once it was asked for

    def __reduce__(self) -> tuple[type[Samples], tuple[Points]]:
        return Samples, (self.points,)  # a copy counts for itself, if it is ever asked

    @property
    def counted(self) -> Counted:
        if self._counted is None:
            self._counted = Counted(self.points)
        return self._counted

    def add(self, t_ns: int, value_ns: int, count: int = 1) -> None:
        self.points.append(t_ns, value_ns, count)
        if self._counted is not None:
            self._counted.add(value_ns, count)
        self.expire(t_ns)

    def expire(self, now_ns: int) -> None:
        points, limit = self.points, now_ns - LATENCY_WINDOW_NS
        if not points.t_ns or points.t_ns[0] >= limit:
            return
        for _, value_ns, count in points.take_before(limit):
            if self._counted is not None:
                self._counted.add(value_ns, -count)


@dataclass(slots=True)
class PreemptedGaps:
    """Gaps between tokens that hold a preemption: (t_ns, gap_ns, sequence), as long as latency samples."""

    points: deque[tuple[int, int, str]] = field(default_factory=deque)
    away: dict[str, int] = field(default_factory=dict)  # sequence without blocks -> when its last token came

    def back(self, sequences: dict[str, SequenceState], t_ns: int) -> None:
        """At the end of a step: whoever emitted in it is back."""
        for seq_id, before_ns in list(self.away.items()):
            seq = sequences.get(seq_id)
            if seq is not None and seq.t_last_token_ns == t_ns:
                self.points.append((t_ns, t_ns - before_ns, seq_id))
            if seq is None or seq.t_last_token_ns == t_ns:
                del self.away[seq_id]
        while self.points and self.points[0][0] < t_ns - LATENCY_WINDOW_NS:
            self.points.popleft()


@dataclass(slots=True)
class Lookups:
    """Prefix lookups (t_ns, prompt tokens, of them found, why the match ended, request) as long as latency samples.

    The sums are those of ``points``. ``missed``: tokens behind the end of a match, by why it ended there.
    """

    points: deque[tuple[int, int, int, str, str]] = field(default_factory=deque)
    prompt_tokens: int = 0
    found_tokens: int = 0
    num_with_hits: int = 0
    missed: dict[str, int] = field(default_factory=dict)

    def add(self, t_ns: int, prompt: int, found: int, reason: str, request_id: str) -> None:
        points, limit = self.points, t_ns - LATENCY_WINDOW_NS
        points.append((t_ns, prompt, found, reason, request_id))
        self._count(prompt, found, reason, 1)
        while points[0][0] < limit:
            _, prompt, found, reason, _ = points.popleft()
            self._count(prompt, found, reason, -1)

    def _count(self, prompt: int, found: int, reason: str, sign: int) -> None:
        self.prompt_tokens += sign * prompt
        self.found_tokens += sign * found
        self.num_with_hits += sign * (found > 0)
        self.missed[reason] = self.missed.get(reason, 0) + sign * (prompt - found)
