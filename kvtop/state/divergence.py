"""Where two runs of one workload part: the first step in which their schedulers do not decide the same."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

from kvtop.engine.events import Event, StepEvent
from kvtop.workloads.words import counted

Decision = tuple[Any, ...]


_CHOICES = ("rejected", "admitted", "resumed", "skipped", "preempted", "evict", "chunk", "finished", "aborted")


@dataclass(frozen=True, slots=True)
class Parting:
    """The first choice that differs, of both runs (None: that run decided nothing more in the step)."""

    step: int
    t_ns: int  # the step began then, in both
    first: Decision | None
    other: Decision | None
    heads: tuple[tuple[str, str], tuple[str, str]] = (("", ""), ("", ""))  # of the queues, and why each waits

    def told(self) -> tuple[str, str]:
        """Both in words; with the heads of the queues, where they are not the same."""
        words = in_words(self.first), in_words(self.other)
        if self.heads[0] == self.heads[1]:
            return words
        first, other = (f"{text}; {_head(*head)}" for text, head in zip(words, self.heads, strict=True))
        return first, other


@dataclass(slots=True)
class Partings:
    """Folds two streams of events, each in its own order, and keeps what one is ahead of the other only."""

    found: Parting | None = None
    num_same: int = 0  # steps so far that were the same
    _ahead: tuple[deque[StepEvent], deque[StepEvent]] = field(default_factory=lambda: (deque(), deque()))

    def fold(self, which: int, event: Event) -> None:
        """``which``: 0 for the first run, 1 for the other."""
        if self.found is not None or not isinstance(event, StepEvent):
            return
        self._ahead[which].append(event)
        while self._ahead[0] and self._ahead[1]:
            self._compare(self._ahead[0].popleft(), self._ahead[1].popleft())
            if self.found is not None:
                for ahead in self._ahead:
                    ahead.clear()

    def _compare(self, first: StepEvent, other: StepEvent) -> None:
        if first.decisions == other.decisions:
            self.num_same += 1
            return
        a, b = _first_difference(*(_choices(event) for event in (first, other)))
        if a is b is None:  # the same choices, other blocks
            a, b = _first_difference(first.decisions, other.decisions)
        heads = ((first.head_of_line, first.waiting_reason), (other.head_of_line, other.waiting_reason))
        self.found = Parting(first.step, first.t_start_ns, a, b, heads)


def _choices(event: StepEvent) -> list[Decision]:
    """What the scheduler chose; what follows from it, block by block, is left out."""
    return [decision for decision in event.decisions if decision[0] in _CHOICES]


def _first_difference(first: Sequence[Decision], other: Sequence[Decision]) -> tuple[Decision | None, Decision | None]:
    for a, b in zip_longest(first, other):
        if a != b:
            return (None if a is None else tuple(a)), (None if b is None else tuple(b))
    return None, None


def _head(name: str, reason: str) -> str:
    return f"{name} heads the queue ({reason.replace('_', ' ')})" if name else "nobody waits"


def _need(d: Decision) -> str:
    return f", needs {counted(d[3], 'block')}, {d[4]:,} there" if d[3] is not None and d[4] is not None else ""


_WORDS: dict[str, Callable[[Decision], str]] = {
    "arrived": lambda d: f"{d[1]} arrives with {d[2]:,} prompt tokens",
    "rejected": lambda d: f"{d[1]} is rejected: {d[3]}",
    "lookup": lambda d: f"considers {d[1]}: {d[2]:,} of its tokens are cached ({d[3]})",
    "admitted": lambda d: f"admits {d[1]}, {counted(d[2], 'token')}{_need(d)}",
    "resumed": lambda d: f"takes {d[1]} back in, {counted(d[2], 'token')}{_need(d)}",
    "skipped": lambda d: (
        f"leaves {d[1]} waiting: {d[2].replace('_', ' ')}"
        + (f", needs {counted(d[4], 'block')}, {d[5]:,} there" if d[4] else "")
    ),
    "chunk": lambda d: f"computes {counted(d[2], 'token')} of {d[1]} from position {d[3]:,}",
    "preempted": lambda d: (
        f"preempts {d[1]} for {d[3]}: {counted(d[4], 'token')} lost, {counted(d[5] or 0, 'block')} back"
    ),
    "finished": lambda d: f"{d[1]} ends ({d[2]}) after {counted(d[3], 'token')}",
    "aborted": lambda d: f"{d[1]} is aborted",
    "alloc": lambda d: f"gives block {d[3]:,} to {d[1]}",
    "share": lambda d: f"lets {d[1]} share block {d[3]:,} ({d[5]})",
    "copy": lambda d: f"copies block {d[4]:,} for {d[1]}",
    "free": lambda d: f"{d[1]} gives block {d[3]:,} back",
    "publish": lambda d: f"publishes block {d[3]:,} of {d[1]}",
    "evict": lambda d: f"evicts block {d[3]:,} for {d[1]}, idle for {counted(d[7], 'step')}",
}


def in_words(decision: Decision | None) -> str:
    """What a scheduler did, as a sentence without its subject."""
    if decision is None:
        return "decides nothing more in this step"
    words = _WORDS.get(decision[0])
    return words(decision) if words else " ".join(str(part) for part in decision)
