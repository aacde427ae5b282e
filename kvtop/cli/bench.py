"""``kvtop bench``: the arguments, the progress line and the tables. Running is in ``kvtop.bench``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from kvtop.cli.plotting import add_plot_options, check_plot_options, plot_options, show_plots
from kvtop.cli.run_options import add_engine_options, add_workload_options, check_workload, run_spec
from kvtop.cli.terminal import ProgressLine, interruptible
from kvtop.cli.text import format_ns, percent, significant
from kvtop.cli.values import count
from kvtop.cli.vary import add_vary_option, variants
from kvtop.run.spec import RunSpec

if TYPE_CHECKING:
    from kvtop.bench import Outcome, Progress
    from kvtop.compare import Comparison
    from kvtop.summary import RunSummary

DESCRIPTION = """\
Run workloads under several policies, each in its own engine process, and write Parquet tables. Every combination of
-w, -p, --allocator and --vary is run --replicates times; the comparison is printed at the end."""

EXAMPLES = """
kvtop bench -w mooncake-conversation -p fcfs -p lpm --limit 64 --length-scale 0.0625 -o results/first
kvtop bench -w trace.jsonl.gz -p fcfs --executor null --num-blocks 4096 -o results/replay
kvtop bench -w azure-conv -p fcfs --allocator paged --allocator contiguous-max --limit 32 -o results/alloc --resume
kvtop bench -w apc --vary prefix-caching=off,on --plot ttft --svg ttft.svg -o results/apc
"""

EXIT_INTERRUPTED = 130


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_point_options(parser)
    add_workload_options(parser)
    add_engine_options(parser)
    output = parser.add_argument_group("output")
    output.add_argument(
        "-o", "--output", type=Path, required=True, metavar="DIR", help="one directory a run is made in it"
    )
    add_rerun_options(output)
    add_plot_options(parser)


def add_point_options(parser: argparse.ArgumentParser) -> None:
    points = parser.add_argument_group("what is run (each may be repeated)")
    points.add_argument(
        "-w", "--workload", action="append", metavar="W", help="built-in name (`kvtop workloads`) or trace file"
    )
    points.add_argument(
        "-p", "--policy", action="append", metavar="P", help="queue policy (`kvtop policies`; default fcfs)"
    )
    points.add_argument("--allocator", action="append", metavar="A", help="see `kvtop policies` (default paged)")
    add_vary_option(points)
    points.add_argument("--replicates", type=count, default=1, metavar="R", help="seeds S, S+1, ... (default 1)")


def add_rerun_options(parser: argparse._ActionsContainer) -> None:
    again = parser.add_mutually_exclusive_group()
    again.add_argument("--resume", action="store_true", help="keep complete runs in DIR and run the rest")
    again.add_argument("--force", action="store_true", help="run complete ones again, replacing them")


def run(args: argparse.Namespace) -> int:
    """Run everything, then compare. 1 when a run failed or no request succeeded, 130 when interrupted."""
    from kvtop.bench import conflicts
    from kvtop.engine.errors import UsageError

    if not args.workload:
        raise UsageError("bench needs a workload: -w NAME or FILE (`kvtop workloads` lists the built-in ones)")
    check_plot_options(args)
    specs = make_specs(args)
    if (asked := plot_options(args)) and (found := conflicts(specs)):
        raise UsageError(
            f"{asked}: nothing to draw, the runs would not be comparable: {'; '.join(found)} "
            f"(run them without; `kvtop compare --force {args.output}` then sets them side by side all the same)"
        )
    result = run_points(specs, args.output, resume=args.resume, force=args.force)
    comparisons = print_comparison([outcome.run_dir for outcome in result.outcomes if outcome.run_dir is not None])
    plotted = show_plots(args, comparisons)
    return result.exit_code or plotted


def make_specs(args: argparse.Namespace) -> list[RunSpec]:
    """Every point, all names checked before anything runs."""
    from kvtop.bench import replicates

    specs = [
        run_spec(variant, workload, policy, allocator)
        for workload in args.workload
        for policy in args.policy or ["fcfs"]
        for allocator in args.allocator or ["paged"]
        for variant in variants(args)
    ]
    for workload in {spec.workload.name: spec.workload for spec in specs}.values():
        check_workload(workload)
    return [replicate for spec in specs for replicate in replicates(spec, args.replicates)]


@dataclass(slots=True)
class BenchResult:
    """What became of the points, in order, and the exit code that says it."""

    outcomes: list[Outcome] = field(default_factory=list)
    exit_code: int = 0


def run_points(specs: Sequence[RunSpec], out_dir: Path, *, resume: bool, force: bool) -> BenchResult:
    """Run the points one after the other, a result line for each. Ctrl-C ends the current one in good order."""
    from kvtop.bench import plan_points, point_labels

    points = plan_points(specs, out_dir, resume=resume, force=force)
    labels = point_labels([spec for spec, _ in points])
    result, line = BenchResult(), ProgressLine()
    with interruptible():
        try:
            for index, ((spec, kept), label) in enumerate(zip(points, labels, strict=True)):
                _run_one(f"[{index + 1}/{len(points)}] ", label, spec, result, line, kept=kept, force=force)
        except KeyboardInterrupt:
            line.clear()
            left = len(points) - len(result.outcomes)
            rest = f", {left} not started" if left else ""
            print(f"kvtop: interrupted; finished rows are kept in {out_dir}{rest}", file=sys.stderr)
            result.exit_code = EXIT_INTERRUPTED
    return result


def _run_one(
    place: str, label: str, spec: RunSpec, result: BenchResult, line: ProgressLine, *, kept: bool, force: bool
) -> None:
    from kvtop.bench import Outcome, run_point

    def observe(progress: Progress) -> None:
        line.show(place + progress_text(progress))

    result.outcomes.append(Outcome(label, Path(spec.run_dir or ""), "kept" if kept else "interrupted"))
    if not kept:
        result.outcomes[-1] = run_point(spec, observe, label=label, force=force)
    line.clear()
    outcome = result.outcomes[-1]
    if outcome.status == "interrupted":  # by a signal that only the engine's process got
        raise KeyboardInterrupt
    if not report_outcome(place, outcome):
        result.exit_code = 1


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


def report_outcome(place: str, outcome: Outcome) -> bool:
    """Print a run's one-line result; False when it failed or nothing in it succeeded."""
    from kvtop.engine.errors import KvtopError
    from kvtop.summary import load_run

    for warning in outcome.warnings:
        print(f"kvtop: {outcome.label}: {warning}", file=sys.stderr)
    if outcome.status == "failed":
        report_failure(outcome, f"{outcome.label}: failed: ")
        return False
    try:
        summary = load_run(outcome.run_dir) if outcome.run_dir is not None else None
    except KvtopError as error:
        print(f"kvtop: {outcome.label}: {error}", file=sys.stderr)
        return False
    if summary is None:
        return True
    print(f"{place}{outcome.label}: {outcome.status}, {result_text(summary)}  -> {outcome.run_dir}", flush=True)
    if summary.num_requests and not summary.num_ok:
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
        f"{summary.preemptions} preemptions, {format_ns(summary.duration_ns)}"
    )


def print_comparison(run_dirs: Sequence[Path]) -> list[Comparison]:
    """One table a workload of the runs that left tables, without those interrupted before anything was finished.

    Runs of one workload that are not comparable (other block sizes, other models) get a line that says so, no table.
    """
    from kvtop.cli.comparison import render
    from kvtop.compare import compare_by_workload, load_readable
    from kvtop.engine.errors import UsageError

    runs, _ = load_readable(run_dirs)
    shown = [run for run in runs if run.num_ok or run.status != "interrupted"]
    try:
        comparisons = compare_by_workload(shown)
    except UsageError as error:
        print(f"kvtop: {error}", file=sys.stderr)
        return []
    for comparison in comparisons:
        print(f"\n{render(comparison)}")
    return comparisons
