"""``kvtop bench``: its options, and what is run where. Running is in ``kvtop.bench``, the words in ``bench_report``."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvtop.cli.bench_report import print_comparison
from kvtop.cli.bench_runs import EXIT_INTERRUPTED, Bench, BenchResult, open_bench
from kvtop.cli.metrics_options import add_metrics_options
from kvtop.cli.plotting import add_plot_options, check_plot_options, plot_options, show_plots
from kvtop.cli.result_options import (
    add_judging_options,
    add_run_result_options,
    comparison_options,
    complete_kept,
    run_values,
)
from kvtop.cli.run_options import add_engine_options, add_json, add_workload_options, check_workload, run_spec
from kvtop.cli.values import count, not_negative, positive
from kvtop.cli.vary import add_vary_option, variants
from kvtop.run.spec import RunSpec

if TYPE_CHECKING:
    from kvtop.bench import Outcome

__all__ = ["EXIT_INTERRUPTED", "add_point_options", "make_specs", "run_points"]

DESCRIPTION = """\
Run workloads under several policies, each in its own engine process, and write Parquet tables. Every combination of
-w, -p, --allocator and --vary is run --replicates times; the comparison is printed at the end. With --find-rate the
highest arrival rate that meets objectives is searched instead, in simulation."""

EXAMPLES = """
kvtop bench -w mooncake-conversation -p fcfs -p lpm --limit 64 --length-scale 0.0625 -o results/first
kvtop bench -w trace.jsonl.gz -p fcfs --executor null --num-blocks 4096 --jobs 4 -o results/replay
kvtop bench -w azure-conv -p fcfs --allocator paged --allocator contiguous-max --limit 32 -o results/alloc --resume
kvtop bench -w apc --vary prefix-caching=off,on --plot ttft --svg ttft.svg -o results/apc
kvtop bench -w azure-conv -p fcfs -p sjf --executor null --find-rate "ttft_p99<2s,tpot_p99<50ms" -o results/rate
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_point_options(parser)
    add_workload_options(parser)
    add_engine_options(parser)
    parser.add_argument(
        "--max-seconds", type=positive, metavar="S",
        help="end each run after this long on its clock; what is unfinished then is counted",
    )  # fmt: skip
    output = parser.add_argument_group("output")
    output.add_argument(
        "-o", "--output", required=True, metavar="DIR", help="a directory a run is made in it; may be a URL (s3://...)"
    )
    add_rerun_options(output)
    add_json(parser)
    add_run_result_options(output)
    add_judging_options(parser)
    add_plot_options(parser)
    add_metrics_options(parser)
    add_placing_options(parser)
    add_rate_options(parser)


def add_placing_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("where and how many at a time")
    where = group.add_mutually_exclusive_group()
    where.add_argument("--jobs", type=count, default=1, metavar="N", help="runs at a time on this machine (default 1)")
    where.add_argument(
        "--ray", nargs="?", const="auto", metavar="ADDRESS",
        help="each run is a task of a Ray cluster that is there already (default: the one of this machine)",
    )  # fmt: skip
    group.add_argument("--ray-cpus", type=positive, metavar="N", help="CPUs a task asks for (default 1)")
    group.add_argument("--ray-gpus", type=not_negative, metavar="N", help="GPUs a task asks for (default 0)")
    group.add_argument(
        "--share-machine", action="store_true",
        help="allow several runs at a time although their clock is real: they disturb each other, and run.json says so",
    )  # fmt: skip


