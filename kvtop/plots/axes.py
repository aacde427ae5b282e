"""An axis of times: its range, where a value lies on it, and its ticks."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

WIDE = 20.0
"""From this ratio of the largest to the smallest value on, an axis that may choose is logarithmic."""

SCALES = ("auto", "log", "linear")

_UNITS = ((1e9, "s"), (1e6, "ms"), (1e3, "us"))
_STEPS = (1.0, 2.0, 5.0, 10.0)


@dataclass(frozen=True, slots=True)
class Axis:
    """From ``low`` to ``high`` (ns); ``low`` is above 0 where ``log``."""

    low: float
    high: float
    log: bool

    @classmethod
    def over(cls, values: Iterable[float], scale: str = "auto") -> Axis:
        """An axis that holds all values, with round ends. Zeros and what is below lie at the low end of a log axis."""
        known = sorted(values)
        above = [value for value in known if value > 0]
        if not above:
            return cls(0.0, max([1e6, *known]), False)
        if scale == "log" or (scale == "auto" and above[-1] / above[0] >= WIDE):
            low, high = _round_below(above[0]), _round_above(above[-1])
            return cls(low, high if high > low else 10 * low, True)
        return cls(0.0, _linear_end(above[-1]), False)

    def place(self, value: float) -> float:
        """0 at the low end, 1 at the high end; never outside."""
        if self.log:
            part = math.log(max(value, self.low) / self.low) / math.log(self.high / self.low)
        else:
            part = (value - self.low) / (self.high - self.low)
        return min(1.0, max(0.0, part))

    def ticks(self) -> list[tuple[float, str]]:
        """Values and their words, in order; about five to ten."""
        if not self.log:
            step = _linear_step(self.high)
            return [(k * step, tick_text(k * step)) for k in range(round(self.high / step) + 1)]
        decades = math.log10(self.high / self.low)
        digits = (1,) if decades > 4 else (1, 3) if decades > 2.5 else (1, 2, 5)
        first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
        values = [digit * 10.0**power for power in range(first, last + 1) for digit in digits]
        return [(value, tick_text(value)) for value in values if self.low * 0.999 <= value <= self.high * 1.001]


def tick_text(value_ns: float) -> str:
    """``20 ms``; no digits that say nothing."""
    if value_ns == 0:
        return "0"
    scale, unit = next(((s, u) for s, u in _UNITS if value_ns >= s * 0.9999), (1.0, "ns"))
    return f"{value_ns / scale:.6g} {unit}"


def _round_below(value: float) -> float:
    power = 10.0 ** math.floor(math.log10(value) + 1e-9)
    return max(step * power for step in _STEPS if step * power <= value * 1.0001)


def _round_above(value: float) -> float:
    power = 10.0 ** math.floor(math.log10(value) + 1e-9)
    return min(step * power for step in _STEPS if step * power >= value * 0.9999)


def _linear_step(high: float) -> float:
    return _round_above(high / 8)


def _linear_end(value: float) -> float:
    step = _linear_step(value)
    return math.ceil(value / step - 1e-9) * step
