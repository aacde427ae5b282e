"""Latency at the cursor: what is measured, and how it is distributed."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from kvtop.analysis.outcome import status_of
from kvtop.analysis.slo import Goodput, goodput, parse_slo
from kvtop.state.model import RunState
from kvtop.state.request_rows import EndedRow, Row, ended_rows
from kvtop.state.samples import LATENCY_WINDOW_NS, Counted, Point, Samples


@dataclass(frozen=True, slots=True)
class Metric:
    """``cuts``: the first and last of the moments due, submitted, scheduled, first token, last token, end."""

    key: str
    title: str
    meaning: str
    cuts: tuple[str, str]


METRICS: dict[str, Metric] = {
    "ttft": Metric("ttft", "TTFT", "due until first token", ("due", "first")),
    "itl": Metric("itl", "ITL", "gap between two tokens of a sequence", ("first", "last")),
    "tpot": Metric("tpot", "TPOT", "mean gap of an answer", ("first", "last")),
    "queue": Metric("queue", "queue", "submission until its first step", ("submitted", "scheduled")),
    "e2e": Metric("e2e", "E2E", "due until end", ("due", "end")),
}


def points_of(state: RunState, key: str) -> list[Point]:
    """Samples of the last 60 s, oldest first. TPOT and E2E: of requests that ended well, the newest 500 at most."""
    if key in ("ttft", "itl", "queue"):
        samples: Samples = getattr(state, key)
        return [point for point in samples.points if point[0] >= state.t_ns - LATENCY_WINDOW_NS]
    rows = [(row, value) for row in ended_well(state) if (value := value_of(row, key)) is not None]
    return [(row.event.t_done_ns or row.event.t_ns, round(value), 1) for row, value in reversed(rows)]


def ended_well(state: RunState) -> Iterator[EndedRow]:
    """Requests that ended within the window with an answer, newest first."""
    for row in ended_rows(state):
        if (row.event.t_done_ns or 0) >= state.t_ns - LATENCY_WINDOW_NS and status_of(row.event) == "ok":
            yield row


def value_of(row: Row, key: str) -> float | None:
    """A request's own value of a metric; of ITL its longest gap (of a live one the last)."""
    if key == "e2e":
        return row.age_ns if isinstance(row, EndedRow) else None
    return getattr(row, f"{key}_ns")


# Distribution ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Bin:
    """Values above ``low_ns`` up to ``high_ns``; ``below``: the share of all values up to ``high_ns``."""

    low_ns: int
    high_ns: int
    count: int
    below: float


@dataclass(slots=True)
class Spread:
    """Percentiles by linear interpolation; None where there are no values."""

    n: int = 0
    p50: float | None = None
    p90: float | None = None
    p95: float | None = None
    p99: float | None = None
    peak: int | None = None


def _counted(points: Iterable[Point]) -> list[tuple[int, int]]:
    counts: dict[int, int] = {}
    for _, value, count in points:
        counts[value] = counts.get(value, 0) + count
    return sorted(counts.items())


def spread_of(points: Iterable[Point]) -> Spread:
    counted = Counted(points)
    if not counted.values:
        return Spread()
    p50, p90, p95, p99 = (counted.percentile(q) for q in (50, 90, 95, 99))
    return Spread(counted.n, p50, p90, p95, p99, counted.values[-1])


_SERIES = ((10, 12, 15, 20, 25, 30, 40, 50, 60, 80), (10, 15, 20, 30, 50, 70), (10, 20, 50), (10,))
"""Round edges in a power of ten, times ten, the finest first."""
_FEW = 0.05  # share of all values


def histogram(points: Iterable[Point], most_bins: int) -> list[Bin]:
    """At most ``most_bins`` bins with round edges, as fine as that allows; the low ones together if it does not."""
    ordered = _counted(points)
    if not ordered:
        return []
    edges = _fitting(ordered, max(1, most_bins))
    total, place, passed = sum(count for _, count in ordered), 0, 0
    bins: list[Bin] = []
    for low, high in pairwise(edges):
        count = 0
        while place < len(ordered) and ordered[place][0] <= high:
            count += ordered[place][1]
            place += 1
        passed += count
        bins.append(Bin(low, high, count, passed / total))
    return bins


def _fitting(ordered: Sequence[tuple[int, int]], most_bins: int) -> list[int]:
    """Edges of the finest series that has room; of the next finer one, its low bins together, where the former leaves
    half of the room empty and few values are low."""
    together: list[int] | None = None
    for series in _SERIES:
        edges = _edges(ordered[0][0], ordered[-1][0], series)
        if len(edges) <= most_bins + 1:
            if together is None or 2 * (len(edges) - 1) > most_bins:
                return edges
            num_low = sum(count for value, count in ordered if value <= together[1])
            return together if num_low <= _FEW * sum(count for _, count in ordered) else edges
        together = [0, *edges[-most_bins:]]
    return together or [0]


def _edges(least: int, most: int, series: Sequence[int]) -> list[int]:
    """From the last edge below ``least`` (or 0) to the first at or above ``most``."""
    edges, scale = [0], 1
    while edges[-1] < max(1, most):
        edges += [step * scale // 10 for step in series if step * scale % 10 == 0]
        scale *= 10
    first = max(0, bisect_left(edges, least) - 1)
    last = bisect_left(edges, max(1, most))
    return edges[first : max(last, first + 1) + 1]


# Objectives --------------------------------------------------------------------------------------------------


def objectives_met(state: RunState) -> Goodput | None:
    """Of the requests that ended within the window, as ``--slo`` judges them; None: no objectives were given."""
    texts = state.manifest.get("slo")
    if not texts:
        return None
    oldest = state.t_ns - LATENCY_WINDOW_NS
    rows = [_judged(row) for row in ended_rows(state) if (row.event.t_done_ns or row.event.t_ns) >= oldest]
    return goodput(rows, parse_slo(list(texts)), min(state.t_ns, LATENCY_WINDOW_NS))


def _judged(row: EndedRow) -> dict[str, Any]:
    event = row.event
    first, submit = event.t_first_token_ns, event.t_submit_ns
    return {
        "class": event.klass or None,
        "status": status_of(event),
        "ttft_ns": row.ttft_ns,
        "ttft_submit_ns": None if first is None else first - submit,
        "queue_total_ns": event.queue_total_ns,
        "tpot_ns": event.tpot_ns,
        "itl_max_ns": event.itl_max_ns,
        "e2e_ns": None if event.t_done_ns is None else event.t_done_ns - event.t_sched_ns,
    }
