"""Numbers of a comparison as the text of one cell."""

from __future__ import annotations

from collections.abc import Callable

from kvtop.analysis.inference import Interval
from kvtop.analysis.measures import Measure
from kvtop.cli.text import MISSING, format_ns, percent, signed, significant

Cell = Callable[[float], str]
SAME = "same"


def format_value(measure: Measure, value: float | None) -> str:
    """One cell."""
    return format_unit(measure.unit, value)


def format_unit(unit: str, value: float | None) -> str:
    """A number with its unit (``ns``, ``ratio``, ``count``, ``/s``); '-' where it was not measured."""
    if value is None:
        return MISSING
    if unit == "ns":
        return format_ns(value)
    if unit == "ratio":
        return percent(value)
    if unit == "count":
        return f"{value:z,.0f}" if value == int(value) else f"{value:z,.1f}"
    return significant(value)


def format_change(measure: Measure, change: float | None) -> str:
    """Relative change in percent; for ratios the difference in percentage points, for counts the difference."""
    if change is None:
        return MISSING
    if change == 0:
        return SAME
    if measure.unit == "count":
        return signed(change, 0 if change == int(change) else 1)
    if measure.unit == "ratio":
        return f"{signed(100 * change)} points"
    return format_relative(change)


def format_relative(change: float) -> str:
    """``+12.3 %``; from ten times the value on as a factor."""
    if change == 0:
        return SAME
    if change >= 9:
        return f"x {significant(change + 1)}"
    return f"{signed(100 * change)} %"


def signed_ns(value: float | None) -> str:
    """A difference of times."""
    return MISSING if value is None else f"{'+' if value > 0 else ''}{format_ns(value)}"


def format_p(p: float | None) -> str:
    """A p-value; what is below a thousandth says no more."""
    if p is None:
        return MISSING
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def from_to(interval: Interval | None, cell: Cell) -> str:
    """``LOW to HIGH``, each as ``cell`` writes it, 0 for no change; once where both are written alike."""
    if interval is None:
        return MISSING
    low, high = cell(interval.low), cell(interval.high)
    return low if low == high else " to ".join("0" if end == SAME else end for end in (low, high))
