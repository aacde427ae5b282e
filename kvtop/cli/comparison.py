"""A comparison as text: one row a measure, one column a configuration, n beside every percentile."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from kvtop.cli.text import MISSING, format_ns, percent, significant, table
from kvtop.compare import Column, Comparison
from kvtop.measures import MEASURES, Measure, class_measures
from kvtop.memory_report import ROWS

MAX_LABEL = 28


def render(comparison: Comparison) -> str:
    """The table and its notes."""
    columns = comparison.columns
    header = ["", *(_short(column.label) for column in columns)]
    if len(columns) == 2:
        header.append("difference")
    body = table([*_facts(comparison), *_rows(comparison, MEASURES)], header=header)
    lines = [
        f"workload {comparison.workload}{_circumstances(comparison.shared)}",
        *(f"forced: {text}" for text in comparison.conflicts),
        "",
        body,
    ]
    if by_class := class_measures([run for column in columns for run in column.runs]):
        rows = [row for measures in by_class.values() for row in _rows(comparison, measures)]
        lines += ["", table(rows, header=["By class", *header[1:]])]
    if comparison.memory:
        lines += ["", _memory(comparison)]
    notes = [*_weighting(comparison), *comparison.notes]
    return "\n".join([*lines, "", *(f"  {note}" for note in notes)])


def _memory(comparison: Comparison) -> str:
    """Where the KV memory went: one row a figure of ``kvtop.memory_report``."""
    header = ["Memory", *(_short(column.label) for column in comparison.columns)]
    rows = [[label, *(format_unit(unit, memory[key]) for memory in comparison.memory)] for key, label, unit in ROWS]
    return table(rows, header=header)


def _circumstances(shared: dict[str, Any]) -> str:
    """Model, machine and pool, as far as they are the same for all columns."""
    words = [str(shared[key]) for key in ("model", "device", "dtype") if shared.get(key) not in (None, "none")]
    if shared.get("executor") == "null":
        words.append("null executor")
    if shared.get("num_blocks") and shared.get("block_size_tokens"):
        words.append(f"{shared['num_blocks']:,} blocks of {shared['block_size_tokens']} tokens")
    if shared.get("limit"):
        words.append(f"first {shared['limit']:,} requests")
    for key, name in (("time_scale", "gaps"), ("length_scale", "lengths")):
        if shared.get(key) not in (None, 1.0):
            words.append(f"{name} x {shared[key]:g}")
    return "".join(f", {word}" for word in words)


def _short(label: str) -> str:
    return label if len(label) <= MAX_LABEL else f"{label[: MAX_LABEL - 3]}..."


def _facts(comparison: Comparison) -> Iterator[list[str]]:
    columns = comparison.columns
    yield ["status", *(column.status for column in columns)]
    yield ["requests ok / all", *(f"{_sum(column, 'num_ok')} / {_sum(column, 'num_requests')}" for column in columns)]


def _sum(column: Column, attribute: str) -> int:
    return sum(getattr(run, attribute) for run in column.runs)


_WHERE_MEASURED = ("busy_output_tokens_s", "host_hit_rate")
"""Rows that are left out where no run has a value; the others say that there is none."""


def _rows(comparison: Comparison, measures: Sequence[Measure]) -> Iterator[list[str]]:
    columns, last_family = comparison.columns, ""
    for measure in measures:
        if measure.key in _WHERE_MEASURED and all(column.value(measure) is None for column in columns):
            continue
        family = measure.label.rpartition(" ")[0]
        if measure.n is not None and family != last_family:
            yield [f"{family} n", *(f"{column.n(measure):,}" for column in columns)]
        last_family = family
        row = [measure.label, *(format_value(measure, column.value(measure)) for column in columns)]
        if len(columns) == 2:
            row.append(format_change(measure, comparison.change(measure, columns[1])))
        yield row


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
        return f"{value:,.0f}" if value == int(value) else f"{value:,.1f}"
    return significant(value)


def format_change(measure: Measure, change: float | None) -> str:
    """Relative change in percent; for ratios the difference in percentage points, for counts the difference."""
    if change is None:
        return MISSING
    if change == 0:
        return "same"
    if measure.unit == "count":
        return f"{change:+,.0f}" if change == int(change) else f"{change:+,.1f}"
    if measure.unit == "ratio":
        return f"{100 * change:+.1f} points"
    if change >= 9:
        return f"x {significant(change + 1)}"
    return f"{100 * change:+.1f} %"


def _weighting(comparison: Comparison) -> Iterator[str]:
    if any(run.itl.n for column in comparison.columns for run in column.runs):
        yield "ITL pools the gaps of all answers (long ones weigh more); TPOT is one mean a request (equal weights)"
        yield "busy part: from the first to the last step with at least half the peak number of running sequences"
    if comparison.memory:
        yield "waste: slots reserved but unused, and holes too small for the queue (docs/memory-baselines.md)"
