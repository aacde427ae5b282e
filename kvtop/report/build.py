"""From directories to a report: which runs are set side by side, in what order things come, which files are written."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvtop.analysis.compare import DEFAULTS, Comparison, Options, compare_runs, find_conflicts, load_paths
from kvtop.analysis.summary import RunSummary
from kvtop.report import charts, tables, vega
from kvtop.report.blocks import block_figures
from kvtop.report.cache import cache_figures
from kvtop.report.differences import difference_figures
from kvtop.report.figure import Figure, Material
from kvtop.report.html import bullets, paragraph
from kvtop.report.latency import latency_figures
from kvtop.report.page import Chapter, Part, render
from kvtop.report.pool import pool_figures
from kvtop.report.steps import step_figures
from kvtop.workloads.words import counted

LEAD = "Every figure is read from the runs' tables; what each measure means is in docs/definitions.md of kvtop."
FOOTER = (
    "The data behind the tables is in this file as JSON (element comparisons), as kvtop compare --json prints it. "
    "Drag or turn the wheel on a plot over time to move or stretch it; a click in a legend picks one line."
)

GROUPS = (
    ("Latency", latency_figures),
    ("Differences", difference_figures),
    ("Over the run", pool_figures),
    ("Prefix cache", cache_figures),
    ("Blocks", block_figures),
    ("Steps", step_figures),
)


@dataclass(slots=True)
class Report:
    """Comparisons with their figures; drawing happens when a file is asked for."""

    comparisons: list[Comparison]
    figures: list[list[tuple[str, list[Figure]]]]  # of each comparison by group

    def named(self) -> Iterator[tuple[str, Figure]]:
        """Figures that have a plot, each with a file name of its own, without an ending."""
        for number, groups in enumerate(self.figures, 1):
            drawn = [figure for _, group in groups for figure in group if figure.spec is not None]
            for place, figure in enumerate(drawn, 1):
                chapter = f"{number}-" if len(self.figures) > 1 else ""
                yield f"{chapter}{place:02}-{figure.key}", figure


def make_report(paths: Sequence[Path], options: Options = DEFAULTS, trace: Path | None = None) -> Report:
    """Load, compare, and make the figures.

    Raises:
        UsageError: no run, or none that can be read.
    """
    return report_of(compare_all(paths, options), trace)


def report_of(comparisons: list[Comparison], trace: Path | None = None) -> Report:
    """The figures of runs that were compared already."""
    groups = []
    for comparison in comparisons:
        material = Material(comparison, trace)
        made = [(title, list(make(material))) for title, make in GROUPS]
        groups.append([(title, figures) for title, figures in made if figures])
    return Report(comparisons, groups)


def compare_all(paths: Sequence[Path], options: Options = DEFAULTS) -> list[Comparison]:
    """One comparison of all runs of a workload that may be compared; the others of it get one of their own, and a note
    says what keeps them apart.

    Raises:
        UsageError: no run, or none that can be read.
    """
    runs, left_out = load_paths(paths, options)
    comparisons: list[Comparison] = []
    for first, alike in _alike(runs, force=options.force):
        comparison = compare_runs(alike, options)
        if first is not alike:
            found = "; ".join(find_conflicts([first[0], alike[0]]) or find_conflicts([*first, *alike]))
            comparison.notes.insert(0, f"not comparable with the other runs of this workload: {found}")
        comparisons.append(comparison)
    comparisons[-1].notes.extend(left_out)
    return comparisons


def _alike(runs: Sequence[RunSummary], *, force: bool) -> Iterator[tuple[list[RunSummary], list[RunSummary]]]:
    """Runs that may be compared, each with the first such group of their workload."""
    workloads: dict[str, list[list[RunSummary]]] = {}
    for run in runs:
        groups = workloads.setdefault(str(run.manifest.get("workload")), [])
        fitting = next((group for group in groups if force or not find_conflicts([*group, run])), None)
        if fitting is None:
            groups.append([run])
        else:
            fitting.append(run)
    for groups in workloads.values():
        yield from ((groups[0], group) for group in groups)


def html(report: Report) -> str:
    """The text of the page."""
    both = zip(report.comparisons, report.figures, strict=True)
    chapters = [_chapter(f"d{number}", comparison, groups) for number, (comparison, groups) in enumerate(both, 1)]
    names = dict.fromkeys(comparison.workload for comparison in report.comparisons)
    data = [comparison.as_json() for comparison in report.comparisons]
    return render(f"kvtop report: {', '.join(names)}", LEAD, chapters, data, FOOTER)


def _chapter(key: str, comparison: Comparison, groups: Iterable[tuple[str, list[Figure]]]) -> Chapter:
    labels = [column.label for column in comparison.columns]
    parts = [
        Part("Findings", [f'<div class="findings">{bullets(_findings(comparison))}</div>']),
        Part("What was run", [tables.configuration(comparison), tables.runs(comparison)]),
        Part("Results", [paragraph(_reading(comparison)), *tables.results(comparison)]),
    ]
    if certain := list(tables.chance(comparison)):
        parts.append(Part("How far to trust the differences", certain))
    for title, figures in groups:
        drawn = [(f, "" if f.spec is None else vega.svg(charts.finished(f.spec), f"{key}-{f.key}")) for f in figures]
        parts.append(Part(title, figures=drawn))
    simulated = any(run.simulated for column in comparison.columns for run in column.runs)
    num_runs = sum(len(column.runs) for column in comparison.columns)
    lead = f"{counted(num_runs, 'run')}, {counted(len(labels), 'configuration')}: "
    return Chapter(f"Workload {comparison.workload}", lead + ", ".join(labels), simulated, parts)


def _findings(comparison: Comparison) -> Iterator[str]:
    yield from (f"forced: {text}" for text in comparison.conflicts)
    yield from comparison.notes
    for column in comparison.columns:
        for run in column.runs:
            if run.manifest.get("generator_degraded"):
                yield f"{column.label} ({Path(run.path).name}): the generator could not keep up with the workload"
    if any(run.manifest.get("git_dirty") for column in comparison.columns for run in column.runs):
        yield "kvtop had changes that were not committed when some of these runs were made"


def _reading(comparison: Comparison) -> str:
    several = any(len(column.runs) > 1 for column in comparison.columns)
    words = ["Means over replicates."] if several else []
    if len(comparison.columns) > 1:
        words.append(f"Beside each value is its change from {comparison.columns[0].label}.")
    words.append("A dash: not reported. n is the number of values behind a row.")
    return " ".join(words)


def write_files(report: Report, folder: Path, kind: str) -> list[Path]:
    """One file a plot, ``kind`` png or svg, on white.

    Raises:
        FileError: the disk refuses.
    """
    from kvtop.results.files import write_bytes

    written = []
    for name, figure in report.named():
        if figure.spec is None:
            continue
        spec = charts.finished(figure.spec)
        data: Any = vega.png(spec) if kind == "png" else vega.svg(vega.on_white(spec), figure.key).encode()
        write_bytes(folder / f"{name}.{kind}", data)
        written.append(folder / f"{name}.{kind}")
    return written
