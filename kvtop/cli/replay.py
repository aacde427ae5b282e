"""kvtop replay: the TUI on a recorded run."""

from __future__ import annotations

import argparse
from pathlib import Path

from kvtop.cli.display_options import add_display_options, display

SETTINGS = True
DESCRIPTION = """\
Look at a recorded run in the same screens, at any moment of it: [ and ] go step by step, , and . from one notable event
to the next, < and > change the pace."""

EXAMPLES = """
kvtop replay results/tuesday
kvtop replay results/tuesday --speed 10
kvtop replay results/tuesday --speed 0               stand at its first step
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="directory of a recorded run, or its frames.msgpack.zst")
    parser.add_argument("--speed", type=pace, default=1.0, metavar="X", help="seconds of the run a second (default 1)")
    add_display_options(parser)


def pace(text: str) -> float:
    """0, or seconds of the run a second."""
    from kvtop.cli.values import positive

    return 0.0 if text.strip() in ("0", "0.0") else positive(text)


def run(args: argparse.Namespace) -> int:
    """Open the TUI on the recording."""
    from kvtop.attach.address import is_address
    from kvtop.engine.errors import UsageError
    from kvtop.run.recorded import RecordedSession
    from kvtop.tui.launch import run_app

    run = Path(args.run)
    if is_address(args.run) and not run.exists():
        raise UsageError(f"{args.run}: is a server, expected a recorded run; kvtop attach {args.run} looks at a server")
    return run_app(RecordedSession(run), replay=True, speed=args.speed, **display(args))
