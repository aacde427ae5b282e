"""What everybody has done so far, as far as a request's lines need it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from kvtop.why.facts import Facts, StepTimes
from kvtop.why.lines import Line
from kvtop.why.waits import Refusal


@dataclass(slots=True)
class Log:
    """What the log has said so far, of everybody, and the lines made from it."""

    facts: Facts
    times: dict[int, StepTimes]
    missed: dict[str, list[tuple[str, int]]]  # by evicting sequence: who missed a block later, and in which step
    refusals: dict[str, list[Refusal]] = field(default_factory=dict)  # by sequence
    held: Counter[str] = field(default_factory=Counter)  # table entries by sequence
    publisher: dict[int, str] = field(default_factory=dict)  # block -> who published what is in it
    lines: list[Line] = field(default_factory=list)

    def start(self, step: int) -> int | None:
        return self.times[step].t_start_ns if step in self.times else None

    def done(self, step: int) -> int | None:
        return self.times[step].t_done_ns if step in self.times else None
