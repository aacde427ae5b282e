"""What ``kvtop bench`` says: the progress line, a line for each run that ended, the tables at the end."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kvtop.cli.text import fitting, format_ns, output_width, percent, significant
from kvtop.workloads.words import counted

if TYPE_CHECKING:
    from kvtop.analysis.compare import Comparison, Options
    from kvtop.analysis.summary import RunSummary
    from kvtop.bench import Outcome, Progress


def overall_text(under_way: Sequence[Progress], num_ended: int, num_points: int) -> str:
    """One line: the one run under way, or how many there are and how far each is."""
    place = f"[{num_ended + 1}/{num_points}] "
    if len(under_way) == 1:
        return place + progress_text(under_way[0])
    parts = ", ".join(f"{each.label} {_share(each)}" for each in under_way)
    return f"[{num_ended}/{num_points} ended] {len(under_way)} running: {parts}"


def _share(progress: Progress) -> str:
    if not progress.num_requests:
        return progress.notice or "starting"
    place = f"{progress.num_ended}/{progress.num_requests}"
    return f"{place} {progress.notice}" if progress.notice and progress.step else place


def progress_text(progress: Progress) -> str:
    """One line: where the run is."""
    if not progress.step:
        done = "" if progress.fraction is None else f" {100 * progress.fraction:.0f} %"
        return f"{progress.label}: {progress.notice or 'starting'}{done}"
    total = "" if progress.num_requests is None else f"/{progress.num_requests}"
    if progress.notice:
        return f"{progress.label}: {progress.num_ended}{total} done, {progress.notice}"
    blocks = (
        "" if not progress.num_blocks else f", {100 * progress.used_blocks / progress.num_blocks:.0f} % of blocks used"
    )
    return (
        f"{progress.label}: {progress.num_ended}{total} done, {progress.num_running} running, "
        f"{progress.num_waiting} waiting{blocks}, step {progress.step:,}, {progress.t_ns / 1e9:.1f} s"
    )


def report_outcome(place: str, outcome: Outcome, where: str | None = None, *, quiet: bool = False) -> bool:
    """Print a run's one-line result; False when it failed or nothing in it succeeded.

    ``where`` it is kept, as it is told. ``quiet``: only what went wrong is told.
    """
    from kvtop.analysis.summary import load_run
    from kvtop.engine.errors import KvtopError

    for warning in outcome.warnings:
        print(f"kvtop: {outcome.label}: {warning}", file=sys.stderr)
    if outcome.status == "failed":
        report_failure(outcome, f"{outcome.label}: failed: ")
        return False
    if outcome.status == "interrupted" and not (outcome.run_dir is not None and outcome.run_dir.is_dir()):
        return True  # while it was loading: there is nothing to tell
    try:
        summary = load_run(outcome.run_dir, gaps=False) if outcome.run_dir is not None else None
    except KvtopError as error:
        print(f"kvtop: {outcome.label}: {error}", file=sys.stderr)
        return False
    if summary is None:
        return True
    if not quiet:
        *told, last = f"{place}{outcome.label}: {outcome.status}, {result_text(summary)}".split(", ")
        pieces = [*(f"{each}," for each in told), last, f" -> {where or outcome.run_dir}"]
        print(fitting(pieces, output_width()), flush=True)
    if outcome.status != "interrupted" and summary.num_requests and not summary.num_ok:
        print(f"kvtop: {outcome.label}: no successful request", file=sys.stderr)
        return False
    return True


def report_failure(outcome: Outcome, before: str = "") -> None:
    """One line; where the engine's process left a traceback, KVTOP_DEBUG=1 shows it."""
    from kvtop.cli.main import debugging

    hint = " (KVTOP_DEBUG=1 shows the traceback)" if outcome.traceback and not debugging() else ""
    print(f"kvtop: {before}{outcome.error}{hint}", file=sys.stderr)
    if outcome.traceback and debugging():
        print(outcome.traceback, file=sys.stderr)


def result_text(summary: RunSummary) -> str:
    """The few figures that fit one line."""
    return (
        f"{summary.num_ok}/{summary.num_requests} ok, TTFT p50 {format_ns(summary.ttft.p50)}, "
        f"{significant(summary.output_tokens_s)} output tokens/s, hit rate {percent(summary.hit_rate)}"
        f"{'' if summary.host_hit_rate is None else f' + {percent(summary.host_hit_rate)} host'}, "
        f"{counted(summary.preemptions, 'preemption')}, {format_ns(summary.duration_ns)}{backlog_text(summary)}"
    )


def backlog_text(summary: RunSummary) -> str:
    """What the end of the run left undone; "" when there is nothing."""
    cut_off = summary.statuses.get("cutoff", 0)
    total = summary.manifest.get("num_requests")
    not_sent = 0 if total is None else max(0, total - summary.num_requests)
    parts = [f"{cut_off} cut off"] * (cut_off > 0) + [f"{not_sent} not yet sent"] * (not_sent > 0)
    return f", backlog at the end: {' and '.join(parts)}" if parts else ""


def print_comparison(run_dirs: Sequence[Path], options: Options | None = None) -> list[Comparison]:
    """One table a workload, as it is cut and scaled, of the runs that left tables.

    Those that were interrupted before anything was finished are left out.
    Runs of one workload that are not comparable (other block sizes, other models) get a line that says so, no table.
    """
    from kvtop.analysis.compare import DEFAULTS, compare_by_workload, load_readable
    from kvtop.bench import WORKLOAD_SETTINGS
    from kvtop.cli.comparison import render
    from kvtop.cli.comparison_layout import WIDTH
    from kvtop.cli.text import output_width
    from kvtop.engine.errors import UsageError

    options = options or DEFAULTS
    runs, _ = load_readable(run_dirs, options)
    workloads: dict[str, list[RunSummary]] = {}
    for run in runs:
        if run.num_ok or run.status != "interrupted":
            workloads.setdefault(str([run.manifest.get(key) for key in WORKLOAD_SETTINGS]), []).append(run)
    comparisons: list[Comparison] = []
    for alike in workloads.values():
        try:
            comparisons += compare_by_workload(alike, options)
        except UsageError as error:
            print(f"kvtop: {error}", file=sys.stderr)
    for comparison in comparisons:
        print(f"\n{render(comparison, output_width() or WIDTH)}")
    return comparisons
