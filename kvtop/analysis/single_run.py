"""How far the figures of one run depend on which stretch of it was looked at: a moving-block bootstrap.

It knows nothing of other runs. Where there are replicates, their spread says more, and this is not computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvtop.analysis.inference import BlockBootstrap, Interval, bootstrap_interval
from kvtop.analysis.paired import HasRequests, paired_requests
from kvtop.analysis.stats import percentile
from kvtop.analysis.summary import RunSummary

BOOTSTRAPPED = (("ttft", "TTFT", (50, 99)), ("tpot", "TPOT", (50,)), ("e2e", "E2E", (50,)))
"""Field of RequestTimes, its name for the user, percentiles."""

FEWEST = {50: 10, 99: 100}
"""A percentile of fewer values has no interval: the resamples would hardly differ from the largest value."""


@dataclass(frozen=True, slots=True)
class RunInterval:
    """One percentile, in ns; or, of a pair of runs, its relative change."""

    key: str  # of the measure
    label: str
    n: int
    interval: Interval | None  # None: fewer than ``FEWEST`` values, or a change from 0


def run_intervals(run: RunSummary) -> list[RunInterval]:
    """This run only: intervals around its own percentiles, ns."""
    found = []
    for key, label, qs in BOOTSTRAPPED:
        values = [value for request in run.requests if (value := getattr(request, key)) is not None]
        asked = [q for q in qs if len(values) >= FEWEST[q]]
        resampled = BlockBootstrap(len(values)).percentiles([values], asked)[0] if asked else []
        for q in qs:
            interval = None
            if q in asked:
                interval = bootstrap_interval(_percentile(values, q), resampled[asked.index(q)], len(values))
            found.append(RunInterval(f"{key}_p{q}_ns", f"{label} p{q}", len(values), interval))
    return found


def change_intervals(first: HasRequests, other: HasRequests) -> list[RunInterval]:
    """This pair of runs only: relative changes over the requests that both have, resampled in pairs."""
    found = []
    for key, label, qs in BOOTSTRAPPED:
        both = paired_requests(first, other, key)
        before = [getattr(request, key) for request, _ in both]
        after = [getattr(request, key) for _, request in both]
        asked = [q for q in qs if len(both) >= FEWEST[q]]
        resampled = BlockBootstrap(len(both)).percentiles([before, after], asked) if asked else [[], []]
        for q in qs:
            interval = None
            if q in asked:
                place = asked.index(q)
                interval = _change(before, after, q, resampled[0][place], resampled[1][place])
            found.append(RunInterval(f"{key}_p{q}_ns", f"{label} p{q}", len(both), interval))
    return found


def _change(
    before: Sequence[int], after: Sequence[int], q: int, befores: Sequence[float], afters: Sequence[float]
) -> Interval | None:
    base = _percentile(before, q)
    if base <= 0 or min(befores) <= 0:
        return None
    changes = [b / a - 1 for a, b in zip(befores, afters, strict=True)]
    return bootstrap_interval(_percentile(after, q) / base - 1, changes, len(before))


def _percentile(values: Sequence[float], q: float) -> float:
    found = percentile(sorted(values), q)
    if found is None:
        raise ValueError("no values")
    return found
