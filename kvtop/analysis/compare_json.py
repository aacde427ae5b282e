"""A comparison as plain data: every number of its tables, with names and units; null where not measured, never NaN."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvtop.analysis.compare_notes import summed
from kvtop.analysis.measures import MEASURES, class_measures
from kvtop.analysis.memory_report import ROWS

if TYPE_CHECKING:
    from kvtop.analysis.compare import Comparison

REQUEST_COUNTS = ("num_requests", "num_ok", "num_left_out")


def comparison_json(comparison: Comparison) -> dict[str, Any]:
    """Stable keys. ``measures`` names what the columns' ``values`` are, in the order of the tables."""
    return {
        "workload": comparison.workload,
        "shared": comparison.shared,
        "comparable": not comparison.conflicts,
        "conflicts": comparison.conflicts,
        "same_load": comparison.same_load,
        "notes": comparison.notes,
        "primary": [measure.key for measure in comparison.primary],
        "measures": {
            measure.key: {
                "label": measure.label,
                "unit": measure.unit,
                "section": measure.section or None,
                "change": "difference" if measure.unit in ("ratio", "count") else "relative",
            }
            for measure in MEASURES
        },
        "class_measures": {
            name: {measure.key: {"label": measure.label, "unit": measure.unit} for measure in measures}
            for name, measures in class_measures([run for column in comparison.columns for run in column.runs]).items()
        },
        "memory_units": {key: {"label": label, "unit": unit} for key, label, unit in ROWS},
        "columns": [_column_json(comparison, index) for index in range(len(comparison.columns))],
        "gates": [gate.as_json() for gate in comparison.gates],
    }


def _column_json(comparison: Comparison, index: int) -> dict[str, Any]:
    column = comparison.columns[index]
    classes = class_measures([run for other in comparison.columns for run in other.runs])
    return {
        "label": column.label,
        "replicates": len(column.runs),
        "status": column.status,
        "requests": {
            **{name: sum(getattr(run, name) for run in column.runs) for name in REQUEST_COUNTS},
            "phases": summed(run.phases for run in column.runs),
            "statuses": summed(run.statuses for run in column.runs),
        },
        "values": {measure.key: column.value(measure) for measure in MEASURES},
        "n": {measure.key: column.n(measure) for measure in MEASURES if measure.n is not None},
        "change_from_first": {measure.key: comparison.change(measure, column) for measure in MEASURES},
        "classes": {name: {m.key: column.value(m) for m in of_class} for name, of_class in classes.items()},
        "classes_n": {name: {m.key: column.n(m) for m in of_class} for name, of_class in classes.items()},
        "classes_change_from_first": {
            name: {m.key: comparison.change(m, column) for m in of_class} for name, of_class in classes.items()
        },
        "statistics": comparison.statistics[index].as_json(),
        "memory": comparison.memory[index] if comparison.memory else None,
        "runs": [run.as_json() for run in column.runs],
    }
