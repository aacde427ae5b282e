"""What one step did, and why it could not do more: evictions, shortages, stalls."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from itertools import repeat

import msgspec

from kvtop.engine.plan import Plan
from kvtop.engine.reasons import FinishReason, WaitReason


@dataclass(frozen=True, slots=True)
class Shortage:
    """Why an admission or a growth is refused now, in blocks. ``largest_hole``: contiguous allocators only."""

    reason: WaitReason
    need: int
    have: int
    largest_hole: int | None = None


class Eviction(msgspec.Struct, frozen=True, gc=False):
    """One published block that was taken away, and on whose account."""

    block: int
    key: int
    parent_key: int
    cause: str  # sequence id that needed the room
    step: int
    age_steps: int  # since it was published
    idle_steps: int  # since its last use
    uses: int  # times it was handed out as a hit


class EvictedRun(msgspec.Struct, frozen=True, gc=False):
    """Blocks evicted together, as columns: an ``Eviction`` of each is made for those who ask only."""

    cause: str
    step: int
    blocks: Seq[int]
    keys: Seq[int]
    parent_keys: Seq[int]
    ages: Seq[int]
    idle: Seq[int]
    uses: Seq[int]

    def evictions(self) -> Iterator[Eviction]:
        ids, times = (self.blocks, self.keys, self.parent_keys), (self.ages, self.idle, self.uses)
        return map(Eviction, *ids, repeat(self.cause), repeat(self.step), *times)


@dataclass(frozen=True, slots=True)
class Stall:
    """Nothing can advance: which sequence is stuck, why, and on what."""

    request_id: str
    reason: WaitReason
    need: int
    have: int


@dataclass(slots=True)
class StepOutput:
    """What one step did. Ids are sequence ids (``a``, ``a#1``).

    ``tokens`` are those emitted: one a branch that sampled; of a beam request all of its answers in the step in which
    it ends, and nothing before. Beams that are no answer are among ``finished`` too, with the reason ``dropped``.
    ``texts`` is there for requests with stop strings: the text that is safe to show since the last one.
    """

    step: int
    tokens: dict[str, list[int]] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    finished: dict[str, FinishReason] = field(default_factory=dict)
    preempted: list[str] = field(default_factory=list)
    admitted: list[str] = field(default_factory=list)
    evicted_runs: list[EvictedRun] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)  # request ids all of whose sequences have finished
    plan: Plan = field(default_factory=lambda: Plan(0))
    stalled: Stall | None = None

    @property
    def evicted(self) -> list[Eviction]:
        """Blocks taken out of the cache, in order. Made anew with every call."""
        return [eviction for run in self.evicted_runs for eviction in run.evictions()]
