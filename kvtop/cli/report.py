"""``kvtop report``: tables and plots of runs as one HTML file, and the plots as files."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from kvtop.cli.plotting import check_file
from kvtop.cli.result_options import add_judging_options, comparison_options
from kvtop.workloads.words import counted

if TYPE_CHECKING:
    from kvtop.report.build import Report

DESCRIPTION = """\
One self-contained HTML file about runs, a directory of runs, or several: what was run, the tables of `kvtop compare`,
and plots of latencies, occupancy, cache hits, block lifetimes and steps. It asks the network for nothing. Needs
`pip install 'kvtop[report]'`."""

EXAMPLES = """
kvtop report results/first --html first.html
kvtop report results/first/fcfs-* results/first/lpm-* --html two.html --slo "ttft<2s,tpot<50ms"
kvtop report results/first --png plots --svg plots
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", nargs="+", type=Path, metavar="DIR", help="run directory, or a directory of runs")
    output = parser.add_argument_group("output (at least one)")
    output.add_argument("--html", type=Path, metavar="FILE", help="the report")
    output.add_argument("--png", type=Path, metavar="DIR", help="each plot as a PNG file in DIR")
    output.add_argument("--svg", type=Path, metavar="DIR", help="each plot as an SVG file in DIR")
    parser.add_argument(
        "--trace", type=Path, metavar="FILE",
        help="the trace that was served, for the curves over cache sizes (a built-in workload needs none)",
    )  # fmt: skip
    parser.add_argument(
        "--force", action="store_true", help="set runs of a workload side by side that are not comparable"
    )
    add_judging_options(parser)


def run(args: argparse.Namespace) -> int:
    """Read the runs, draw, write. Where each file lies is told on stderr."""
    from kvtop.engine.errors import UsageError
    from kvtop.report.build import make_report, write_files

    if args.html is None and args.png is None and args.svg is None:
        raise UsageError("report writes files: name at least one of --html FILE, --png DIR, --svg DIR")
    check_html(args.html)
    for option, folder in (("--png", args.png), ("--svg", args.svg)):
        if folder is not None:
            _make_folder(option, folder)
    report = make_report(args.runs, comparison_options(args, force=args.force), args.trace)
    if args.html is not None:
        write_html(args.html, report)
    for kind, folder in (("png", args.png), ("svg", args.svg)):
        if folder is not None:
            num_written = len(write_files(report, folder, kind))
            print(f"kvtop: {counted(num_written, 'plot')} written to {folder}", file=sys.stderr)
    return 0


def check_html(path: Path | None) -> None:
    """Find out before anything is read or run whether plots can be drawn and ``path`` be written (None: no page).

    Raises:
        UsageError: the library is missing, or no file can be made there.
    """
    from kvtop.report.vega import check_installed

    check_installed()
    if path is not None:
        check_file("--html", path)


def write_html(path: Path, report: Report) -> None:
    """Write the page and tell where it lies.

    Raises:
        FileError: the disk refuses.
    """
    from kvtop.report.build import html
    from kvtop.results.files import write_bytes

    write_bytes(path, html(report).encode())
    print(f"kvtop: report written to {path}", file=sys.stderr)


def _make_folder(option: str, folder: Path) -> None:
    from kvtop.engine.errors import UsageError
    from kvtop.results.files import file_error

    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{option} {folder}: is no directory")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{option} {file_error(folder, error, 'cannot make it')}") from None
