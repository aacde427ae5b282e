"""From the session to the time line: events are folded a little at a time, so that keys are never kept waiting."""

from __future__ import annotations

import gc
import math
import time
import traceback
from collections import deque
from collections.abc import Callable
from typing import Protocol

from kvtop.engine.events import Command, Event, Keyframe, PromptKeys, RunEnded, StepEvent
from kvtop.state.timeline import Timeline

FOLD_BUDGET_S = 0.06  # of a tick


class Session(Protocol):
    """What the application needs of a run: ``kvtop.run.session.RunSession``, or a recording played back."""

    @property
    def ended(self) -> bool: ...

    def poll(self, timeout_s: float = 0.0) -> list[Event]: ...

    def send(self, command: Command) -> None: ...

    def stop(self, timeout_s: float = 10.0) -> None: ...


class StartableSession(Session, Protocol):
    def start(self) -> None: ...


def time_of(event: Event) -> int:
    """When it was over, on the run's clock."""
    return event.t_done_ns if isinstance(event, StepEvent) else getattr(event, "t_ns", 0)


class Feed:
    """Polls ``session`` and folds what it has into ``timeline``. ``end`` is its last event, once that was folded."""

    def __init__(self, session: Session, timeline: Timeline, watch: Callable[[Event], None] | None = None) -> None:
        """``watch`` is given every event once it has been folded."""
        self.session, self.timeline, self._watch = session, timeline, watch
        self.end: RunEnded | None = None
        self.prompt: PromptKeys | None = None  # the last answer about a prompt
        self.num_prompts = 0  # answers so far
        self.num_events = 0
        self.fold_s = 0.0  # CPU seconds spent folding
        self.cpu_clock: Callable[[], float] = time.thread_time
        self.wall_clock: Callable[[], float] = time.monotonic
        self._pending: deque[Event] = deque()
        self._broken = False  # the session can no longer be read
        self._clock_base = (0, self.wall_clock())  # the run's clock at the last event, and when that was

    @property
    def behind(self) -> bool:
        """There are events that have not been folded yet."""
        return bool(self._pending)

    @property
    def lag(self) -> int:
        """How many."""
        return len(self._pending)

    @property
    def next_ns(self) -> float:
        """When the next event to be folded happened; infinite where there is none."""
        return time_of(self._pending[0]) if self._pending else math.inf

    @property
    def reach_ns(self) -> float:
        """Until when the run is known, folded or not; infinite once its end is."""
        if self.end is not None or (self._pending and isinstance(self._pending[-1], RunEnded)):
            return math.inf
        newest = next((t_ns for event in reversed(self._pending) if (t_ns := time_of(event))), 0)
        return max(newest, self.timeline.live.t_ns)

    def fold_pending(self, budget_s: float = FOLD_BUDGET_S, until_ns: float = math.inf) -> None:
        """Fold what the session has, for ``budget_s`` at most, and nothing that happened after ``until_ns``."""
        began, deadline = self.cpu_clock(), time.monotonic() + budget_s
        try:
            while not self._broken and time.monotonic() < deadline:
                if not self._pending:
                    self._pending.extend(self.session.poll(0.0))
                    if not self._pending:
                        break
                if self.next_ns > until_ns:
                    break
                self._fold(self._pending.popleft())
        except Exception as error:  # the run is lost, the terminal and what was seen so far are not
            self._broken = True
            self._pending.clear()
            text = traceback.format_exc()
            line = f"cannot follow the run: {type(error).__name__}: {error}"
            t_ns = self.timeline.live.t_ns
            self._fold(RunEnded(t_ns=t_ns, status="failed", error=line, traceback=text, exit_code=1))
        self.fold_s += self.cpu_clock() - began

    def tell_prompt(self, answer: PromptKeys | None) -> None:
        """``answer`` is shown from now on; None: nothing is."""
        self.prompt, self.num_prompts = answer, self.num_prompts + 1

    def chosen(self, kind: str) -> None:
        """A request that is chosen is looked up in place of a prompt."""
        if kind == "request" and self.prompt is not None:
            self.tell_prompt(None)

    def _fold(self, event: Event) -> None:
        if isinstance(event, PromptKeys):  # for whoever asked; no part of the run
            self.tell_prompt(event)
            return
        self.timeline.fold(event)
        if self._watch is not None:
            self._watch(event)
        self.num_events += 1
        if isinstance(event, Keyframe):
            # A large pool is hundreds of thousands of objects that stay: looking through them again and again for
            # garbage would hold up a frame for a tenth of a second.
            gc.collect()
            gc.freeze()
        self._clock_base = (self.timeline.live.t_ns, self.wall_clock())
        if isinstance(event, RunEnded):
            self.end = event

    def follow_clock(self) -> None:
        """Between events of a run in real time, let its clock go on once a second: ages and rates stay true."""
        state, (t_ns, at_s) = self.timeline.live, self._clock_base
        if state.status == "running" and state.manifest.get("clock") == "real":
            now_ns = t_ns + int((self.wall_clock() - at_s) * 1e9)
            if now_ns - state.t_ns >= 1_000_000_000:
                state.t_ns = now_ns
