"""A request's life as stretches of time, and what it held and how fast it was underneath: what a strip is drawn from.

The stretches are the lines that ``explain`` gives, so that a strip and the words of ``w`` cannot disagree.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from kvtop.why.explain import explain
from kvtop.why.facts import Facts, Row, StepTimes
from kvtop.why.lines import Line
from kvtop.workloads.words import counted

KINDS = ("late", "queue", "prefill", "decode", "preempted", "redo")


@dataclass(frozen=True, slots=True)
class Phase:
    """From ``start_ns`` to ``end_ns`` it did one thing, of ``KINDS``; ``preempted`` is a moment."""

    kind: str
    start_ns: int
    end_ns: int
    step: int | None  # the first one
    text: str  # a few words

    @property
    def ns(self) -> int:
        return self.end_ns - self.start_ns


@dataclass(slots=True)
class Strip:
    """``tokens``: (end of a step, positions it held keys and values of then); ``gaps``: (a token, the gap before)."""

    start_ns: int = 0
    end_ns: int = 0
    phases: list[Phase] = field(default_factory=list)
    tokens: list[tuple[int, int]] = field(default_factory=list)
    gaps: list[tuple[int, int]] = field(default_factory=list)

    @property
    def lost_ns(self) -> int:
        """Time without blocks, and computing again."""
        first = next((i for i, phase in enumerate(self.phases) if phase.kind == "preempted"), len(self.phases))
        return sum(phase.ns for phase in self.phases[first:] if phase.kind in ("queue", "redo"))


def strip_of(facts: Facts) -> Strip:
    """The life of ``facts.name`` from its arrival to its end, or until now. O(decisions + steps lived)."""
    steps = {step.step: step for step in facts.steps}
    lines = [line for line in explain(facts) if line.seq_id == facts.name]
    found = Strip()
    found.phases = _phases(lines, steps, facts.request)
    times = [t for phase in found.phases for t in (phase.start_ns, phase.end_ns)]
    times += [line.t_ns for line in lines if line.t_ns is not None and line.kind in ("ended", "now", "cut_off")]
    if times:
        found.start_ns, found.end_ns = min(times), max(times)
    _samples(found, facts, steps)
    return found


def _phases(lines: Sequence[Line], steps: Mapping[int, StepTimes], request: Row) -> list[Phase]:
    found: list[Phase] = []
    due, submit = request.get("t_sched_ns"), request.get("t_submit_ns")
    if due is not None and submit is not None and submit > due:
        found.append(Phase("late", due, submit, None, "a step ran when it was due"))
    for line in lines:
        if line.t_ns is not None and (make := _MAKE.get(line.kind)):
            found += make(line, steps)
    return _joined(found)


def _joined(found: list[Phase]) -> list[Phase]:
    """Waits of several lines that follow each other are one stretch."""
    out: list[Phase] = []
    for phase in found:
        last = out[-1] if out else None
        if last is not None and last.kind == phase.kind == "queue":
            out[-1] = Phase("queue", last.start_ns, phase.end_ns, last.step, f"{last.text}; {phase.text}")
        elif last is not None and last.kind == "redo" and phase.start_ns < last.end_ns <= phase.end_ns:
            out.append(replace(phase, start_ns=last.end_ns))  # the step that came back also emitted: it counts once
        else:
            out.append(phase)
    return out


def _queue(line: Line, steps: Mapping[int, StepTimes]) -> list[Phase]:
    parts = line.numbers["stretches"]
    total = sum(part["wait_ns"] or 0 for part in parts)
    reasons = dict.fromkeys(_reason(part) for part in parts)
    return [Phase("queue", line.t_ns or 0, (line.t_ns or 0) + total, line.step, ", ".join(r for r in reasons if r))]


def _reason(part: Mapping[str, object]) -> str:
    reason = str(part["reason"])
    if reason == "head_of_line":
        return f"behind {part['other']}"
    if reason in ("no_blocks", "pinned", "no_hole") and part.get("need"):
        return f"needs {part['need']} blocks, {part['have']} there"
    return {
        "seats": "all seats taken",
        "budget": "the step's tokens spent",
        "preempting": "somebody was preempted",
        "beams": "for the other beams",
    }.get(reason, reason.replace("_", " "))


def _prefill(line: Line, steps: Mapping[int, StepTimes]) -> list[Phase]:
    chunks = line.numbers["chunks"]
    end = _done(steps, chunks[-1]["step"], line.t_ns)
    pieces = f" in {len(chunks):,} chunks" if len(chunks) > 1 else ""
    cached = f", {chunks[0]['start']:,} from the cache" if chunks[0]["start"] else ""
    text = f"{line.numbers['computed_tokens']:,} computed{pieces}{cached}"
    return [Phase("prefill", line.t_ns or 0, end, line.step, text)]


def _decode(line: Line, steps: Mapping[int, StepTimes]) -> list[Phase]:
    first, last, count = line.numbers["first_step"], line.numbers["last_step"], line.numbers["tokens"]
    start = steps[first].t_start_ns if first in steps else line.t_ns or 0
    return [Phase("decode", start, _done(steps, last, line.t_ns), first, counted(count, "token"))]


def _preempted(line: Line, steps: Mapping[int, StepTimes]) -> list[Phase]:
    n = line.numbers
    cost = (
        f"{counted(n['lost_tokens'], 'token')} lost"
        if n["lost_tokens"]
        else f"{counted(n['swapped_tokens'], 'token')} kept in host memory"
    )
    text = f"for {n['other']}; {counted(n['released_blocks'], 'block')} given back, {cost}"
    return [Phase("preempted", line.t_ns or 0, line.t_ns or 0, line.step, text)]


def _redo(line: Line, steps: Mapping[int, StepTimes]) -> list[Phase]:
    n, step = line.numbers, line.step or 0
    last = step - n["away_steps"] + n["lost_steps"]
    text = f"{n['recomputed_tokens']:,} computed again, {n['restored_tokens']:,} restored"
    return [Phase("redo", line.t_ns or 0, _done(steps, last, line.t_ns), line.step, text)] if n["lost_ns"] else []


_MAKE = {"waited": _queue, "prefill": _prefill, "decode": _decode, "preempted": _preempted, "resumed": _redo}


def _done(steps: Mapping[int, StepTimes], step: int, otherwise: int | None) -> int:
    return steps[step].t_done_ns if step in steps else otherwise or 0


def _samples(found: Strip, facts: Facts, steps: Mapping[int, StepTimes]) -> None:
    """Positions held after each step that changed them, and gaps between tokens."""
    prompt, emitted, known = int(facts.request["prompt_tokens"]), [], 0
    known = prompt
    for row in facts.decisions:
        if row.get("request_id") != facts.name:
            continue
        step = steps.get(row["step"])
        if step is None:
            continue
        if row["kind"] == "known":
            known = row["known_tokens"]
        elif row["kind"] == "chunk":
            end = (row["age_steps"] or 0) + row["num_tokens"]
            found.tokens.append((step.t_done_ns, end))
            if end >= known:
                known = end + 1
                emitted.append(step.t_done_ns)
        elif row["kind"] == "preempted":
            found.tokens.append((step.t_start_ns, 0))
    found.gaps = [(after, after - before) for before, after in pairwise(emitted)]
