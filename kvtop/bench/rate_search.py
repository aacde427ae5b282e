"""Which rate to try next, and what the rates tried so far say. Pure: rates (per second) and whether they passed.

It is not assumed that a higher rate is always worse. What is claimed is only this: every rate tried up to ``low``
passed, and ``high`` failed. Once they are close, rates further below and above are tried to see whether that picture
holds; one that fails below moves the bracket down to it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

WIDEST = 2.0**10  # times the first rate, in both directions
CHECKS_BELOW = (0.9, 0.75, 0.5)  # of low, once the bracket is narrow
CHECKS_ABOVE = (1.1, 1.35, 2.0)  # of high


@dataclass(frozen=True, slots=True)
class Bracket:
    """``low``: the highest rate below the lowest that failed (None: none passed there); ``high``: that one (None: none
    failed). ``above``: rates that passed although a lower one failed, ascending."""

    low: float | None
    high: float | None
    above: tuple[float, ...] = ()

    @classmethod
    def of(cls, tried: Mapping[float, bool]) -> Bracket:
        high = min((rate for rate, passed in tried.items() if not passed), default=None)
        passing = sorted(rate for rate, passed in tried.items() if passed)
        below = [rate for rate in passing if high is None or rate < high]
        return cls(below[-1] if below else None, high, tuple(rate for rate in passing if rate not in below))

    def is_narrow(self, tolerance: float) -> bool:
        """Whether high is at most ``tolerance`` of low above it."""
        return self.low is not None and self.high is not None and self.high <= self.low * (1 + tolerance)


def next_rate(tried: Mapping[float, bool], start: float, tolerance: float) -> float | None:
    """The rate to try next; None when there is nothing more to learn.

    ``start`` comes first; then doubling or halving until the bracket has two ends, then its geometric middle until it
    is narrow, then the checks.
    """
    start = rounded(start)
    if start not in tried:
        return start
    bracket = Bracket.of(tried)
    if bracket.high is None:
        assert bracket.low is not None
        return rounded(bracket.low * 2) if bracket.low < start * WIDEST else None
    if bracket.low is None:
        return rounded(bracket.high / 2) if bracket.high > start / WIDEST else None
    if not bracket.is_narrow(tolerance):
        middle = rounded(math.sqrt(bracket.low * bracket.high))
        return None if middle in tried else middle
    checks = [bracket.low * factor for factor in CHECKS_BELOW] + [bracket.high * factor for factor in CHECKS_ABOVE]
    return next((rounded(rate) for rate in checks if not _is_known(rate, tried, tolerance)), None)


def _is_known(rate: float, tried: Mapping[float, bool], tolerance: float) -> bool:
    """A rate as close as the bracket is wide has been tried."""
    return any(rate / (1 + tolerance) <= other <= rate * (1 + tolerance) for other in tried)


def rounded(rate: float) -> float:
    """Four significant digits: finer than any tolerance, and the same in every search."""
    return float(f"{rate:.4g}")
