"""Two columns request by request: the same requests under both, and what became of each.

Percentiles of two runs say nothing about single requests. A policy that helps most and starves a few shows here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from kvtop.analysis.replicates import pairs
from kvtop.analysis.stats import mean, percentile, ratio
from kvtop.analysis.summary import RequestTimes, RunSummary

LABELS = {"ttft": "TTFT", "tpot": "TPOT", "e2e": "E2E"}


@dataclass(frozen=True, slots=True)
class Victim:
    """The request that lost most. Times in ns."""

    request_id: str
    replicate: int | None
    before: int
    after: int

    @property
    def difference(self) -> int:
        return self.after - self.before


@dataclass(frozen=True, slots=True)
class Differences:
    """after - before of ``n`` requests, in ns."""

    n: int
    mean: float | None
    p5: float | None
    p50: float | None
    p95: float | None
    num_worse: int
    num_better: int

    @property
    def worse(self) -> float | None:
        return ratio(self.num_worse, self.n)

    @property
    def better(self) -> float | None:
        return ratio(self.num_better, self.n)

    @classmethod
    def of(cls, values: Sequence[int]) -> Differences:
        ordered = sorted(values)
        p5, p50, p95 = (percentile(ordered, q) for q in (5, 50, 95))
        return cls(
            len(ordered), mean(ordered), p5, p50, p95, sum(v > 0 for v in ordered), sum(v < 0 for v in ordered)
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class PairedMetric:
    """One metric of all requests that have it in both runs, replicates pooled."""

    key: str
    label: str
    all: Differences
    unpaired: tuple[int, int]  # requests that have it only in the first, only in the other run
    worst: Victim | None  # None: no request was made worse
    classes: dict[str, Differences] = field(default_factory=dict)  # empty where all requests are of one class

    def as_json(self) -> dict[str, Any]:
        """Plain data; times in ns."""
        return {
            "unit": "ns",
            **_json(self.all),
            "only_in_first": self.unpaired[0],
            "only_in_this": self.unpaired[1],
            "worst": self.worst
            and {
                "request_id": self.worst.request_id,
                "replicate": self.worst.replicate,
                "before": self.worst.before,
                "after": self.worst.after,
            },
            "classes": {name: _json(found) for name, found in self.classes.items()},
        }


def _json(found: Differences) -> dict[str, Any]:
    names = ("n", "mean", "p5", "p50", "p95", "num_worse", "num_better")
    return {name: getattr(found, name) for name in names} | {"worse": found.worse, "better": found.better}


def paired_metrics(first: Sequence[RunSummary], other: Sequence[RunSummary]) -> list[PairedMetric]:
    """TTFT, TPOT and E2E of the same requests in two columns; empty where no replicates pair."""
    both = pairs(first, other)
    return [_paired(both, key) for key in LABELS] if both else []


class HasRequests(Protocol):
    """A ``RunSummary``, or what is known of a run that goes on."""

    @property
    def requests(self) -> list[RequestTimes]: ...


def paired_requests(first: HasRequests, other: HasRequests, key: str) -> list[tuple[RequestTimes, RequestTimes]]:
    """Requests that have the metric ``key`` in both runs, by intended arrival in the first."""
    theirs = {request.request_id: request for request in other.requests}
    return [
        (request, theirs[request.request_id])
        for request in first.requests
        if getattr(request, key) is not None and getattr(theirs.get(request.request_id), key, None) is not None
    ]


def _paired(both: Sequence[tuple[RunSummary, RunSummary]], key: str) -> PairedMetric:
    values: list[int] = []
    classes: dict[str, list[int]] = {}
    worst: Victim | None = None
    only_first = only_other = 0
    for first, other in both:
        found = paired_requests(first, other, key)
        only_first += sum(getattr(request, key) is not None for request in first.requests) - len(found)
        only_other += sum(getattr(request, key) is not None for request in other.requests) - len(found)
        for before, after in found:
            victim = Victim(
                before.request_id, first.manifest.get("replicate"), getattr(before, key), getattr(after, key)
            )  # fmt: skip
            values.append(victim.difference)
            classes.setdefault(before.klass, []).append(victim.difference)
            if victim.difference > (worst.difference if worst else 0):
                worst = victim
    by_class = {name: Differences.of(classes[name]) for name in sorted(classes)} if len(classes) > 1 else {}
    return PairedMetric(key, LABELS[key], Differences.of(values), (only_first, only_other), worst, by_class)
