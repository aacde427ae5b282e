"""Arrival rates over time, each with the time at which a given number of arrivals is expected."""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate
from math import sqrt
from typing import Protocol


class Rate(Protocol):
    """A rate over time, from 0 s on; the last rate is above 0."""

    def reached(self, expected: float) -> float:
        """The first time (s) up to which ``expected`` arrivals are expected."""
        ...


class Constant:
    def __init__(self, rate: float) -> None:
        self.rate = rate

    def reached(self, expected: float) -> float:
        return expected / self.rate


class Ramp:
    """From ``start`` to ``end`` a second in ``ramp_s``, then ``end``."""

    def __init__(self, start: float, end: float, ramp_s: float) -> None:
        self.start, self.end, self.ramp_s = start, end, ramp_s
        self.total = (start + end) / 2.0 * ramp_s  # expected during the ramp

    def reached(self, expected: float) -> float:
        if expected >= self.total:
            return self.ramp_s + (expected - self.total) / self.end
        slope = (self.end - self.start) / self.ramp_s
        # start * t + slope * t^2 / 2 = expected, in the form that loses no digits where slope is small
        root = self.start + sqrt(max(0.0, self.start * self.start + 2.0 * slope * expected))
        return 2.0 * expected / root if root else 0.0


class Steps:
    """``rates`` for ``lengths`` seconds each; then again from the first, or the last one for ever."""

    def __init__(self, rates: tuple[float, ...], lengths: tuple[float, ...], *, repeated: bool) -> None:
        self.rates, self.repeated = rates, repeated
        self.ends = list(accumulate(lengths))  # s
        self.sums = list(accumulate(rate * length for rate, length in zip(rates, lengths, strict=True)))

    def reached(self, expected: float) -> float:
        rounds = expected // self.sums[-1] if self.repeated else 0.0
        left = expected - rounds * self.sums[-1]
        index = min(bisect_left(self.sums, left), len(self.rates) - 1)
        done, began = (self.sums[index - 1], self.ends[index - 1]) if index else (0.0, 0.0)
        # a step without arrivals ends where it begins, as far as these are counted
        within = (left - done) / self.rates[index] if self.rates[index] else 0.0
        return rounds * self.ends[-1] + began + within