def add_rate_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("search for a rate")
    group.add_argument(
        "--find-rate", metavar="OBJECTIVES",
        help="the highest arrival rate at which all hold, for each policy, e.g. ttft_p99<2s,tpot_p99<50ms",
    )  # fmt: skip
    group.add_argument(
        "--rate-tolerance", type=positive, metavar="X", help="width of the final bracket, of its rate (default 0.05)"
    )
    group.add_argument("--max-rates", type=count, metavar="N", help="rates tried for each policy at most (default 40)")
    group.add_argument(
        "--rate-in-real-time", action="store_true", help="search with an executor whose clock is real as well"
    )


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
    comparison_options(args)
    specs = make_specs(args)
    check_placing(args, specs)
    if args.find_rate is not None:
        from kvtop.cli.find_rate import run_search

        return run_search(args)
    check_no_rate_options(args)
    if (asked := plot_options(args)) and (found := conflicts(specs)):
        raise UsageError(
            f"{asked}: nothing to draw, the runs would not be comparable: {'; '.join(found)} "
            f"(run them without; `kvtop compare --force {args.output}` then sets them side by side all the same)"
        )
    with open_bench(args, force=args.force) as bench, redirect_stdout(sys.stderr if args.json else sys.stdout):
        result = bench.run(specs, resume=args.resume)
        if bench.store is None:
            complete_kept(args, result.outcomes)
        run_dirs = [outcome.run_dir for outcome in result.outcomes if outcome.run_dir is not None]
        comparisons = print_comparison(run_dirs, comparison_options(args))
        plotted = show_plots(args, comparisons, text=not args.json)
    if args.json:
        runs = [outcome_json(outcome, bench) for outcome in result.outcomes]
        print_json({"runs": runs, "comparisons": [comparison.as_json() for comparison in comparisons]})
    return result.exit_code or plotted


def make_specs(args: argparse.Namespace, *, replicated: bool = True) -> list[RunSpec]:
    """Every point, all names checked before anything runs."""
    from kvtop.bench import replicates

    more = {"max_seconds": args.max_seconds} if getattr(args, "max_seconds", None) is not None else {}
    more |= run_values(args)
    specs = [
        run_spec(variant, workload, policy, allocator, **more)
        for workload in args.workload
        for policy in args.policy or ["fcfs"]
        for allocator in args.allocator or ["paged"]
        for variant in variants(args)
    ]
    for workload in dict.fromkeys(spec.workload for spec in specs):
        check_workload(workload)
    return [copy for spec in specs for copy in replicates(spec, args.replicates if replicated else 1)]


def check_placing(args: argparse.Namespace, specs: Sequence[RunSpec]) -> None:
    """Raise UsageError where runs at a time would spoil what is measured, or options have no use."""
    from kvtop.bench import is_virtual
    from kvtop.engine.errors import UsageError

    several = args.jobs > 1 or args.ray is not None
    if not several and args.share_machine:
        raise UsageError("--share-machine: one run at a time shares nothing (it goes with --jobs N or --ray)")
    if args.ray is not None and args.metrics_port is not None:
        raise UsageError("--metrics-port: with --ray the runs are in other processes, of which only the ends are told")
    if args.ray is None and (args.ray_cpus is not None or args.ray_gpus is not None):
        raise UsageError("--ray-cpus and --ray-gpus: there is no --ray")
    real = next((spec for spec in specs if not is_virtual(spec)), None)
    if several and real is not None and not args.share_machine:
        asked = "--ray" if args.ray is not None else f"--jobs {args.jobs}"
        raise UsageError(
            f"{asked}: executor {real.executor} runs in real time, "
            "and runs that share a machine disturb each other's times (--share-machine allows it all the same)"
        )


def check_no_rate_options(args: argparse.Namespace) -> None:
    from kvtop.engine.errors import UsageError

    for option in ("rate_tolerance", "max_rates", "rate_in_real_time"):
        if getattr(args, option):
            raise UsageError(f"--{option.replace('_', '-')}: there is no --find-rate")


def run_points(specs: Sequence[RunSpec], out_dir: Path, *, resume: bool, force: bool) -> BenchResult:
    """Run the points one after the other on this machine, a result line for each."""
    return Bench(out_dir, force=force).run(specs, resume=resume)


def outcome_json(outcome: Outcome, bench: Bench) -> dict[str, Any]:
    """A run as plain data."""
    where = None if outcome.run_dir is None else bench.where(outcome.run_dir)
    return {"label": outcome.label, "run": where, "status": outcome.status, "error": outcome.error or None}


def print_json(value: Any) -> None:
    print(json.dumps(value, indent=2, allow_nan=False))
