"""The tables of a comparison: the numbers of ``kvtop compare --json``, as its text writes them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from kvtop.analysis.compare import CONFIGURATION, Comparison
from kvtop.analysis.measures import GOODPUT, HITS, LOAD, MEASURES, Measure, class_measures
from kvtop.analysis.memory_report import ROWS
from kvtop.analysis.paired import Differences, PairedMetric
from kvtop.analysis.replicates import FOR_A_VERDICT, LOG_RATIO, ReplicateTest
from kvtop.analysis.summary import RunSummary
from kvtop.cli.comparison_cells import format_change, format_p, format_relative, format_unit, from_to, signed_ns
from kvtop.cli.text import MISSING, format_ns, percent
from kvtop.report.html import Row, pairs, table

ALPHA = 0.05
MACHINE = ("os", "python", "torch", "triton", "transformers")


def configuration(comparison: Comparison) -> str:
    """What was run: every setting that is known; a table of those in which the columns differ. What all runs were made
    of is beside the settings."""
    columns = comparison.columns
    manifests = [column.runs[0].manifest for column in columns]
    keys = dict.fromkeys((*CONFIGURATION, *MACHINE, "cost_model_hash", "kv_bytes_per_block", "cache_state", "slo"))
    shared: list[tuple[str, str]] = []
    differing: list[Row] = []
    for key in keys:
        name, values = key.replace("_", " "), [_words(manifest.get(key)) for manifest in manifests]
        if len(set(values)) > 1:
            differing.append([name, *values])
        else:
            shared.append((name, values[0]))
    parts = []
    if differing:
        parts.append(table(["Differs", *(column.label for column in columns)], differing, kind="text"))
    shared += [(name, values[0]) for name, values in _facts(comparison).items() if len(set(values)) == 1]
    return "\n".join([*parts, pairs(entry for entry in shared if entry[1] != MISSING)])


def _words(value: Any) -> str:
    if value is None or value == "":
        return MISSING
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, dict):
        return ", ".join(f"{key}={each}" for key, each in value.items()) or MISSING
    return "; ".join(map(str, value)) or MISSING if isinstance(value, list) else str(value)


def runs(comparison: Comparison) -> str:
    """A row a run: where it lies, how it ended, and what it was made of where that differs."""
    facts = {name: values for name, values in _facts(comparison).items() if len(set(values)) > 1}
    rows = [
        [label, Path(run.path).name, run.status, f"{run.num_ok:,} / {run.num_requests:,}"]
        for label, run in _labelled(comparison)
    ]
    rows = [[*row, *(values[place] for values in facts.values())] for place, row in enumerate(rows)]
    return table(["Run", "directory", "status", "ok / all", *facts], rows, kind="runs")


def _labelled(comparison: Comparison) -> list[tuple[str, RunSummary]]:
    return [(column.label, run) for column in comparison.columns for run in column.runs]


def _facts(comparison: Comparison) -> dict[str, list[str]]:
    """What the runs were made of, by name: a value a run."""
    manifests = [run.manifest for _, run in _labelled(comparison)]
    return {
        "seed": [_words(manifest.get("seed")) for manifest in manifests],
        "replicate": [_words(manifest.get("replicate")) for manifest in manifests],
        "started (UTC)": [
            _words(manifest.get("started_utc")).replace("T", " ").partition(".")[0] for manifest in manifests
        ],
        "workload hash": [_words(manifest.get("workload_hash"))[:12] for manifest in manifests],
        "trace sha256": [_words(manifest.get("trace_sha256"))[:12] for manifest in manifests],
        "kvtop's commit": [_commit(manifest) for manifest in manifests],
    }


def _commit(manifest: dict[str, Any]) -> str:
    sha = manifest.get("git_sha")
    if not sha:
        return MISSING
    return f"{str(sha)[:10]}{' with changes' if manifest.get('git_dirty') else ''}"


def results(comparison: Comparison) -> Iterator[str]:
    """The tables of measures, in the sections of ``kvtop compare``."""
    for section in ("", GOODPUT, HITS, LOAD):
        measures = [measure for measure in MEASURES if measure.section == section]
        yield from _section(comparison, section or "Latency, throughput, cache", measures)
    for name, measures in class_measures([run for column in comparison.columns for run in column.runs]).items():
        yield from _section(comparison, f"Class {name or '(no class)'}", measures)
    if comparison.memory:
        rows = [[label, *(format_unit(unit, memory[key]) for memory in comparison.memory)] for key, label, unit in ROWS]
        yield table(["Memory", *(column.label for column in comparison.columns)], rows)


def _section(comparison: Comparison, title: str, measures: Sequence[Measure]) -> Iterator[str]:
    """A measure a row: how many values are behind it, each column's value, and its change from the first column's."""
    first, *others = comparison.columns
    counted = any(measure.n is not None for measure in measures)
    rows = []
    for measure in measures:
        if measure.optional and all(column.value(measure) is None for column in comparison.columns):
            continue
        row = [measure.label, *([_n(comparison, measure)] if counted else [])]
        row.append(format_unit(measure.unit, first.value(measure)))
        for column in others:
            change = format_change(measure, comparison.change(measure, column))
            row += [format_unit(measure.unit, column.value(measure)), change]
        rows.append(row)
    if rows:
        header = [title, *(["n"] if counted else []), first.label]
        header += [word for column in others for word in (column.label, "change")]
        yield table(header, rows, kind="counted" if counted else "numbers")


def _n(comparison: Comparison, measure: Measure) -> str:
    numbers = [number for column in comparison.columns if (number := column.n(measure)) is not None]
    return " / ".join(f"{number:,}" for number in (numbers[:1] if len(set(numbers)) == 1 else numbers))


def chance(comparison: Comparison) -> Iterator[str]:
    """How far to trust the differences: replicates, single requests, stretches of one run."""
    first = comparison.columns[0].label
    for column, found in list(zip(comparison.columns, comparison.statistics, strict=True))[1:]:
        if any(test.change for test in found.tests):
            header = [f"{column.label} against {first}", "pairs", "change", "95 % interval", "p", "p (Holm)", "verdict"]
            yield table(header, [_test_row(test) for test in found.tests], kind="counted")
        metrics = [metric for metric in found.paired if metric.all.n]
        if metrics:
            header = [f"By request, {column.label} - {first}", "n", "p5", "p50", "p95", "slower", "faster", "most lost"]
            yield table(header, [row for metric in metrics for row in _paired_rows(metric)], kind="counted told")
    rows = list(_own_intervals(comparison))
    if rows:
        yield table(["This run only, 95 %", *(column.label for column in comparison.columns)], rows)


def _test_row(test: ReplicateTest) -> Row:
    def cell(change: float) -> str:
        if test.scale == LOG_RATIO:
            return format_relative(change)
        return signed_ns(change) if test.measure.unit == "ns" else format_change(test.measure, change)

    if test.change is None:
        return [test.measure.label, str(test.n), MISSING, test.reason, MISSING, MISSING, "not tested"]
    return [
        test.measure.label, str(test.n), cell(test.change.estimate), from_to(test.change, cell),
        format_p(test.change.p), format_p(test.p_holm), verdict(test),
    ]  # fmt: skip


def verdict(test: ReplicateTest) -> str:
    """What may be said: nothing without a p-value that was adjusted for the number of tests."""
    if test.change is None or test.p_holm is None:
        return "none: too few pairs" if test.n < FOR_A_VERDICT else "none: no spread"
    if test.p_holm >= ALPHA:
        return "no difference shown"
    return "higher" if test.change.estimate > 0 else "lower"


def _paired_rows(metric: PairedMetric) -> Iterator[Row]:
    worst = metric.worst
    told = MISSING
    if worst is not None:
        replicate = f" of replicate {worst.replicate}" if worst.replicate else ""
        told = f"{worst.request_id}{replicate}: {format_ns(worst.before)} to {format_ns(worst.after)}"
    yield [*_differences(metric.label, metric.all), told]
    for name, found in metric.classes.items():
        yield [*_differences(f"{metric.label}, {name or '(no class)'}", found), ""]


def _differences(label: str, found: Differences) -> list[str]:
    quantiles = (signed_ns(value) for value in (found.p5, found.p50, found.p95))
    return [label, f"{found.n:,}", *quantiles, percent(found.worse), percent(found.better)]


def _own_intervals(comparison: Comparison) -> Iterator[Row]:
    columns = [found.run_only for found in comparison.statistics]
    for row in zip(*columns, strict=True) if all(columns) else ():
        if any(found.interval for found in row):
            yield [row[0].label, *(from_to(found.interval, format_ns) for found in row)]
