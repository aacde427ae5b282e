"""``kvtop why``: a request's life in plain words."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvtop.cli.run_options import add_json
from kvtop.cli.terminal import is_terminal

if TYPE_CHECKING:
    from kvtop.why import Facts, Line

DESCRIPTION = """\
Tell the life of one request from the decision log of a run: why it waited and for whom, where its prefix match ended,
what a preemption cost it, whom it pushed out of the cache, how it ended. Times are the run's clock."""

EXAMPLES = """
kvtop why results/first/fcfs-mooncake-conversation-1a2b3c4d r17
kvtop why results/replay r17 --json             a directory with one run in it will do
kvtop why results/replay r17#1                  one branch of a request with several
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", type=Path, metavar="RUN", help="run directory, or a directory with one run in it")
    parser.add_argument("request", metavar="REQUEST", help="request id, or a branch of it (r17#1)")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    from kvtop.why import explain
    from kvtop.why.tables import load_facts, the_run
    from kvtop.why.text import render

    facts = load_facts(the_run(args.run), args.request)
    lines = explain(facts)
    if args.json:
        print(json.dumps(as_json(facts, lines), indent=2, allow_nan=False))
    else:
        print(render(facts, lines, _width()))
    return 0


def as_json(facts: Facts, lines: list[Line]) -> dict[str, Any]:
    """Plain data with stable keys: the row of requests.parquet, and the lines with their numbers."""
    return {
        "run_id": facts.run.get("run_id"),
        "clock": facts.run.get("clock"),
        "name": facts.name,
        "request": dict(facts.request),
        "lines": [line.as_json() for line in lines],
    }


def _width() -> int | None:
    return shutil.get_terminal_size().columns if is_terminal(sys.stdout) else None
