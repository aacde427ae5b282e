"""Random numbers of one stream: the same from the same key, in every Python version and on every machine."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate
from math import sqrt
from random import Random

from kvtop.workloads.generators.portable import log, power


class Draws:
    """``key`` is the seed and what the numbers are for.

    Only ``Random.random()`` is promised to stay the same in every Python version, so everything is made from it.
    """

    def __init__(self, key: str) -> None:
        self.uniform = Random(key).random  # 0 <= u < 1

    def exponential(self) -> float:
        """Mean 1."""
        return -log(1.0 - self.uniform())

    def normal(self) -> float:
        """Mean 0, variance 1 (Marsaglia's polar method; the second number of a pair is not kept)."""
        while True:
            x, y = 2.0 * self.uniform() - 1.0, 2.0 * self.uniform() - 1.0
            square = x * x + y * y
            if 0.0 < square < 1.0:
                return x * sqrt(-2.0 * log(square) / square)

    def gamma(self, shape: float) -> float:
        """Mean and variance ``shape`` (Marsaglia and Tsang, "A simple method for generating gamma variables", 2000)."""
        if shape < 1.0:
            return self.gamma(shape + 1.0) * power(1.0 - self.uniform(), 1.0 / shape)
        d = shape - 1.0 / 3.0
        c = 1.0 / sqrt(9.0 * d)
        while True:
            x = self.normal()
            v = 1.0 + c * x
            if v <= 0.0:
                continue
            v = v * v * v
            if log(1.0 - self.uniform()) < 0.5 * x * x + d - d * v + d * log(v):
                return d * v

    def integer(self, low: int, high: int) -> int:
        """From low to high, both included, each as likely as the others."""
        return low + int(self.uniform() * (high - low + 1))


class Weighted:
    """Positions 0 .. n - 1, drawn in proportion to their weights."""

    def __init__(self, weights: Sequence[float]) -> None:
        self._sums = list(accumulate(weights))
        self._last = bisect_left(self._sums, self._sums[-1])  # of those whose weight is not 0

    def draw(self, draws: Draws) -> int:
        return min(bisect_right(self._sums, draws.uniform() * self._sums[-1]), self._last)


def zipf_weights(count: int, exponent: float) -> list[float]:
    """1 / rank^exponent; 0: all alike."""
    return [power(rank, -exponent) for rank in range(1, count + 1)]
