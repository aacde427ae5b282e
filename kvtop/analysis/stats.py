"""Percentiles and means that say how many values they stand on, and are None (never NaN) when there are none."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


def percentile(ordered: Sequence[float], q: float) -> float | None:
    """The ``q``-th percentile (0..100) of ascending values, interpolated linearly; None when there are none."""
    if not ordered:
        return None
    rank = (len(ordered) - 1) * q / 100
    low = math.floor(rank)
    below, above = ordered[low], ordered[min(low + 1, len(ordered) - 1)]
    return below + (above - below) * (rank - low)


def mean(values: Sequence[float]) -> float | None:
    """The mean, summed without rounding error; None when there are no values."""
    return math.fsum(values) / len(values) if values else None


def ratio(part: float | None, whole: float | None) -> float | None:
    """``part / whole``; None when either is missing or the whole is 0."""
    return None if part is None or not whole else part / whole


@dataclass(frozen=True, slots=True)
class Distribution:
    """Percentiles of ``n`` values, in the values' unit."""

    n: int
    mean: float | None = None
    p50: float | None = None
    p95: float | None = None
    p99: float | None = None
    max: float | None = None

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Distribution:
        """Summary of the values that are not None."""
        kept = sorted(value for value in values if value is not None)
        if not kept:
            return cls(0)
        return cls(len(kept), mean(kept), percentile(kept, 50), percentile(kept, 95), percentile(kept, 99), kept[-1])
