"""``--plot`` and ``--svg``: plots of a comparison, below its table and as a file."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kvtop.cli.values import one_of

if TYPE_CHECKING:
    from kvtop.analysis.compare import Comparison

MEASURES = ("ttft", "itl", "tpot", "e2e")
SCALES = ("auto", "log", "linear")
DEFAULT_MEASURE = "ttft"


def add_plot_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("plots")
    group.add_argument(
        "--plot", action="append", type=one_of("measure to plot", MEASURES), metavar="MEASURE",
        help=f"{', '.join(MEASURES)}: a line a column below the table (may be repeated; {DEFAULT_MEASURE} with --svg)",
    )  # fmt: skip
    group.add_argument(
        "--svg", type=Path, metavar="FILE", help="also draw the share of values at or below each time (ECDF) into FILE"
    )
    group.add_argument(
        "--plot-axis", type=one_of("axis", SCALES), default="auto", metavar="SCALE",
        help="log, linear, or auto: log where the values spread widely (default)",
    )  # fmt: skip


def check_plot_options(args: argparse.Namespace) -> None:
    """Refuse a file that cannot be written before anything runs.

    Raises:
        UsageError: anything but a regular file in its place, or a place where no file can be made.
    """
    if args.svg is not None:
        check_file("--svg", args.svg)


def check_file(option: str, path: Path) -> None:
    """Refuse a file of ``option`` that cannot be written.

    Raises:
        UsageError: see ``check_plot_options``.
    """
    from kvtop.engine.errors import UsageError
    from kvtop.results.files import FileError, check_replaceable

    try:
        check_replaceable(path)
    except FileError as error:
        raise UsageError(f"{option} {error}") from None


def plot_options(args: argparse.Namespace) -> str:
    """The options given that ask for a plot, as they are called: "", ``--plot``, ``--svg`` or ``--plot and --svg``."""
    return " and ".join(name for name, value in (("--plot", args.plot), ("--svg", args.svg)) if value)


def show_plots(args: argparse.Namespace, comparisons: Sequence[Comparison], *, text: bool = True) -> int:
    """Print what ``--plot`` asks for, unless not ``text``, and write the file of ``--svg``; nothing without either.

    Returns the exit code: 1, with a line that says so, when a plot was asked for and there is nothing to draw.

    Raises:
        FileError: the disk refuses.
    """
    from kvtop.cli.text import output_width
    from kvtop.plots import svg
    from kvtop.plots import text as lines
    from kvtop.plots.panels import panels
    from kvtop.results.files import write_bytes

    if not plot_options(args):
        return 0
    if not comparisons:
        print(f"kvtop: {plot_options(args)}: no plot was made, there is no comparison to draw", file=sys.stderr)
        return 1
    keys = list(dict.fromkeys(args.plot or ([] if args.svg is None else [DEFAULT_MEASURE])))
    made = panels(comparisons, keys)
    if text:
        for panel in made:
            print(f"\n{lines.render(panel, width=output_width(), scale=args.plot_axis)}")
    if args.svg is not None:
        write_bytes(args.svg, svg.render(made, args.plot_axis).encode())
        print(f"kvtop: plot written to {args.svg}", file=sys.stderr)
    return 0
