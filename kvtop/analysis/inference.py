"""How far chance alone may go: Student's t for replicates, Holm for several metrics, a block bootstrap within one run.

Replicates are few, so t with whole degrees of freedom is all that is needed: its distribution has a finite sum
(Abramowitz and Stegun, 26.7.3 and 26.7.4), and no statistics library has to be installed for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kvtop.analysis.stats import mean, percentile

if TYPE_CHECKING:
    import numpy as np

CONFIDENCE = 0.95
NUM_RESAMPLES = 1_000
MANY = 20_000  # requests; beyond them a fifth of the resamples, which take seconds
SEED = 0
ROUNDING = 1e-12  # of a float: log ratios of 100 / 80 and 50 / 40 need not be equal to the last digit


@dataclass(frozen=True, slots=True)
class Interval:
    """From ``low`` to ``high`` at ``confidence``, from ``n`` values. ``p``: two-sided, of no difference at all."""

    estimate: float
    low: float
    high: float
    n: int
    p: float | None = None
    confidence: float = CONFIDENCE

    def mapped(self, change: Callable[[float], float]) -> Interval:
        """On another scale, by a rising function."""
        low, estimate, high = change(self.low), change(self.estimate), change(self.high)
        return replace(self, low=low, estimate=estimate, high=high)


def t_within(t: float, dof: int) -> float:
    """P(-t < T < t) of Student's t with ``dof`` >= 1 degrees of freedom, for t >= 0."""
    if math.isinf(t):
        return 1.0
    angle = math.atan(t / math.sqrt(dof))
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = dof % 2
    term = cosine if odd else 1.0
    total = 0.0
    for k in range(1, dof // 2 + 1):
        total += term
        term *= cosine * cosine * (2 * k / (2 * k + 1) if odd else (2 * k - 1) / (2 * k))
    return 2 / math.pi * (angle + sine * total) if odd else sine * total


def t_quantile(confidence: float, dof: int) -> float:
    """The t with ``t_within(t, dof) == confidence``, to the last digits of a float."""
    low, high = 0.0, 1.0
    while t_within(high, dof) < confidence:
        low, high = high, 2 * high
    for _ in range(200):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (middle, high) if t_within(middle, dof) < confidence else (low, middle)
    return high


def t_interval(differences: Sequence[float], confidence: float = CONFIDENCE) -> Interval | None:
    """Mean of paired differences with its t-interval; None below two.

    p is None when all differences are equal (but for the rounding of floats) and not 0: there is no spread to compare
    the mean with.
    """
    n, estimate = len(differences), mean(differences)
    if n < 2 or estimate is None:
        return None
    spread = math.sqrt(math.fsum((value - estimate) ** 2 for value in differences) / (n - 1))
    if spread <= ROUNDING * max(map(abs, differences)):
        return Interval(estimate, estimate, estimate, n, None if estimate else 1.0, confidence)
    error = spread / math.sqrt(n)
    half = t_quantile(confidence, n - 1) * error
    p = max(0.0, 1 - t_within(abs(estimate) / error, n - 1))
    return Interval(estimate, estimate - half, estimate + half, n, p, confidence)


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """p-values adjusted by Holm's step-down rule for the number of them; at most 1."""
    ordered = sorted(p_values, key=lambda name: p_values[name])
    adjusted, largest = {}, 0.0
    for rank, name in enumerate(ordered):
        largest = max(largest, min(1.0, (len(ordered) - rank) * p_values[name]))
        adjusted[name] = largest
    return {name: adjusted[name] for name in p_values}


def block_length(n: int) -> int:
    """Values a block: n to the power of 1/3, rounded up."""
    length = max(1, round(n ** (1 / 3)))
    return length if length**3 >= n else length + 1


class BlockBootstrap:
    """Moving-block resamples of one run's requests in order of arrival: neighbours share a queue and are no independent
    draws. Says what another stretch of this very run might have shown, and nothing about other runs.

    The same ``n`` gives the same resamples, so that two runs of the same requests are resampled in pairs. Blocks wrap
    around at the end: every request is in as many blocks as any other.
    """

    def __init__(self, n: int, num_resamples: int | None = None, seed: int = SEED) -> None:
        self.n, self._seed = n, seed
        self.num_resamples = num_resamples or (NUM_RESAMPLES if n <= MANY else NUM_RESAMPLES // 5)
        self.length = block_length(n)

    def percentiles(self, series: Sequence[Sequence[float]], qs: Sequence[float]) -> list[list[list[float]]]:
        """By series (each of ``n`` values in order of arrival) and by percentile: its value in every resample."""
        import numpy as np

        arrays = [np.asarray(values, dtype=np.float64) for values in series]
        orders = [np.argsort(values, kind="stable") for values in arrays]
        ascending = [values[order] for values, order in zip(arrays, orders, strict=True)]
        random = np.random.Generator(np.random.PCG64(self._seed))
        found: list[list[list[float]]] = [[[] for _ in qs] for _ in series]
        for _ in range(self.num_resamples):
            counts = self._counts(random)
            for own, values, order in zip(found, ascending, orders, strict=True):
                for kept, value in zip(own, _weighted_percentiles(values, counts[order], qs), strict=True):
                    kept.append(value)
        return found

    def _counts(self, random: np.random.Generator) -> np.ndarray:
        """How often each value is drawn: blocks from random starts until there are ``n`` values, the last one cut."""
        import numpy as np

        num_blocks = -(-self.n // self.length)
        starts = random.integers(0, self.n, num_blocks)
        steps = np.zeros(2 * self.n + 1, dtype=np.int64)
        ends = starts + self.length
        ends[-1] -= num_blocks * self.length - self.n
        np.add.at(steps, starts, 1)
        np.add.at(steps, ends, -1)
        twice = np.cumsum(steps)[: 2 * self.n]
        return twice[: self.n] + twice[self.n :]


def _weighted_percentiles(values: np.ndarray, counts: np.ndarray, qs: Sequence[float]) -> list[float]:
    """``stats.percentile`` of ascending values that occur ``counts`` times each, one at least."""
    import numpy as np

    ends = np.cumsum(counts)
    last = int(ends[-1]) - 1
    ranks = [last * q / 100 for q in qs]
    lows = [math.floor(rank) for rank in ranks]
    places = np.searchsorted(ends, [*lows, *(min(low + 1, last) for low in lows)], side="right")
    picked = values[places]
    return [
        float(below + (above - below) * (rank - low))
        for below, above, rank, low in zip(picked[: len(qs)], picked[len(qs) :], ranks, lows, strict=True)
    ]


def bootstrap_interval(estimate: float, resampled: Sequence[float], n: int, confidence: float = CONFIDENCE) -> Interval:
    """The middle ``confidence`` of resampled values, around the estimate from all values."""
    ordered = sorted(resampled)
    tail = 50 * (1 - confidence)
    low, high = percentile(ordered, tail), percentile(ordered, 100 - tail)
    if low is None or high is None:
        raise ValueError("no resamples")
    return Interval(estimate, low, high, n, None, confidence)
