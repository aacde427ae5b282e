"""Stretches of waiting: from the head of the queue in each step, and from what was decided about it.

A sequence that heads the queue has a ``skipped`` decision when its reason or its blocker changes. Everyone behind it
waits for the head and has no decision of its own: that is read off the steps.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kvtop.why.facts import StepTimes
from kvtop.why.words import lasting, listed, refusal

HEAD_OF_LINE = "head_of_line"
BEAMS = "beams"
MAX_LINES = 6  # stretches of one wait told one by one; more are told by reason


@dataclass(frozen=True, slots=True)
class Refusal:
    """One ``skipped`` decision, with the blocks its blocker held at that moment (None: not known)."""

    step: int
    reason: str
    other: str | None
    need: int | None
    have: int | None
    held: int | None


@dataclass(frozen=True, slots=True)
class Stretch:
    """Consecutive steps waited for one reason. ``other`` is the blocker, or the head of the line."""

    reason: str
    other: str | None
    first_step: int
    num_steps: int
    t_from_ns: int | None
    wait_ns: int | None
    refused: Refusal | None = None  # the decision behind it: its own, or that of the head it waited behind

    def as_json(self) -> dict[str, Any]:
        """Numbers of the reason; for a stretch behind somebody those of the head, marked so."""
        found = {
            "reason": self.reason,
            "other": self.other,
            "first_step": self.first_step,
            "num_steps": self.num_steps,
            "wait_ns": self.wait_ns,
        }
        if (why := self.refused) is None:
            return found
        numbers = {"need": why.need, "have": why.have}
        if self.reason == HEAD_OF_LINE:
            return found | {"head_reason": why.reason, "head_other": why.other} | numbers
        return found | numbers | {"held_by_other": why.held}


@dataclass(frozen=True, slots=True)
class Wait:
    """From when to when a sequence was not running: steps ``first_step`` to ``until_step`` - 1."""

    seq_id: str
    first_step: int
    until_step: int | None  # None: to the end of what is known
    t_from_ns: int | None
    t_until_ns: int | None
    preempted: bool = False  # in ``first_step``: whose queue says nothing about it yet


def stretches(wait: Wait, steps: Sequence[StepTimes], refusals: Mapping[str, Sequence[Refusal]]) -> list[Stretch]:
    """Split a wait by reason. Steps that say nothing join the stretch that follows. Complexity: O(steps waited)."""
    inside = _inside(wait, steps)
    if not inside:
        return []
    found: list[Stretch] = []
    unsaid = 0
    start_ns = wait.t_from_ns
    for place, step in enumerate(inside):
        silent = wait.preempted and place == 0
        label = _label(wait, step, refusals, own_only=silent)
        if label is None:
            unsaid += 1
            continue
        reason, other, refused = label
        last = found[-1] if found else None
        if last is not None and (last.reason, last.other) == (reason, other):
            found[-1] = replace(last, num_steps=last.num_steps + 1 + unsaid, refused=refused or last.refused)
        else:
            begin = start_ns if last is None else step.t_start_ns
            first = step.step if last is not None else inside[0].step
            found.append(Stretch(reason, other, first, 1 + unsaid, begin, None, refused))
        unsaid = 0
    if not found:
        found = [Stretch("", None, inside[0].step, len(inside), start_ns, None)]
    elif unsaid:
        found[-1] = replace(found[-1], num_steps=found[-1].num_steps + unsaid)
    return _timed(found, wait.t_until_ns)


def _inside(wait: Wait, steps: Sequence[StepTimes]) -> Sequence[StepTimes]:
    low = bisect_left(steps, wait.first_step, key=lambda s: s.step)
    high = len(steps) if wait.until_step is None else bisect_left(steps, wait.until_step, key=lambda s: s.step)
    return steps[low:high]


def _label(
    wait: Wait, step: StepTimes, refusals: Mapping[str, Sequence[Refusal]], *, own_only: bool
) -> tuple[str, str | None, Refusal | None] | None:
    own = _latest(refusals.get(wait.seq_id, ()), step.step, wait.first_step)
    if step.head == wait.seq_id or (own is not None and own.reason == BEAMS):  # which is in no queue
        return (own.reason, own.other, own) if own else None
    if not step.head or own_only:
        return None
    return HEAD_OF_LINE, step.head, _latest(refusals.get(step.head, ()), step.step)


def _latest(refusals: Sequence[Refusal], step: int, first_step: int = 0) -> Refusal | None:
    """The last one in or before ``step``, none before ``first_step``."""
    index = bisect_left(refusals, step + 1, key=lambda r: r.step) - 1
    return refusals[index] if index >= 0 and refusals[index].step >= first_step else None


def _timed(found: list[Stretch], t_until_ns: int | None) -> list[Stretch]:
    ends = [stretch.t_from_ns for stretch in found[1:]] + [t_until_ns]
    return [
        replace(s, wait_ns=None if end is None or s.t_from_ns is None else end - s.t_from_ns)
        for s, end in zip(found, ends, strict=True)
    ]


@dataclass(frozen=True, slots=True)
class Told:
    """Stretches told in one line, and its text."""

    stretches: list[Stretch]
    text: str


def tell(found: list[Stretch], run: Mapping[str, Any]) -> list[Told]:
    """One line a stretch; neighbours behind somebody share one, and many short ones are told by reason."""
    groups: list[list[Stretch]] = []
    for stretch in found:
        behind = stretch.reason == HEAD_OF_LINE
        if behind and groups and groups[-1][0].reason == HEAD_OF_LINE:
            groups[-1].append(stretch)
        else:
            groups.append([stretch])
    if len(groups) > MAX_LINES:
        by_reason: dict[str, list[Stretch]] = {}
        for stretch in found:
            by_reason.setdefault(stretch.reason, []).append(stretch)
        groups = list(by_reason.values())
    return [Told(group, _text(group, run)) for group in groups]


def total_ns(found: Sequence[Stretch]) -> int | None:
    times = [s.wait_ns for s in found]
    return None if None in times else sum(t for t in times if t is not None)


def _text(group: list[Stretch], run: Mapping[str, Any]) -> str:
    waited = f"waited {lasting(total_ns(group), sum(s.num_steps for s in group))}"
    if group[0].reason == HEAD_OF_LINE:
        return f"{waited} behind {_heads(group, run)}"
    times = f", {len(group):,} times" if len(group) > 1 else ""
    return f"{waited}{times}: {_why(group[-1], run)}{' (the last time)' if times else ''}"


def _heads(group: list[Stretch], run: Mapping[str, Any]) -> str:
    """Those it waited behind, the longest first."""
    steps: dict[str, int] = {}
    for stretch in group:
        steps[str(stretch.other)] = steps.get(str(stretch.other), 0) + stretch.num_steps
    longest = sorted(steps, key=lambda head: -steps[head])
    if len(longest) == 1:
        return f"{longest[0]}, ahead in the queue ({_why(group[-1], run)})"
    shown = [f"{head} ({steps[head]:,} steps)" if steps[head] > 1 else f"{head} (1 step)" for head in longest]
    last = next(s for s in reversed(group) if s.other == longest[0])
    return f"{listed(shown)}, ahead in the queue ({longest[0]}: {_why(last, run)})"


def _why(stretch: Stretch, run: Mapping[str, Any]) -> str:
    why = stretch.refused
    if why is None:
        return refusal("", None, None, None, None, run)
    return refusal(why.reason, why.need, why.have, why.other, why.held, run)
