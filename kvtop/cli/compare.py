"""``kvtop compare``: runs on disk, or runs made on the spot, side by side."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

from kvtop.cli.bench import EXIT_INTERRUPTED, add_point_options, make_specs, run_points
from kvtop.cli.comparison import render
from kvtop.cli.plotting import add_plot_options, check_plot_options, show_plots
from kvtop.cli.run_options import add_engine_options, add_json, add_workload_options

DESCRIPTION = """\
Set runs side by side: latency percentiles with the number of values behind them, throughput, hit rate, preemptions,
occupancy. Runs whose workload, clock kind, cost model or block size differ are refused (exit 2).
With -w the runs are made first."""

EXAMPLES = """
kvtop compare results/first                         all runs of a bench
kvtop compare results/first/fcfs-* results/first/lpm-* --json
kvtop compare -w mooncake-conversation -p fcfs -p lpm --limit 32 --length-scale 0.0625
kvtop compare results/apc --plot ttft --svg ttft.svg
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", nargs="*", type=Path, metavar="RUN", help="run directory, or a directory of runs")
    add_json(parser)
    parser.add_argument(
        "--force",
        action="store_true",
        help="compare runs that are not comparable; with -w: also run complete ones again",
    )
    add_point_options(parser)
    add_workload_options(parser)
    add_engine_options(parser)
    output = parser.add_argument_group("output of runs made with -w")
    output.add_argument("-o", "--output", type=Path, metavar="DIR", help="default: a new directory for temporary files")
    output.add_argument("--resume", action="store_true", help="keep complete runs in DIR and run the rest")
    add_plot_options(parser)


def run(args: argparse.Namespace) -> int:
    """Compare; 2 when the runs cannot be compared."""
    from kvtop.compare import compare_paths
    from kvtop.engine.errors import UsageError

    if bool(args.runs) == bool(args.workload):
        raise UsageError("compare needs either runs (RUN RUN ...) or a workload to run (-w W -p P -p P)")
    check_plot_options(args)
    if args.vary and not args.workload:
        raise UsageError("--vary makes runs: it needs a workload (-w W)")
    code, paths = 0, args.runs
    if args.workload:
        code, paths = _make_runs(args)
        if code == EXIT_INTERRUPTED or not paths:
            show_plots(args, [])
            return code
    comparisons = compare_paths(paths, force=args.force)
    if args.json:
        print(json.dumps([comparison.as_json() for comparison in comparisons], indent=2, allow_nan=False))
    else:
        print("\n\n".join(render(comparison) for comparison in comparisons))
    plotted = show_plots(args, comparisons, text=not args.json)
    return code or plotted


def _make_runs(args: argparse.Namespace) -> tuple[int, list[Path]]:
    """Run the points; result lines go to stderr, so that stdout holds the comparison alone."""
    from contextlib import redirect_stdout

    from kvtop.bench import conflicts
    from kvtop.engine.errors import UsageError

    specs = make_specs(args)
    if (found := conflicts(specs, by_workload=False)) and not args.force:
        raise UsageError(f"not comparable: {'; '.join(found)} (--force compares all the same)")
    out_dir = args.output or Path(tempfile.mkdtemp(prefix="kvtop-compare-"))
    with redirect_stdout(sys.stderr):
        result = run_points(specs, out_dir, resume=args.resume, force=args.force)
        if args.output is None:
            print(f"kvtop: the runs are kept in {out_dir}")
    done = [
        outcome.run_dir for outcome in result.outcomes if outcome.status != "failed" and outcome.run_dir is not None
    ]
    return result.exit_code, done
