"""What happened to one block, from the events that the ring keeps: nothing is folded for it, it is looked up."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from kvtop.engine.events import DECISION_FIELDS, Decision, Event, KvEvents, StepEvent
from kvtop.state.ring import Ring, Segment

MOST = 200  # entries of one block; older ones are not looked for

_PLACE = {
    kind: 1 + fields.index("block") for kind, fields in DECISION_FIELDS.items() if "block" in fields
}  # of the block in the tuple


class BlockEvent(NamedTuple):
    """One decision about the block. ``as_source``: another block was copied from it."""

    step: int
    decision: Decision
    as_source: bool = False

    @property
    def kind(self) -> str:
        return self.decision[0]

    @property
    def who(self) -> str:
        """The sequence it was decided for; "" for pins and resets."""
        place = DECISION_FIELDS[self.kind].index("request_id") if "request_id" in DECISION_FIELDS[self.kind] else -1
        return "" if place < 0 else self.decision[1 + place]

    def field(self, name: str) -> object:
        """A field of the decision by its name in ``DECISION_FIELDS``."""
        return self.decision[1 + DECISION_FIELDS[self.kind].index(name)]


def events_of(block: int, events: Iterable[Event]) -> list[BlockEvent]:
    """Decisions about ``block``, in order. Complexity: O(decisions)."""
    found: list[BlockEvent] = []
    place_of = _PLACE.get
    for event in events:
        if not isinstance(event, StepEvent | KvEvents):
            continue
        for decision in [decision for decision in event.decisions if block in decision]:  # next to none
            place = place_of(decision[0])
            if place is None:
                continue
            if decision[place] == block:
                found.append(BlockEvent(event.step, decision))
            elif decision[0] == "copy" and decision[4] == block:
                found.append(BlockEvent(event.step, decision, as_source=True))
    return found


class BlockHistory:
    """The last decisions about one block at a time, newest segment of the ring first.

    ``update`` looks at what is new and, where it is asked to, one segment further back. ``is_whole``: all that the ring
    holds has been looked at, or ``MOST`` entries were found.
    """

    def __init__(self, ring: Ring) -> None:
        self.ring = ring
        self.block = -1
        self.is_whole = False
        self.first_step = 0  # nothing before it has been looked at
        self._older: list[BlockEvent] = []
        self._newer: list[BlockEvent] = []
        self._open: Segment | None = None
        self._events: list[Event] = []  # of the open segment; still whole after it was closed
        self._num_seen = 0
        self._oldest: Segment | None = None

    def look_at(self, block: int) -> None:
        if block != self.block:
            self.block, self.is_whole = block, False
            self._older, self._newer = [], []
            self._open = self._oldest = None
            self._events, self._num_seen = [], 0

    def update(self, *, further: bool = True) -> bool:
        """Whether something was found."""
        before = len(self._older) + len(self._newer)
        segments = self.ring.segments
        if self.block < 0 or not segments:
            return False
        if self._open is None or self._oldest is None:
            self._open = self._oldest = segments[-1]
            self._events, self.first_step = segments[-1].events, segments[-1].step
            self.is_whole = segments[0] is segments[-1]
        self._look_at_new()
        if further and not self.is_whole:
            self._look_further_back()
        return len(self._older) + len(self._newer) > before

    def entries(self, last_step: int) -> list[BlockEvent]:
        """Oldest first, those up to ``last_step``."""
        return [entry for entry in (*self._older, *self._newer) if entry.step <= last_step]

    def _look_at_new(self) -> None:
        while self._open is not None:
            events = self._events
            self._newer += events_of(self.block, events[self._num_seen :])
            self._num_seen = len(events)
            following = self.ring.after(self._open)
            if following is None:
                break
            self._open, self._num_seen = following, 0
            self._events = following.events if following.place is None else self.ring.read(following)[1]
        del self._newer[: -10 * MOST]

    def _look_further_back(self) -> None:
        before: Segment | None = None
        for segment in self.ring.segments:
            if segment is self._oldest:
                break
            before = segment
        if before is None or self._oldest not in self.ring.segments:
            self.is_whole = True
            return
        self._older[:0] = events_of(self.block, self.ring.read(before)[1])
        self._oldest, self.first_step = before, before.step
        self.is_whole = len(self._older) + len(self._newer) >= MOST or before is self.ring.segments[0]
