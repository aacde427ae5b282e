"""The load of a run: the rate its workload asked for, the rate that arrived, and how late requests were handed in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvtop.analysis.stats import Distribution, ratio

SAME_LOAD = 0.01
"""Realised rates that differ by more are not the same load."""

SLACK = 1.1
SLACK_NS = 5_000_000
"""A lag above ``SLACK`` times the longest step and this beside it is not explained by the step."""

ON_TIME = 0.005
"""A realised rate further from the offered one is told."""


@dataclass(frozen=True, slots=True)
class Load:
    """Rates are (n - 1) / (last - first), per second; None below two requests or when all came at once."""

    offered_s: float | None  # by intended arrivals; of a closed loop these follow from when answers ended
    realised_s: float | None  # by submissions
    lag: Distribution  # ns, submission - intended arrival
    longest_step_ns: int | None  # requests are handed in between steps: a lag up to this is the engine's own
    num_late: int  # requests with a lag beyond it: something else held the generator up
    closed_loop: bool | None  # None: not recorded

    @property
    def deviation(self) -> float | None:
        """Of the realised rate from the offered one, as a fraction."""
        found = ratio(self.realised_s, self.offered_s)
        return None if found is None else found - 1


def load_of(rows: Sequence[Mapping[str, Any]], longest_step_ns: int | None, loop: str | None) -> Load:
    """From rows of requests.parquet, the longest step, and the manifest's ``loop`` (open or closed)."""
    bound = SLACK * (longest_step_ns or 0) + SLACK_NS
    return Load(
        offered_s=_rate([row["t_sched_ns"] for row in rows]),
        realised_s=_rate([row["t_submit_ns"] for row in rows]),
        lag=Distribution.of(row["lag_ns"] for row in rows),
        longest_step_ns=longest_step_ns,
        num_late=sum(row["lag_ns"] is not None and row["lag_ns"] > bound for row in rows),
        closed_loop=None if loop is None else loop == "closed",
    )


def _rate(times: Sequence[int | None]) -> float | None:
    known = [t_ns for t_ns in times if t_ns is not None]
    return ratio((len(known) - 1) * 1_000_000_000, max(known) - min(known)) if len(known) > 1 else None


def same_load(first: Load, other: Load) -> bool | None:
    """Whether the realised rates lie within ``SAME_LOAD`` of each other; None where one of them is not known."""
    if first.realised_s is None and other.realised_s is None:
        return True  # all at once, or a single request: under both
    if not first.realised_s or not other.realised_s:
        return None
    return abs(other.realised_s / first.realised_s - 1) <= SAME_LOAD
