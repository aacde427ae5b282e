"""From the session to the time line: events are folded a little at a time, so that keys are never kept waiting."""

from __future__ import annotations

import gc
import time
import traceback
from collections import deque
from typing import Protocol

from kvtop.engine.events import Command, Event, Keyframe, RunEnded
from kvtop.state.timeline import Timeline

FOLD_BUDGET_S = 0.06  # of a tick: what is left over is folded right after the next key


class Session(Protocol):
    """What the application needs of a run: ``kvtop.run.session.RunSession``, or a recording played back."""

    @property
    def ended(self) -> bool: ...

    def poll(self, timeout_s: float = 0.0) -> list[Event]: ...

    def send(self, command: Command) -> None: ...

    def stop(self, timeout_s: float = 10.0) -> None: ...


class StartableSession(Session, Protocol):
    def start(self) -> None: ...


class Feed:
    """Polls ``session`` and folds what it has into ``timeline``. ``end`` is its last event, once that was folded."""

    def __init__(self, session: Session, timeline: Timeline) -> None:
        self.session, self.timeline = session, timeline
        self.end: RunEnded | None = None
        self.num_events = 0
        self.fold_s = 0.0  # CPU seconds spent folding
        self._pending: deque[Event] = deque()
        self._broken = False  # the session can no longer be read
        self._clock_base = (0, time.monotonic())  # the run's clock at the last event, and when that was

    @property
    def behind(self) -> bool:
        """There are events that have not been folded yet."""
        return bool(self._pending)

    @property
    def lag(self) -> int:
        """How many."""
        return len(self._pending)

    def fold_pending(self, budget_s: float = FOLD_BUDGET_S) -> None:
        """Fold what the session has, for ``budget_s`` at most."""
        began, deadline = time.thread_time(), time.monotonic() + budget_s
        try:
            while not self._broken and time.monotonic() < deadline:
                if not self._pending:
                    self._pending.extend(self.session.poll(0.0))
                    if not self._pending:
                        break
                self._fold(self._pending.popleft())
        except Exception as error:  # the run is lost, the terminal and what was seen so far are not
            self._broken = True
            self._pending.clear()
            text = traceback.format_exc()
            line = f"cannot follow the run: {type(error).__name__}: {error}"
            t_ns = self.timeline.live.t_ns
            self._fold(RunEnded(t_ns=t_ns, status="failed", error=line, traceback=text, exit_code=1))
        self.fold_s += time.thread_time() - began

    def _fold(self, event: Event) -> None:
        self.timeline.fold(event)
        self.num_events += 1
        if isinstance(event, Keyframe):
            # A large pool is hundreds of thousands of objects that stay: looking through them again and again for
            # garbage would hold up a frame for a tenth of a second.
            gc.collect()
            gc.freeze()
        self._clock_base = (self.timeline.live.t_ns, time.monotonic())
        if isinstance(event, RunEnded):
            self.end = event

    def follow_clock(self) -> None:
        """Between events of a run in real time, let its clock go on once a second: ages and rates stay true."""
        state, (t_ns, at_s) = self.timeline.live, self._clock_base
        if state.status == "running" and state.manifest.get("clock") == "real":
            now_ns = t_ns + int((time.monotonic() - at_s) * 1e9)
            if now_ns - state.t_ns >= 1_000_000_000:
                state.t_ns = now_ns
