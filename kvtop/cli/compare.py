"""``kvtop compare``: runs on disk, or runs made on the spot, side by side."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kvtop.cli.bench import EXIT_INTERRUPTED, add_point_options, make_specs, run_points
from kvtop.cli.comparison import render
from kvtop.cli.plotting import add_plot_options, check_plot_options, show_plots
from kvtop.cli.report import check_html, write_html
from kvtop.cli.result_options import (
    add_judging_options,
    add_run_result_options,
    comparison_options,
    complete_kept,
)
from kvtop.cli.run_options import add_engine_options, add_json, add_workload_options
from kvtop.cli.values import not_negative

if TYPE_CHECKING:
    from kvtop.analysis.compare import Comparison
    from kvtop.analysis.gates import Tripped

DESCRIPTION = """\
Set runs side by side: latency percentiles with the number of values behind them, throughput, goodput, hit rate,
preemptions, occupancy; then what may be chance, by replicates, by request and within one run. Runs whose workload,
clock kind, cost model or block size differ are refused (exit 2). With -w the runs are made first."""

EXAMPLES = """
kvtop compare results/first                         all runs of a bench
kvtop compare results/first/fcfs-* results/first/lpm-* --json
kvtop compare -w mooncake-conversation -p fcfs -p lpm --limit 32 --length-scale 0.0625
kvtop compare results/first --slo "ttft<2s,tpot<50ms" --fail-on "ttft_p99>+5%,slo_attainment<90%"
kvtop compare results/apc --plot ttft --svg ttft.svg --html apc.html
kvtop compare -w chat -p fcfs -p lpm --executor sim --tui        live, side by side
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", nargs="*", type=Path, metavar="RUN", help="run directory, or a directory of runs")
    add_json(parser)
    parser.add_argument(
        "--force",
        action="store_true",
        help="compare runs that are not comparable; with -w: also run complete ones again",
    )
    add_judging_options(parser)
    parser.add_argument(
        "--fail-on", action="append", metavar="CONDITIONS",
        help="exit 1 where one holds in a column but the first: ttft_p99>+5%% (against the first), ttft_p99>2s, "
        "hit_rate<50%%, preemptions>+3 (may be repeated)",
    )  # fmt: skip
    add_point_options(parser)
    add_workload_options(parser)
    add_engine_options(parser)
    output = parser.add_argument_group("output of runs made with -w")
    output.add_argument("-o", "--output", type=Path, metavar="DIR", help="default: a new directory for temporary files")
    output.add_argument("--resume", action="store_true", help="keep complete runs in DIR and run the rest")
    add_run_result_options(output)
    add_plot_options(parser)
    parser.add_argument(
        "--html", type=Path, metavar="FILE",
        help="also write the comparison with its plots as one page, as `kvtop report` does (docs/report.md)",
    )  # fmt: skip
    screen = parser.add_argument_group("on the screen (docs/compare-screen.md)")
    screen.add_argument(
        "--tui", action="store_true",
        help="side by side in the TUI: with -w policies live, in step with each other in simulated time (with "
        "--executor sim or null; nothing is written), else recorded runs",
    )  # fmt: skip
    screen.add_argument(
        "--pace", type=not_negative, metavar="X",
        help="simulated seconds a second, with --tui and -w (default 10; 0: as fast as they go)",
    )  # fmt: skip


def run(args: argparse.Namespace) -> int:
    """Compare; 1 when a gate of ``--fail-on`` tripped, 2 when the runs cannot be compared."""
    from kvtop.analysis.compare import compare_paths
    from kvtop.analysis.gates import check_gates, parse_gates
    from kvtop.engine.errors import UsageError

    if bool(args.runs) == bool(args.workload):
        raise UsageError("compare needs either runs (RUN RUN ...) or a workload to run (-w W -p P -p P)")
    if args.tui:
        from kvtop.cli.compare_screen import show_side_by_side

        return show_side_by_side(args)
    if args.pace is not None:
        raise UsageError("--pace: there is no --tui")
    check_plot_options(args)
    if args.html is not None:
        check_html(args.html)
    gates, options = parse_gates(args.fail_on or ()), comparison_options(args, force=args.force)
    if not args.workload and (args.vary or args.tokens):
        option = "--vary makes" if args.vary else "--tokens is of"
        raise UsageError(f"{option} runs: it needs a workload (-w W)")
    code, paths = 0, args.runs
    if args.workload:
        code, paths = _make_runs(args)
        if code == EXIT_INTERRUPTED or not paths:
            show_plots(args, [])
            _write_page(args, [])
            return code
    comparisons = compare_paths(paths, options)
    for comparison in comparisons:
        comparison.gates.extend(check_gates(comparison, gates))
    _show(comparisons, args)
    plotted = show_plots(args, comparisons, text=not args.json)
    _write_page(args, comparisons)
    return code or _report_gates([gate for comparison in comparisons for gate in comparison.gates]) or plotted


def _show(comparisons: Sequence[Comparison], args: argparse.Namespace) -> None:
    from kvtop.cli.comparison_layout import WIDTH
    from kvtop.cli.text import output_width

    if args.json:
        print(json.dumps([comparison.as_json() for comparison in comparisons], indent=2, allow_nan=False))
    else:
        print("\n\n".join(render(comparison, output_width() or WIDTH) for comparison in comparisons))


def _write_page(args: argparse.Namespace, comparisons: list[Comparison]) -> None:
    """The file of ``--html``, or a line that says why there is none."""
    if args.html is None:
        return
    if not comparisons:
        print("kvtop: --html: no report was written, there is no comparison", file=sys.stderr)
        return
    from kvtop.report.build import report_of

    write_html(args.html, report_of(comparisons))


def _report_gates(gates: Sequence[Tripped]) -> int:
    """One line on stderr for each, and the exit code."""
    for gate in gates:
        print(f"kvtop: --fail-on {gate.text}: {_gate_text(gate)}", file=sys.stderr)
    return int(any(gate.failed for gate in gates))


def _gate_text(gate: Tripped) -> str:
    from kvtop.cli.comparison_cells import format_unit

    verdict = "failed" if gate.failed else "passed"
    if gate.reason:
        return f"{verdict} in {gate.label}: {gate.reason}"
    sign = "+" if gate.is_change and (gate.compared or 0) > 0 else ""
    return f"{verdict} in {gate.label}: {sign}{format_unit(gate.unit, gate.compared)}"


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
        complete_kept(args, result.outcomes)
        if args.output is None:
            print(f"kvtop: the runs are kept in {out_dir}")
    done = [
        outcome.run_dir for outcome in result.outcomes if outcome.status != "failed" and outcome.run_dir is not None
    ]
    return result.exit_code, done
