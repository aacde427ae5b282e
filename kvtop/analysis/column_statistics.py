"""What a comparison may say about chance: by replicates where there are any, else within the one run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from kvtop.analysis.inference import Interval
from kvtop.analysis.measures import Measure
from kvtop.analysis.paired import PairedMetric, paired_metrics
from kvtop.analysis.replicates import LOG_RATIO, ReplicateTest, compare_replicates
from kvtop.analysis.single_run import RunInterval, change_intervals, run_intervals
from kvtop.analysis.summary import RunSummary


@dataclass(frozen=True, slots=True)
class Statistics:
    """Of one column. Everything but ``run_only`` is against the first column, and empty for the first itself."""

    tests: list[ReplicateTest] = field(default_factory=list)  # primary metrics
    paired: list[PairedMetric] = field(default_factory=list)  # request by request
    run_only: list[RunInterval] = field(default_factory=list)  # empty where there are replicates
    change_only: list[RunInterval] = field(default_factory=list)  # this pair of runs only

    def as_json(self) -> dict[str, Any]:
        return {
            "replicates": [_test_json(test) for test in self.tests],
            "requests": {metric.key: metric.as_json() for metric in self.paired},
            "this_run_only": {found.key: _run_json(found, "ns") for found in self.run_only},
            "change_this_run_only": {found.key: _run_json(found, "ratio") for found in self.change_only},
        }


def column_statistics(columns: Sequence[Sequence[RunSummary]], primary: Sequence[Measure]) -> list[Statistics]:
    """For each column, its runs given."""
    first, others = columns[0], columns[1:]
    tests = compare_replicates(first, others, primary)
    alone = all(len(runs) == 1 for runs in columns)
    found = [Statistics(run_only=run_intervals(first[0]) if alone else [])]
    for runs, own in zip(others, tests, strict=True):
        found.append(
            Statistics(
                tests=own,
                paired=paired_metrics(first, runs),
                run_only=run_intervals(runs[0]) if alone else [],
                change_only=change_intervals(first[0], runs[0]) if alone else [],
            )
        )
    return found


def _interval_json(interval: Interval | None) -> dict[str, Any] | None:
    if interval is None:
        return None
    return {
        "estimate": interval.estimate,
        "low": interval.low,
        "high": interval.high,
        "confidence": interval.confidence,
        "p": interval.p,
    }


def _test_json(test: ReplicateTest) -> dict[str, Any]:
    return {
        "metric": test.measure.key,
        "scale": test.scale,
        "unit": "ratio" if test.scale == LOG_RATIO else test.measure.unit,
        "pairs": test.n,
        "change": _interval_json(test.change),
        "p_holm": test.p_holm,
        "reason": test.reason or None,
    }


def _run_json(found: RunInterval, unit: str) -> dict[str, Any]:
    return {"n": found.n, "unit": unit, "interval": _interval_json(found.interval)}
