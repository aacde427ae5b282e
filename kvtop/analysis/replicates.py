"""Two columns by their replicates: paired differences, t-intervals, and p-values adjusted for several metrics.

The unit is the replicate: one workload (arrivals, lengths, token ids, sampling seeds) under both configurations. Times
and rates are compared by the logarithm of their ratio, ratios and counts by their difference.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from kvtop.analysis.inference import Interval, holm, t_interval
from kvtop.analysis.measures import Measure
from kvtop.analysis.summary import RunSummary
from kvtop.workloads.words import counted

FOR_AN_INTERVAL = 3
FOR_A_VERDICT = 5

LOG_RATIO, DIFFERENCE = "log ratio", "difference"


@dataclass(frozen=True, slots=True)
class ReplicateTest:
    """One metric. ``change`` is relative where the scale is a log ratio, else in the metric's unit."""

    measure: Measure
    scale: str
    n: int  # pairs of replicates
    change: Interval | None  # None: ``reason`` says why
    p_holm: float | None = None  # from ``FOR_A_VERDICT`` pairs on
    reason: str = ""


def compare_replicates(
    first: Sequence[RunSummary], others: Sequence[Sequence[RunSummary]], measures: Sequence[Measure]
) -> list[list[ReplicateTest]]:
    """Each of ``others`` against ``first``; Holm's rule counts every metric of every one of them."""
    found = [[_test(first, other, measure) for measure in measures] for other in others]
    p_values = {
        f"{column} {row}": test.change.p
        for column, tests in enumerate(found)
        for row, test in enumerate(tests)
        if test.n >= FOR_A_VERDICT and test.change is not None and test.change.p is not None
    }
    adjusted = holm(p_values)
    return [
        [replace(test, p_holm=adjusted.get(f"{column} {row}")) for row, test in enumerate(tests)]
        for column, tests in enumerate(found)
    ]


def why_no_interval(first: Sequence[RunSummary], other: Sequence[RunSummary]) -> str:
    """Why nothing can be said about chance; "" when something can."""
    count = len(pairs(first, other))
    if count < FOR_AN_INTERVAL:
        return f"{counted(count, 'pair')} of replicates, an interval needs {FOR_AN_INTERVAL}"
    if same_requests(first) and all(run.simulated for run in (*first, *other)):
        return "simulated replicates of the same requests are one run repeated"
    return ""


def same_requests(runs: Sequence[RunSummary]) -> bool:
    """Several replicates, and the seed changed nothing but token ids: a recorded trace."""
    return len(runs) > 1 and len({run.asked for run in runs}) == 1


def one_run_repeated(runs: Sequence[RunSummary]) -> bool:
    """Several simulated replicates of the same requests, and every request had the same times in all of them."""
    first = runs[0]
    return (
        all(run.simulated for run in runs)
        and same_requests(runs)
        and all(
            (run.requests, run.duration_ns, run.hit_rate) == (first.requests, first.duration_ns, first.hit_rate)
            for run in runs
        )
    )


def _test(first: Sequence[RunSummary], other: Sequence[RunSummary], measure: Measure) -> ReplicateTest:
    values = [(measure.read(a), measure.read(b)) for a, b in pairs(first, other)]
    known = [(a, b) for a, b in values if a is not None and b is not None]
    scale = LOG_RATIO if measure.unit in ("ns", "/s") and all(a > 0 and b > 0 for a, b in known) else DIFFERENCE
    if reason := why_no_interval(first, other):
        return ReplicateTest(measure, scale, len(values), None, reason=reason)
    if len(known) < len(values):
        return ReplicateTest(measure, scale, len(known), None, reason="not reported by every replicate")
    if scale == DIFFERENCE:
        return ReplicateTest(measure, scale, len(known), t_interval([b - a for a, b in known]))
    interval = t_interval([math.log(b / a) for a, b in known])
    return ReplicateTest(measure, scale, len(known), interval and interval.mapped(math.expm1))


def pairs(first: Sequence[RunSummary], other: Sequence[RunSummary]) -> list[tuple[RunSummary, RunSummary]]:
    """Runs of the same replicate number, in order of it."""
    theirs = {run.manifest.get("replicate"): run for run in other}
    mine = sorted(first, key=lambda run: run.manifest.get("replicate") or 0)
    return [(run, theirs[number]) for run in mine if (number := run.manifest.get("replicate")) in theirs]
