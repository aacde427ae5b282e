"""Objectives as text: ``ttft_p99<2s,hit_rate>=50%`` or, against a baseline, ``ttft_p99>+5%``. One grammar everywhere.

    objectives = condition ("," condition)*
    condition  = METRIC OP [SIGN] NUMBER [UNIT]      OP: < <= > >=
    UNIT       = ns | us | ms | s | min | %

A sign makes it a change against a baseline: ``+5%`` is five percent more than the baseline's own value, ``+20ms``
twenty milliseconds more. Without a sign the value is the metric's own: a duration needs its unit, a ratio may be
``50%`` or ``0.5``, counts and rates are bare numbers. Which metrics there are is the caller's to say: ``parse`` takes
their units.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal

from kvtop.engine.errors import UnknownName, UsageError

DURATIONS = {"ns": 1, "us": 10**3, "µs": 10**3, "ms": 10**6, "s": 10**9, "min": 60 * 10**9}
"""Units of a duration, in ns."""

CHANGES = ("absolute", "relative", "difference")

_CONDITION = re.compile(
    r"\s*(?P<metric>[A-Za-z_][\w./ -]*?)\s*(?P<op><=|>=|<|>)\s*(?P<sign>[+-]?)\s*"
    r"(?P<number>(?:\d[\d_]*(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d{1,3})?)\s*(?P<unit>[A-Za-zµ%]*)\s*"
)
_EXAMPLE = "such as ttft_p99<2s"


@dataclass(frozen=True, slots=True)
class Objective:
    """One condition. ``value`` is in the metric's unit (ns, /s, ratio, count); for ``relative`` it is a fraction.

    ``change``: ``absolute`` compares the metric itself, ``difference`` metric - baseline, ``relative`` that difference
    as a fraction of the baseline's magnitude.
    """

    metric: str
    op: str
    value: float
    change: str = "absolute"
    text: str = ""  # as it was written, without blanks

    def __str__(self) -> str:
        return self.text or f"{self.metric}{self.op}{self.value:g}"

    @property
    def upper(self) -> bool:
        """Less is better: the value is an upper bound."""
        return self.op in ("<", "<=")

    def compared(self, found: float | None, base: float | None = None) -> float | None:
        """What ``value`` is compared with; None where it was not measured, or a change from 0 has no size."""
        if found is None or self.change == "absolute":
            return found
        if base is None:
            return None
        if self.change == "difference":
            return found - base
        return (found - base) / abs(base) if base else (0.0 if found == base else None)

    def holds(self, found: float | None, base: float | None = None) -> bool | None:
        """Whether the condition is true; None where it cannot be told."""
        value = self.compared(found, base)
        if value is None:
            return None
        if self.op == "<":
            return value < self.value
        if self.op == "<=":
            return value <= self.value
        return value > self.value if self.op == ">" else value >= self.value

    def margin(self, found: float | None, base: float | None = None) -> float | None:
        """Room left as a fraction of the bound, negative when missed (in the metric's unit where the bound is 0)."""
        value = self.compared(found, base)
        if value is None:
            return None
        room = self.value - value if self.upper else value - self.value
        return room / abs(self.value) if self.value else room


def measure_units() -> dict[str, str]:
    """Metric -> unit of everything a comparison shows (``kvtop.analysis.measures``), by its key without ``_ns``."""
    from kvtop.analysis.measures import MEASURES

    return {measure.key.removesuffix("_ns"): measure.unit for measure in MEASURES}


def parse(text: str, units: Mapping[str, str], *, option: str, changes: bool = False) -> list[Objective]:
    """The conditions in ``text``, in order.

    ``units`` maps each metric to ns, /s, ratio or count; a name may be written with ``_ns`` behind it. ``changes``:
    there is a baseline, so signed values are allowed. ``option`` begins every error.

    Raises:
        UsageError: no condition, one that cannot be read, a unit that does not fit the metric, a metric bounded twice
            in the same way.
        UnknownName: a metric that is not in ``units``.
    """
    made = [_condition(part, units, option, changes) for part in text.split(",")]
    seen: dict[tuple[str, bool, str], Objective] = {}
    for objective in made:
        key = (objective.metric, objective.upper, objective.change)
        if key in seen:
            raise UsageError(f"{option}: {objective.metric} is bounded twice: {seen[key]} and {objective}")
        seen[key] = objective
    return made


def _condition(text: str, units: Mapping[str, str], option: str, changes: bool) -> Objective:
    match = _CONDITION.fullmatch(text)
    if match is None:
        raise UsageError(f"{option}: {text.strip()!r} is no condition, expected METRIC OP VALUE {_EXAMPLE}")
    metric, op, sign, number, unit = match.group("metric", "op", "sign", "number", "unit")
    metric = metric if metric in units else metric.removesuffix("_ns")
    if metric not in units:
        raise UnknownName(f"metric in {option}", metric, units)
    if sign and not changes:
        raise UsageError(f"{option}: {text.strip()!r} is a change, but there is no baseline to change from")
    size = Decimal(number.replace("_", "")) * (-1 if sign == "-" else 1)
    if sign and unit == "%":
        value, change = size / 100, "relative"
    else:
        value, change = (
            size * _scale(units[metric], unit, metric, text.strip(), option),
            "difference" if sign else "absolute",
        )
    return Objective(metric, op, float(value), change, "".join(text.split()))


def _scale(kind: str, unit: str, metric: str, text: str, option: str) -> Decimal:
    """Of the metric's unit in one ``unit``.

    Raises:
        UsageError: ``unit`` does not fit.
    """
    if kind == "ns":
        if unit in DURATIONS:
            return Decimal(DURATIONS[unit])
        raise UsageError(f"{option}: {text!r}: {metric} is a duration, expected a unit ({', '.join(DURATIONS)})")
    if not unit:
        return Decimal(1)
    if kind == "ratio" and unit == "%":
        return Decimal("0.01")
    valid = "a bare number or %" if kind == "ratio" else "a bare number"
    raise UsageError(f"{option}: {text!r}: {metric} takes no {unit!r}, expected {valid}")
