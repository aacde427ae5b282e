"""Where decisions go. Chosen at construction: with no observer every call is a no-op, never an ``if`` in the loop."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from kvtop.engine.events import Decision, Event, RequestEvent, StepEvent


class Recorder:
    """Collects decisions, seals them into one StepEvent a step, and hands events over in order.

    ``max_events`` bounds what is kept between two drains; what does not fit is dropped, newest first, and counted.
    """

    enabled = True

    def __init__(self, max_events: int | None = None) -> None:
        self.max_events = max_events
        self.num_dropped = 0
        self._decisions: list[Decision] = []
        # One decision of the step being made (or of what happened between two steps). The list's own method: a step
        # makes hundreds of calls, and this one costs a quarter of a Python function around it.
        self.decide: Callable[[Decision], None] = self._decisions.append
        self.decide_all: Callable[[Iterable[Decision]], None] = self._decisions.extend
        self._events: list[Event] = []

    @property
    def has_decisions(self) -> bool:
        return bool(self._decisions)

    def seal(self, **fields: Any) -> None:
        """End a step: its fields and all decisions since the last seal become one StepEvent."""
        self._append(StepEvent(decisions=self._decisions.copy(), **fields))
        self._decisions.clear()

    def request(self, event: RequestEvent) -> None:
        self._append(event)

    def drain(self) -> list[Event]:
        """Events since the last drain, in order. The caller owns the list."""
        events, self._events = self._events, []
        return events

    def _append(self, event: Event) -> None:
        if self.max_events is not None and len(self._events) >= self.max_events:
            self.num_dropped += 1
        else:
            self._events.append(event)


class NullRecorder:
    """No observer."""

    enabled = False
    has_decisions = False
    num_dropped = 0

    def decide(self, decision: Decision) -> None:
        pass

    def decide_all(self, decisions: Iterable[Decision]) -> None:
        """Not looked at: what is handed over lazily is never made."""

    def seal(self, **fields: Any) -> None:
        pass

    def request(self, event: RequestEvent) -> None:
        pass

    def drain(self) -> list[Event]:
        return []


AnyRecorder = Recorder | NullRecorder
