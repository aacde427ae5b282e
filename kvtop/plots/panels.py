"""What a plot shows: the values of one measure in every column of a comparison."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvtop.analysis.compare import Comparison


@dataclass(frozen=True, slots=True)
class Plotted:
    """A measure that has a value for each request or token: its name and of what a share is drawn."""

    key: str
    label: str
    meaning: str
    counted: str  # what has one value each, in the singular


PLOTTED = {
    plotted.key: plotted
    for plotted in (
        Plotted("ttft", "TTFT", "time to first token", "request"),
        Plotted("itl", "ITL", "gap between two tokens of an answer", "gap"),
        Plotted("tpot", "TPOT", "mean gap of an answer", "request"),
        Plotted("e2e", "E2E", "time from due to done", "request"),
    )
}


@dataclass(frozen=True, slots=True)
class Series:
    """One column: ascending values in ns, those of its replicates pooled."""

    label: str
    values: list[float]
    num_runs: int


@dataclass(frozen=True, slots=True)
class Panel:
    """One measure of one workload."""

    plotted: Plotted
    workload: str
    facts: list[str]  # model, device and the like, where all columns agree
    series: list[Series]
    simulated: bool

    @property
    def title(self) -> str:
        return f"{self.workload}: {self.plotted.label}, {self.plotted.meaning}"


def panels(comparisons: Sequence[Comparison], keys: Sequence[str]) -> list[Panel]:
    """A panel for each comparison and each of ``keys`` (of PLOTTED), in that order."""
    return [_panel(comparison, PLOTTED[key]) for comparison in comparisons for key in keys]


def _panel(comparison: Comparison, plotted: Plotted) -> Panel:
    runs = [run for column in comparison.columns for run in column.runs]
    shared = comparison.shared
    facts = [str(shared[key]) for key in ("model", "device", "dtype") if shared.get(key) not in (None, "none")]
    return Panel(
        plotted,
        comparison.workload,
        facts,
        [
            Series(
                column.label,
                sorted(value for run in column.runs for value in run.samples.get(plotted.key, ())),
                len(column.runs),
            )
            for column in comparison.columns
        ],
        any(run.manifest.get("clock") == "virtual" for run in runs),
    )
