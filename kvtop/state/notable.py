"""Moments of a run worth going to: preemptions, bursts of evictions and of avoidable misses, marks, and the like."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Iterator
from itertools import chain
from typing import NamedTuple

from kvtop.engine.events import (
    ConfigChanged,
    Decision,
    Event,
    Gap,
    KvEvents,
    Observed,
    Paused,
    RunEnded,
    Stalled,
    StepEvent,
)
from kvtop.state.model import RunState
from kvtop.workloads.words import counted

BURST_NS = 1_000_000_000
MIN_EVICTIONS, EVICTIONS_OF_POOL = 8, 50  # a burst: at least so many, and at least one of so many blocks
MIN_MISSES = 3  # lookups that missed what had been evicted
KEPT = 10_000


class Moment(NamedTuple):
    """``kind``: preempt, evict, miss, mark, break, config, gap, server, stalled or end."""

    step: int
    t_ns: int
    kind: str
    text: str


class Moments:
    """All moments of a run so far, in order, the last ``KEPT`` of them."""

    def __init__(self) -> None:
        self.all: list[Moment] = []
        self._evictions: deque[tuple[int, int]] = deque()  # (t_ns, how many), within BURST_NS
        self._misses: deque[tuple[int, int]] = deque()
        self._burst_ns = {"evict": -BURST_NS, "miss": -BURST_NS}  # when the last one of a kind was seen going on

    def fold(self, state: RunState, event: Event) -> None:
        """Look at ``event``, already folded into ``state``."""
        match event:
            case StepEvent():
                if event.preemptions or event.evictions or event.admitted:
                    self._step(state, event)
            case ConfigChanged(changes=changes):
                self._add(state, "config", ", ".join(f"{key} = {value}" for key, value in changes.items()))
            case Gap(dropped=dropped):
                self._add(state, "gap", f"{counted(dropped, 'event')} dropped")
            case Stalled():
                self._add(state, "stalled", state.stalled)
            case Observed() if state.attached is not None:
                for line in state.attached.news:
                    self._add(state, "server", line)
                # What was removed while the connection was lost was not all removed now.
                if isinstance(event, KvEvents) and (removed := event.removed - event.removed_late):
                    self._evicted(state, event.t_ns, removed)
            case Paused(reason=reason) if reason:
                self._add(state, "break", reason)
            case RunEnded(status=status):
                self._add(state, "end", status)

    def mark(self, step: int, t_ns: int) -> Moment:
        """Put a mark there, or take away the one that is there; returns it."""
        mark = Moment(step, t_ns, "mark", "mark")
        if mark in self.all:
            self.all.remove(mark)
        else:
            insort(self.all, mark)
        return mark

    @property
    def marks(self) -> list[Moment]:
        return [moment for moment in self.all if moment.kind == "mark"]

    def after(self, step: int) -> Moment | None:
        """The first moment in a later step."""
        index = bisect_right(self.all, step, key=lambda moment: moment.step)
        return self.all[index] if index < len(self.all) else None

    def before(self, step: int) -> Moment | None:
        """The last moment in an earlier step."""
        index = bisect_left(self.all, step, key=lambda moment: moment.step)
        return self.all[index - 1] if index else None

    def _step(self, state: RunState, event: StepEvent) -> None:
        for decision in _of_kind(state, "preempted") if event.preemptions else ():
            why = decision[2].replace("_", " ")
            self._add(state, "preempt", f"{decision[1]} for {decision[3] or 'nobody'}: {why}")
        if event.evictions:
            self._evicted(state, event.t_done_ns, event.evictions)
        if event.admitted:
            missed = sum(decision[3] == "evicted" for decision in _of_kind(state, "lookup"))
            if missed and (total := _within(self._misses, event.t_done_ns, missed)) >= MIN_MISSES:
                self._burst(state, "miss", f"{total:,} lookups within a second missed what had been evicted")

    def _evicted(self, state: RunState, t_ns: int, count: int) -> None:
        total = _within(self._evictions, t_ns, count)
        num_blocks = state.pool.num_blocks if state.pool else 0
        if total >= max(MIN_EVICTIONS, num_blocks // EVICTIONS_OF_POOL):
            self._burst(state, "evict", f"{total:,} blocks within a second")

    def _burst(self, state: RunState, kind: str, text: str) -> None:
        """A burst is one moment, its first: until a second has passed without it."""
        if state.t_ns - self._burst_ns[kind] > BURST_NS:
            self._add(state, kind, text)
        self._burst_ns[kind] = state.t_ns

    def _add(self, state: RunState, kind: str, text: str) -> None:
        insort(self.all, Moment(state.step, state.t_ns, kind, text))
        if len(self.all) > KEPT:
            del self.all[0]


def _of_kind(state: RunState, kind: str) -> Iterator[Decision]:
    """Of the last step's decisions."""
    return chain.from_iterable(run for its_kind, run in state.last_runs if its_kind == kind)


def _within(counts: deque[tuple[int, int]], t_ns: int, count: int) -> int:
    """Add ``count`` at ``t_ns``; how many there were in the BURST_NS before."""
    counts.append((t_ns, count))
    while counts[0][0] <= t_ns - BURST_NS:
        counts.popleft()
    return sum(n for _, n in counts)
