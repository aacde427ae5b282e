"""A source, an inbox and an outlet in plain lists, for loops without processes."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from kvtop.engine.events import Command, Event, Keyframe
from kvtop.engine.types import RequestSpec, SamplingParams
from kvtop.state.model import PoolState, RunState


def request(index: int, *, at_ns: int = 0, prompt: int = 6, out: int = 4) -> RequestSpec:
    """Distinct tokens for each request."""
    tokens = [index * 1000 + i for i in range(prompt)]
    return RequestSpec(tokens, SamplingParams(max_tokens=out), request_id=f"q{index}", arrival_ns=at_ns)


def pool_of(state: RunState) -> PoolState:
    assert state.pool is not None
    return state.pool


class ListSource:
    """Requests at fixed times; ``follow`` may add more when one ends (a closed loop)."""

    def __init__(
        self, specs: Iterable[RequestSpec], follow: Callable[[str, int], RequestSpec | None] | None = None
    ) -> None:
        self.specs = sorted(specs, key=lambda s: s.arrival_ns or 0)
        self.follow = follow
        self.finished: list[tuple[str, int]] = []
        self.waits_for_ever = False

    def next_due(self) -> int | None:
        return self.specs[0].arrival_ns if self.specs else None

    def pop_due(self, now_ns: int) -> list[RequestSpec]:
        due = [s for s in self.specs if (s.arrival_ns or 0) <= now_ns]
        self.specs = self.specs[len(due) :]
        return due

    def on_finished(self, request_id: str, now_ns: int) -> None:
        self.finished.append((request_id, now_ns))
        if self.follow is not None and (spec := self.follow(request_id, now_ns)) is not None:
            self.specs.append(spec)

    @property
    def exhausted(self) -> bool:
        return not self.specs and not self.waits_for_ever


class ListInbox:
    """``script[k]`` is handed over at the k-th poll; ``waits`` records how long the loop wanted to sleep."""

    def __init__(
        self, script: dict[int, list[Command]] | None = None, on_wait: list[list[Command]] | None = None
    ) -> None:
        self.script = script or {}
        self.on_wait = on_wait or []  # commands that arrive during the k-th wait
        self.waits: list[float | None] = []
        self.num_polls = 0
        self._arrived: list[Command] = []

    def poll(self) -> list[Command]:
        commands = self.script.get(self.num_polls, []) + self._arrived
        self.num_polls, self._arrived = self.num_polls + 1, []
        return commands

    def wait(self, timeout_s: float | None) -> None:
        self.waits.append(timeout_s)
        if self.on_wait:
            self._arrived = self.on_wait.pop(0)
        elif timeout_s is None:
            raise AssertionError("the loop waits for ever, and no command is left")


class ListOutlet:
    def __init__(self) -> None:
        self.events: list[Event] = []
        self.batches: list[int] = []
        self.ask = False

    def send(self, events: list[Event]) -> None:
        self.events += events
        self.batches.append(len(events))

    def tick(self, step: int) -> bool:
        return self.ask

    def resync(self, keyframe: Keyframe) -> None:
        self.ask = False
        self.events.append(keyframe)

    def flush(self) -> bool:
        return True

    def of(self, kind: type) -> list:
        return [event for event in self.events if isinstance(event, kind)]
