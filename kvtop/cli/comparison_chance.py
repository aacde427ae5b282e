"""The parts of a comparison that say how far to trust it: replicates, single requests, stretches of one run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from kvtop.analysis.paired import Differences, PairedMetric
from kvtop.analysis.replicates import LOG_RATIO, ReplicateTest
from kvtop.cli.comparison_cells import Cell, format_change, format_p, format_relative, from_to, signed_ns
from kvtop.cli.comparison_layout import Names, fitted
from kvtop.cli.text import MISSING, format_ns, percent
from kvtop.workloads.words import counted

if TYPE_CHECKING:
    from kvtop.analysis.column_statistics import Statistics
    from kvtop.analysis.compare import Comparison
    from kvtop.analysis.single_run import RunInterval


def by_replicates(comparison: Comparison, names: Names, width: int) -> list[str]:
    """A table for each column but the first: changes of the primary metrics over replicates, with intervals."""
    lines = []
    for name, found in _others(comparison, names):
        if any(test.change for test in found.tests):
            title = f"{name} against {names.short[0]}"
            header = [title, "pairs", "change", "95 % interval", "p", "p (Holm)"]
            lines += ["", fitted([_test_row(test) for test in found.tests], header, width)]
    if lines:
        num_adjusted = sum(test.p_holm is not None for found in comparison.statistics for test in found.tests)
        rule = f"; Holm over {counted(num_adjusted, 'test')}" if num_adjusted else ""
        lines.append(f"  primary metrics: paired t on log ratios or differences{rule}")
    return lines


def _others(comparison: Comparison, names: Names) -> list[tuple[str, Statistics]]:
    return list(zip(names.short, comparison.statistics, strict=True))[1:]


def _test_row(test: ReplicateTest) -> list[str]:
    def cell(change: float) -> str:
        if test.scale == LOG_RATIO:
            return format_relative(change)
        return signed_ns(change) if test.measure.unit == "ns" else format_change(test.measure, change)

    if test.change is None:
        return [test.measure.label, str(test.n), MISSING, test.reason, MISSING, MISSING]
    change = test.change
    return [
        test.measure.label, str(test.n), cell(change.estimate), from_to(change, cell), format_p(change.p),
        format_p(test.p_holm),
    ]  # fmt: skip


def by_request(comparison: Comparison, names: Names, width: int) -> list[str]:
    """A table for each column but the first: what became of the same requests."""
    lines = []
    for name, found in _others(comparison, names):
        metrics = [metric for metric in found.paired if metric.all.n]
        if metrics:
            header = [f"By request, {name} - {names.short[0]}", "n", "p5", "p50", "p95", "worse", "better"]
            rows = [row for metric in metrics for row in _paired_rows(metric)]
            lines += ["", fitted(rows, header, width), *(f"  {text}" for metric in metrics for text in _asides(metric))]
    return lines


def _paired_rows(metric: PairedMetric) -> Iterator[list[str]]:
    yield _differences(metric.label, metric.all)
    for name, found in metric.classes.items():
        yield _differences(f"  {name or '(no class)'}", found)


def _differences(label: str, found: Differences) -> list[str]:
    quantiles = (signed_ns(value) for value in (found.p5, found.p50, found.p95))
    return [label, f"{found.n:,}", *quantiles, percent(found.worse), percent(found.better)]


def _asides(metric: PairedMetric) -> Iterator[str]:
    if (worst := metric.worst) is not None:
        replicate = f" of replicate {worst.replicate}" if worst.replicate else ""
        yield (
            f"{metric.label} most lost: {worst.request_id}{replicate}, {format_ns(worst.before)} to "
            f"{format_ns(worst.after)} ({signed_ns(worst.difference)})"
        )
    if any(metric.unpaired):
        yield f"{metric.label} of {metric.unpaired[0]} requests only in the first, of {metric.unpaired[1]} only here"


def within_one_run(comparison: Comparison, names: Names, width: int) -> list[str]:
    """Bootstrap intervals of single runs; nothing where there are replicates."""
    found = comparison.statistics
    rows = _interval_rows([column.run_only for column in found], format_ns)
    if not rows:
        return []
    lines = ["", fitted(rows, names.header("This run only, 95 %", difference=False), width)]
    if changes := _interval_rows([column.change_only for column in found[1:]], format_relative):
        lines += ["", fitted(changes, ["Change, this pair only", *names.short[1:]], width)]
    return [*lines, "  moving-block bootstrap over requests by arrival: says nothing about other runs"]


def _interval_rows(columns: list[list[RunInterval]], cell: Cell) -> list[list[str]]:
    """A row for each percentile that has an interval in some column."""
    rows = [list(row) for row in zip(*columns, strict=True)] if columns else []
    return [
        [row[0].label, *(from_to(found.interval, cell) for found in row)]
        for row in rows
        if any(found.interval for found in row)
    ]
