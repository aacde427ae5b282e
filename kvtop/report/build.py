"""From directories to a report: which runs are set side by side, in what order things come, which files are written."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvtop.analysis.compare import DEFAULTS, Comparison, Options, compare_runs, find_conflicts, load_paths
from kvtop.analysis.summary import RunSummary
from kvtop.report import charts, observed_page, tables, vega
from kvtop.report.blocks import block_figures
from kvtop.report.cache import cache_figures
from kvtop.report.differences import difference_figures
from kvtop.report.figure import Figure, Material
from kvtop.report.html import bullets, paragraph
from kvtop.report.latency import latency_figures
from kvtop.report.observed import Observed, observe
from kvtop.report.observed_figures import observed_figures
from kvtop.report.page import Chapter, Part, render
from kvtop.report.pool import pool_figures
from kvtop.report.steps import step_figures
from kvtop.results.load import find_runs
from kvtop.results.rundir import is_observed
from kvtop.workloads.words import counted

LEAD = "Every figure is read from the runs' tables; what each measure means is in docs/definitions.md of kvtop."
OBSERVED_LEAD = (
    "Every figure is what the servers reported while kvtop looked at them; docs/attach.md of kvtop says how true."
)
FOOTER = (
    "The data behind the tables is in this file as JSON (element comparisons), as kvtop compare --json prints it. "
    "Drag or turn the wheel on a plot over time to move or stretch it; a click in a legend picks one line."
)
OBSERVED_FOOTER = (
    "The data behind the tables is in this file as JSON (element comparisons). "
    "Drag or turn the wheel on a plot of lines to move or stretch it."
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
    figures: list[list[tuple[str, list[Figure]]]]  # of each comparison, then of each recording, by group
    recordings: list[Observed] = field(default_factory=list)  # of attached servers

    def named(self) -> Iterator[tuple[str, Figure]]:
        """Figures that have a plot, each with a file name of its own, without an ending."""
        for number, groups in enumerate(self.figures, 1):
            drawn = [figure for _, group in groups for figure in group if figure.spec is not None]
            for place, figure in enumerate(drawn, 1):
                chapter = f"{number}-" if len(self.figures) > 1 else ""
                yield f"{chapter}{place:02}-{figure.key}", figure


def make_report(paths: Sequence[Path], options: Options = DEFAULTS, trace: Path | None = None) -> Report:
    """Load, compare, and make the figures. A recording of attached servers is a chapter of its own.

    Raises:
        UsageError: no run, or none that can be read.
    """
    runs, watched = _told_apart(paths)
    report = report_of(compare_all(runs, options) if runs else [], trace)
    for path in watched:
        recording = observe(path)
        report.recordings.append(recording)
        report.figures.append([("Over time", list(observed_figures(recording)))])
    return report


def _told_apart(paths: Sequence[Path]) -> tuple[list[Path], list[Path]]:
    """Runs, and recordings of attached servers, among ``paths`` and directly below them."""
    runs: list[Path] = []
    watched: list[Path] = []
    for path in paths:
        below = find_runs(path)
        own = [each for each in below if is_observed(each)]
        watched += own
        runs += [each for each in below if each not in own] if own else [path]
    return runs, list(dict.fromkeys(watched))


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
    both = zip(report.comparisons, report.figures, strict=False)
    chapters = [_chapter(f"d{number}", comparison, groups) for number, (comparison, groups) in enumerate(both, 1)]
    groups = report.figures[len(report.comparisons) :]
    for number, (recording, own) in enumerate(zip(report.recordings, groups, strict=True), len(chapters) + 1):
        chapters.append(_watched(f"d{number}", recording, own))
    names = dict.fromkeys(comparison.workload for comparison in report.comparisons)
    names |= dict.fromkeys(str(recording.state.manifest.get("workload")) for recording in report.recordings)
    data = [comparison.as_json() for comparison in report.comparisons]
    data += [observed_page.as_json(recording) for recording in report.recordings]
    leads = [LEAD] if report.comparisons else []
    leads += [OBSERVED_LEAD] if report.recordings else []
    footer = FOOTER if report.comparisons else OBSERVED_FOOTER
    return render(f"kvtop report: {', '.join(names)}", " ".join(leads), chapters, data, footer)


def _watched(key: str, recording: Observed, groups: Iterable[tuple[str, list[Figure]]]) -> Chapter:
    """The chapter of a recording of attached servers."""
    parts = [Part(title, html) for title, html in observed_page.parts(recording)]
    parts += [Part(title, figures=_drawn(key, figures)) for title, figures in groups]
    parts += [Part(title, html) for title, html in observed_page.after(recording)]
    return Chapter(observed_page.title(recording), observed_page.lead(recording), False, parts)


def _drawn(key: str, figures: list[Figure]) -> list[tuple[Figure, str]]:
    return [(f, "" if f.spec is None else vega.svg(charts.finished(f.spec), f"{key}-{f.key}")) for f in figures]


def _chapter(key: str, comparison: Comparison, groups: Iterable[tuple[str, list[Figure]]]) -> Chapter:
    labels = [column.label for column in comparison.columns]
    parts = [
        Part("Findings", [f'<div class="findings">{bullets(_findings(comparison))}</div>']),
        Part("What was run", [tables.configuration(comparison), tables.runs(comparison)]),
        Part("Results", [paragraph(_reading(comparison)), *tables.results(comparison)]),
    ]
    if certain := list(tables.chance(comparison)):
        parts.append(Part(f"How far to trust the {'differences' if len(labels) > 1 else 'figures'}", certain))
    for title, figures in groups:
        parts.append(Part(title, figures=_drawn(key, figures)))
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
