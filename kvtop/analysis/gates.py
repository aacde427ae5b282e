"""``--fail-on``: conditions under which a comparison counts as failed, such as ``ttft_p99>+5%``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvtop.analysis.measures import BY_KEY
from kvtop.analysis.objectives import Objective, measure_units, parse
from kvtop.engine.errors import UsageError

if TYPE_CHECKING:
    from kvtop.analysis.compare import Comparison

OPTION = "--fail-on"


@dataclass(frozen=True, slots=True)
class Tripped:
    """One condition, looked at in one column. Values are in the metric's unit."""

    text: str
    workload: str
    label: str  # of the column
    unit: str  # of ``compared``: the metric's, or ratio for a relative change
    is_change: bool  # against the first column
    base: float | None
    value: float | None
    compared: float | None  # what the bound is compared with: the value, its difference or its relative change
    failed: bool
    reason: str = ""  # why it failed without being compared

    def as_json(self) -> dict[str, Any]:
        names = ("text", "label", "unit", "base", "value", "compared", "failed", "reason")
        return {name: getattr(self, name) for name in names}


def parse_gates(texts: Sequence[str]) -> list[Objective]:
    """Conditions of the command line, several a text where commas part them.

    Raises:
        UsageError: no condition, or a unit that does not fit the metric.
        UnknownName: no such metric, with the nearest one.
    """
    return [gate for text in texts for gate in parse(text, measure_units(), option=OPTION, changes=True)]


def check_gates(comparison: Comparison, gates: Sequence[Objective]) -> list[Tripped]:
    """Every gate in every column but the first, which is the baseline; in the only one where there is just one.

    A metric that was not measured fails: nobody knows that it is in bounds.

    Raises:
        UsageError: a change is asked for, and there is nothing to change from.
    """
    columns = comparison.columns[1:] or comparison.columns
    found = []
    for gate in gates:
        if gate.change != "absolute" and len(comparison.columns) < 2:
            raise UsageError(f"{OPTION} {gate}: {comparison.workload} has one column, a change needs two")
        measure = BY_KEY.get(f"{gate.metric}_ns") or BY_KEY[gate.metric]
        base = comparison.columns[0].value(measure)
        for column in columns:
            value = column.value(measure)
            held = gate.holds(value, base)
            found.append(
                Tripped(
                    text=str(gate),
                    workload=comparison.workload,
                    label=column.label,
                    unit="ratio" if gate.change == "relative" else measure.unit,
                    is_change=gate.change != "absolute",
                    base=base,
                    value=value,
                    compared=gate.compared(value, base),
                    failed=held is not False,
                    reason="" if held is not None else _unknown(gate, value, base),
                )
            )
    return found


def _unknown(gate: Objective, value: float | None, base: float | None) -> str:
    if value is None:
        return f"{gate.metric} is not reported"
    return f"{gate.metric} of the first column is {'not reported' if base is None else '0'}"
