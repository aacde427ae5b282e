"""Options of everything that opens the TUI: how it is drawn."""

from __future__ import annotations

import argparse
from typing import Any

from kvtop.cli.values import one_of, positive

THEMES = ("dark", "light", "okabe-ito", "ansi", "mono")


def add_display_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("display")
    group.add_argument(
        "--theme", type=one_of("theme", THEMES), default=THEMES[0], metavar="T",
        help=f"{', '.join(THEMES)} (default {THEMES[0]}; with NO_COLOR always mono)",
    )  # fmt: skip
    group.add_argument("--ascii", action="store_true", help="draw with ASCII only (always so where it is not UTF-8)")
    group.add_argument("--no-mouse", action="store_true", help="leave the mouse to the terminal")
    group.add_argument("--hz", type=positive, default=4.0, metavar="N", help="redraw so often a second (default 4)")


def display(args: argparse.Namespace) -> dict[str, Any]:
    """Arguments of ``run_app``."""
    return {"theme": args.theme, "ascii": args.ascii, "mouse": not args.no_mouse, "hz": min(30.0, args.hz)}
