"""A comparison as text: one row a measure, one column a configuration, n beside every percentile."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

from kvtop.analysis.compare import Column, Comparison
from kvtop.analysis.measures import GOODPUT, HITS, LOAD, MEASURES, Measure, class_measures
from kvtop.analysis.memory_report import ROWS
from kvtop.cli.comparison_cells import format_change, format_unit, format_value
from kvtop.cli.comparison_chance import by_replicates, by_request, within_one_run
from kvtop.cli.comparison_layout import WIDTH, Names, fitted
from kvtop.cli.text import MISSING, harmless
from kvtop.results.window import PHASES
from kvtop.workloads.words import counted

__all__ = ["format_change", "format_unit", "format_value", "render"]


def render(comparison: Comparison, width: int = WIDTH) -> str:
    """The tables and their notes, in ``width`` columns as far as single cells allow."""
    main = [*_facts(comparison), *_rows(comparison, [m for m in MEASURES if not m.section])]
    names = Names(comparison, main, width)
    lines = [
        *_wrapped(f"workload {comparison.workload}{_circumstances(comparison.shared)}", width),
        *(f"forced: {text}" for text in comparison.conflicts),
        *names.legend(),
        "",
        fitted(main, names.header(""), width),
    ]
    for section in (GOODPUT, HITS, LOAD):
        if rows := list(_rows(comparison, [m for m in MEASURES if m.section == section])):
            lines += ["", fitted(rows, names.header(section), width)]
    if by_class := class_measures([run for column in comparison.columns for run in column.runs]):
        rows = [row for measures in by_class.values() for row in _rows(comparison, measures)]
        lines += ["", fitted(rows, names.header("By class"), width)]
    if comparison.memory:
        lines += ["", fitted(_memory(comparison), names.header("Memory", difference=False), width)]
    for part in (by_replicates, by_request, within_one_run):
        lines += part(comparison, names, width)
    notes = [*_explanations(comparison), *comparison.notes]
    if any(MISSING in cells[1:] for cells in main):
        notes.insert(0, f"{MISSING}: not reported")
    return harmless("\n".join([*lines, "", *(line for note in notes for line in _wrapped(note, width, "  "))]))


def _wrapped(text: str, width: int, indent: str = "") -> list[str]:
    return textwrap.wrap(
        text, width, initial_indent=indent, subsequent_indent=indent + "  ", break_long_words=False,
        break_on_hyphens=False,
    )  # fmt: skip


def _memory(comparison: Comparison) -> list[list[str]]:
    """Where the KV memory went: one row a figure of ``kvtop.analysis.memory_report``."""
    return [[label, *(format_unit(unit, memory[key]) for memory in comparison.memory)] for key, label, unit in ROWS]


def _circumstances(shared: dict[str, Any]) -> str:
    """Model, machine and pool, as far as they are the same for all columns."""
    words = [str(shared[key]) for key in ("model", "device", "dtype") if shared.get(key) not in (None, "none")]
    if shared.get("executor") == "null":
        words.append("null executor")
    if shared.get("num_blocks") and shared.get("block_size_tokens"):
        words.append(f"{counted(shared['num_blocks'], 'block')} of {counted(shared['block_size_tokens'], 'token')}")
    if shared.get("limit"):
        words.append("first request" if shared["limit"] == 1 else f"first {counted(shared['limit'], 'request')}")
    for key, name in (("time_scale", "gaps"), ("length_scale", "lengths")):
        if shared.get(key) not in (None, 1.0):
            words.append(f"{name} x {shared[key]:g}")
    return "".join(f", {word}" for word in words)


def _facts(comparison: Comparison) -> Iterator[list[str]]:
    columns = comparison.columns
    yield ["status", *(column.status for column in columns)]
    yield ["requests ok / all", *(f"{_sum(column, 'num_ok')} / {_sum(column, 'num_requests')}" for column in columns)]
    if any(run.phases for column in columns for run in column.runs):
        yield ["warmup/steady/drain", *(_phases(column) for column in columns)]


def _sum(column: Column, attribute: str) -> int:
    return sum(getattr(run, attribute) for run in column.runs)


def _phases(column: Column) -> str:
    if not all(run.phases for run in column.runs):
        return MISSING
    return " / ".join(str(sum(run.phases.get(phase, 0) for run in column.runs)) for phase in PHASES)


def _rows(comparison: Comparison, measures: Sequence[Measure]) -> Iterator[list[str]]:
    columns, last_family = comparison.columns, ""
    for measure in measures:
        if measure.optional and all(column.value(measure) is None for column in columns):
            continue
        family = measure.label.rpartition(" ")[0] or measure.label
        if measure.n is not None and family != last_family:
            yield [f"{family} n", *(f"{column.n(measure):,}" for column in columns)]
        last_family = family
        row = [measure.label, *(format_value(measure, column.value(measure)) for column in columns)]
        if len(columns) == 2:
            row.append(format_change(measure, comparison.change(measure, columns[1])))
        yield row


def _explanations(comparison: Comparison) -> Iterator[str]:
    runs = [run for column in comparison.columns for run in column.runs]
    if any(run.itl.n for run in runs):
        yield "ITL pools the gaps of all answers (long ones weigh more); TPOT is one mean a request (equal weights)"
    yield (
        "steady: output tokens/s from the first to the last step with at least half the peak number of running "
        "sequences; requests/s is (n - 1) / (last - first completion)"
    )
    if any(run.hits for run in runs):
        yield (
            "hits: shared is what an infinite cache with all earlier prompts would have served; lost to whole blocks, "
            "to evictions, to earlier prompts that were not computed yet"
        )
    if len(comparison.columns) > 1 and comparison.same_load:
        yield "same load: realised rates within 1 % of each other"
    if comparison.memory:
        yield "waste: slots reserved but unused, and holes too small for the queue (docs/memory-baselines.md)"
