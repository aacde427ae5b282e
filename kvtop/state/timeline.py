"""The one cursor in time that all screens follow: at the right end of the run, or at any step the ring still holds.

The past is rebuilt by the same ``reduce`` that folds the present: from the nearest copy of the state, event by event.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kvtop.engine.events import Event, Observed, StepEvent
from kvtop.state.cache_log import CacheLog
from kvtop.state.copies import thaw
from kvtop.state.event_log import EventLog
from kvtop.state.model import RunState
from kvtop.state.notable import Moment, Moments
from kvtop.state.reduce import reduce
from kvtop.state.request_logs import RequestLogs
from kvtop.state.ring import Ring, Segment

SPEEDS = (0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 25.0, 50.0, 100.0)

STEPS = (StepEvent, Observed)
"""What time is counted in: steps of the engine, or looks at an attached server."""

Beyond = Callable[[StepEvent | Observed], bool]
"""Whether a step lies behind the one wanted."""


@dataclass(slots=True)
class _Past:
    """A state of its own, and where in the ring it has got to: ``position`` events of ``segment`` are in it."""

    state: RunState
    segment: Segment
    position: int = 0


class Timeline:
    """The run so far, and the moment that is looked at.

    ``live`` is folded from every event that ``fold`` is given, whatever the cursor does. ``view`` is what screens show.
    ``version`` grows whenever the cursor or the marks change.
    """

    def __init__(self, ring: Ring | None = None) -> None:
        self.live = RunState()
        self.ring = ring if ring is not None else Ring()
        self.moments = Moments()
        self.log = EventLog()
        self.version = 0
        self.speed: float | None = None  # the past plays at so many seconds a second
        self._past: _Past | None = None
        self._played_ns = 0.0

    @property
    def at_live(self) -> bool:
        return self._past is None

    @property
    def view(self) -> RunState:
        return self.live if self._past is None else self._past.state

    @property
    def first_ns(self) -> int:
        """The oldest moment there is."""
        return self.ring.segments[0].t_ns if self.ring.segments else self.live.t_ns

    def fold(self, event: Event) -> None:
        """Take the next event of the run."""
        if self.ring.is_due and (isinstance(event, STEPS) or not self.ring.segments):
            self.ring.begin(self.live)
        if self.ring.segments:
            self.ring.append(event)
        reduce(self.live, event)
        self.moments.fold(self.live, event)
        self.log.fold(self.live, event)

    # Cursor --------------------------------------------------------------------------------------------------

    def freeze(self) -> None:
        """Stay at this step; the run goes on."""
        if self.at_live:
            self.seek(self.live.step)

    def go_live(self) -> None:
        """To the right end, and along with it."""
        self._past, self.speed = None, None
        self.version += 1

    def seek(self, step: int) -> None:
        """To ``step`` as it ended, or the nearest there is before it (or at all)."""
        if self.ring.segments:
            self._go(self.ring.find(step), lambda event: event.step > step, step >= self.view.step)

    def seek_ns(self, t_ns: int) -> None:
        """To the last step done by ``t_ns``."""
        if self.ring.segments:
            self._go(self.ring.find_ns(t_ns), lambda event: event.t_done_ns > t_ns, t_ns >= self.view.t_ns)

    def move(self, steps: int) -> None:
        """So many steps forward or back; forward from the last one leads to the live end."""
        target = self.view.step + steps
        if target > self.live.step and steps > 0:
            if not self.at_live:
                self.go_live()
            return
        self.speed = None
        self.seek(target)

    def to_moment(self, direction: int) -> Moment | None:
        """To the next moment worth a look in that direction; None when there is none."""
        step = self.view.step
        found = self.moments.after(step) if direction > 0 else self.moments.before(step)
        if found is not None:
            self.speed = None
            self.seek(found.step)
        return found

    def to_start(self) -> None:
        if self.ring.segments:
            self.speed = None
            self.seek(self.ring.segments[0].step + 1)

    def mark(self) -> Moment:
        """Set a mark at the cursor, or take it away."""
        self.version += 1
        return self.moments.mark(self.view.step, self.view.t_ns)

    def to_mark(self) -> Moment | None:
        """To the mark before the cursor; from the first one to the last. None: there is none."""
        marks = self.moments.marks
        if not marks:
            return None
        earlier = [mark for mark in marks if mark.step < self.view.step]
        mark = (earlier or marks)[-1]
        self.speed = None
        self.seek(mark.step)
        return mark

    # Playing -------------------------------------------------------------------------------------------------

    def change_speed(self, direction: int) -> None:
        """Faster or slower; standing still, faster starts at the run's own pace."""
        if self.speed is None:
            self.set_speed(1.0 if direction > 0 else 0.0)
        elif direction > 0:
            self.set_speed(next((speed for speed in SPEEDS if speed > self.speed), SPEEDS[-1]))
        else:
            self.set_speed(next((speed for speed in reversed(SPEEDS) if speed < self.speed), SPEEDS[0]))

    def set_speed(self, speed: float) -> None:
        """Play the past at ``speed``; 0 stands still. At the live end there is nothing to play."""
        self.speed = speed if speed > 0 and not self.at_live else None
        self._played_ns = float(self.view.t_ns)
        self.version += 1

    def stop(self) -> None:
        """Stand still."""
        self.speed = None
        self.version += 1

    def play(self, seconds: float) -> None:
        """Go on for so many seconds of the onlooker's time; at the end of the run, stay with it."""
        if self.speed is None or self._past is None:
            return
        self._played_ns = max(self._played_ns, float(self.first_ns)) + seconds * 1e9 * self.speed
        if self._played_ns >= self.live.t_ns:
            self.go_live()
        else:
            self.seek_ns(int(self._played_ns))

    # Past ----------------------------------------------------------------------------------------------------

    def _go(self, segment: Segment, beyond: Beyond, forward: bool) -> None:
        """Make the past what it was before the first step ``beyond``."""
        past = self._past
        # Forward from where it is, when there is no newer copy of the state to start from.
        if past is None or not forward or past.segment is not segment:
            past = _Past(thaw(self.ring.read(segment)[0]), segment)
        past.state.logs, past.state.cache = RequestLogs(), CacheLog()
        self._fold_until(past, beyond)
        past.state.logs = self.live.logs.until(past.state.step)
        past.state.cache = self.live.cache.until(past.state.step)
        self._past = past
        self.version += 1

    def _fold_until(self, past: _Past, beyond: Beyond) -> None:
        while True:
            events = self.ring.read(past.segment)[1]
            while past.position < len(events):
                event = events[past.position]
                if isinstance(event, STEPS) and beyond(event):
                    return
                reduce(past.state, event)
                past.position += 1
            following = self.ring.after(past.segment)
            if following is None:
                return
            past.segment, past.position = following, 0
