"""What a figure of the report is, and what figures are made from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from kvtop.analysis.compare import Comparison
from kvtop.analysis.summary import RunSummary
from kvtop.report.vega import Spec
from kvtop.workloads.words import counted

if TYPE_CHECKING:
    from kvtop.results.load import Run

MAX_TIMELINES = 6
"""Columns whose course over time is drawn; a page of more is not read."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A plot with its words. ``caption`` states definition and n; without a ``spec`` it says why there is no plot."""

    key: str
    title: str
    caption: str
    spec: Spec | None


@dataclass(slots=True)
class Shown:
    """The run that stands for a column where replicates cannot be pooled: its first."""

    label: str
    summary: RunSummary
    run: Run

    def steps(self, *columns: str) -> dict[str, np.ndarray]:
        """Columns of steps.parquet."""
        found = self.run.steps.select(columns).collect()
        return {name: found[name].to_numpy() for name in columns}


@dataclass
class Material:
    """A comparison, and the runs behind it."""

    comparison: Comparison
    trace: Path | None = None  # of the workload, where the user names it
    labels: list[str] = field(init=False)

    def __post_init__(self) -> None:
        self.labels = [column.label for column in self.comparison.columns]

    @property
    def simulated(self) -> bool:
        return any(run.simulated for column in self.comparison.columns for run in column.runs)

    @cached_property
    def first_runs(self) -> list[Shown]:
        """Of the first columns, for what is drawn over time."""
        from kvtop.results.load import open_run

        columns = self.comparison.columns[:MAX_TIMELINES]
        return [Shown(column.label, column.runs[0], open_run(Path(column.runs[0].path))) for column in columns]

    def which_runs(self) -> str:
        """What stands for what in a plot of ``first_runs``; "" where every run is there."""
        words = []
        if any(len(column.runs) > 1 for column in self.comparison.columns):
            numbers = {column.runs[0].manifest.get("replicate") for column in self.comparison.columns}
            number = f" (number {next(iter(numbers))})" if len(numbers) == 1 else ""
            words.append(f"The first replicate{number} of each.")
        if (left := len(self.labels) - MAX_TIMELINES) > 0:
            words.append(f"The first {MAX_TIMELINES} of {len(self.labels)} columns; {left} are left out.")
        return " ".join(words)


def counts(labels: list[str], numbers: list[int], noun: str) -> str:
    """Of a ``noun`` in the singular: ``n = 200 requests`` or, where they differ, ``n: fcfs 200, sjf 198 requests``."""
    if len(set(numbers)) == 1:
        each = " each" if len(numbers) > 1 else ""
        return f"n = {counted(numbers[0], noun)}{each}"
    *others, last = zip(labels, numbers, strict=True)
    return f"n: {''.join(f'{label} {number:,}, ' for label, number in others)}{last[0]} {counted(last[1], noun)}"


def same(values: Iterable[Sequence[float]]) -> str:
    """The one time (ns) that all of the ascending ``values`` are, in words; "" where they differ: a plot of one value
    shows nothing.
    """
    from kvtop.cli.text import format_ns

    ends = {end for each in values if each for end in (each[0], each[-1])}
    return format_ns(ends.pop()) if len(ends) == 1 else ""


def join(*parts: str) -> str:
    """Sentences of a caption."""
    return " ".join(part for part in parts if part)
