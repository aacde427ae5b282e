"""Runs side by side: each with its own session and time line, kept at the same moment of virtual time.

Nobody is told to wait: a run whose events are not taken stands still, since under a virtual clock its process waits
for the reader. What one run is ahead of another lies here, and is folded when the others have got as far.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

from kvtop.analysis.side_by_side import Journal
from kvtop.engine.events import Event
from kvtop.state.divergence import Partings
from kvtop.state.ring import Ring
from kvtop.state.timeline import Timeline
from kvtop.tui.feed import FOLD_BUDGET_S, Feed, Session

PACES: tuple[float, ...] = (0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 25.0, 50.0, 100.0, math.inf)
_SLICE_S = 0.005  # of folding one run before the next one's turn
_LONGEST_TICK_S = 0.5  # what a suspended terminal misses is not made up for


class Lane:
    """One of the runs."""

    def __init__(self, label: str, session: Session, *, keep_all: bool) -> None:
        self.label, self.session = label, session
        self.timeline = Timeline(Ring(None) if keep_all else None)
        self.journal = Journal()
        self.partings: list[tuple[Partings, int]] = []  # what it takes part in, and as which of the two
        self.feed = Feed(session, self.timeline, self._watch)

    def _watch(self, event: Event) -> None:
        self.journal.fold(event)
        for partings, which in self.partings:
            partings.fold(which, event)


class Lanes:
    """Two or more runs. ``partings[i]`` is where run ``i + 1`` parts from the first.

    ``pace``: seconds of virtual time a second; infinite: as fast as they go. ``is_held``: nothing moves.
    """

    def __init__(self, runs: Sequence[tuple[str, Session]], *, keep_all: bool = False, pace: float = math.inf) -> None:
        self.lanes = [Lane(label, session, keep_all=keep_all) for label, session in runs]
        self.partings = [Partings() for _ in self.lanes[1:]]
        for partings, lane in zip(self.partings, self.lanes[1:], strict=True):
            self.lanes[0].partings.append((partings, 0))
            lane.partings.append((partings, 1))
        self.pace, self.is_held = pace, False
        self.now_ns = 0.0  # as far as the pace allows
        self._ticked_s = time.monotonic()
        self._followed: tuple[int, bool] = (-1, True)

    @property
    def num_events(self) -> int:
        return sum(lane.feed.num_events for lane in self.lanes)

    @property
    def behind(self) -> bool:
        """There is something that could be folded now."""
        limit = self._limit()
        return not self.is_held and any(lane.feed.lag and lane.feed.next_ns <= limit for lane in self.lanes)

    def _limit(self) -> float:
        """As far as all runs are known, and the pace allows."""
        return min(self.now_ns, *(lane.feed.reach_ns for lane in self.lanes))

    def fold_pending(self, budget_s: float = FOLD_BUDGET_S) -> None:
        """Bring all runs forward together, for ``budget_s`` at most."""
        self._advance()
        if self.is_held:
            return
        deadline_s = time.monotonic() + budget_s
        while time.monotonic() < deadline_s:
            before = self.num_events, [lane.feed.lag for lane in self.lanes]
            limit = self._limit()
            for lane in self.lanes:
                lane.feed.fold_pending(_SLICE_S, limit)
            if before == (self.num_events, [lane.feed.lag for lane in self.lanes]):
                break

    def _advance(self) -> None:
        """Let the time pass that the pace gives; it never runs ahead of the runs by more than a tick."""
        now_s = time.monotonic()
        passed_s, self._ticked_s = min(now_s - self._ticked_s, _LONGEST_TICK_S), now_s
        if self.pace == math.inf:
            self.now_ns = math.inf
        elif not self.is_held:
            reached = max(lane.timeline.live.t_ns for lane in self.lanes)
            base = reached if self.now_ns == math.inf else min(self.now_ns, reached + _LONGEST_TICK_S * 1e9 * self.pace)
            self.now_ns = base + passed_s * 1e9 * self.pace

    def change_pace(self, direction: int) -> None:
        """Faster or slower."""
        place = PACES.index(min(PACES, key=lambda pace: abs(min(pace, 1e9) - min(self.pace, 1e9))))
        self.pace = PACES[max(0, min(len(PACES) - 1, place + direction))]

    # Time ----------------------------------------------------------------------------------------------------

    def follow(self, chosen: Timeline) -> None:
        """Have all runs look at the moment that ``chosen`` looks at."""
        now = (chosen.version, chosen.at_live)
        if now == self._followed:
            return
        self._followed = now
        for lane in self.lanes:
            line = lane.timeline
            if line is chosen:
                continue
            if chosen.at_live:
                if not line.at_live:
                    line.go_live()
            else:
                line.seek_ns(chosen.view.t_ns)

    def seek(self, step: int, chosen: Timeline) -> None:
        """All of them to the end of ``step``: of one number the steps are the same until the runs part."""
        for lane in self.lanes:
            lane.timeline.stop()
            lane.timeline.seek(step)
        self._followed = (chosen.version, chosen.at_live)

    def close(self) -> None:
        for lane in self.lanes:
            lane.timeline.ring.close()
