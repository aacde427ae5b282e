"""``kvtop why``: a request's life in plain words."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import textwrap
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


def render(facts: Facts, lines: list[Line], width: int | None = None) -> str:
    """Time, step and text of each line; the sequence too, where there are several. ``width``: wrap the text to it."""
    several = len({line.seq_id for line in lines}) > 1
    rows = [_cells(line, several) for line in lines]
    sizes = [max(len(row[i]) for row in [*rows, _HEADER]) for i in range(3)]
    parts = [title(facts), "", *_row(_HEADER, "", sizes, several, None)]
    for row, line in zip(rows, lines, strict=True):
        parts += _row(row, line.text, sizes, several, width)
    return "\n".join(parts)


_HEADER = ("time", "step", "")


def _cells(line: Line, several: bool) -> tuple[str, str, str]:
    time = "-" if line.t_ns is None else f"{line.t_ns / 1e9:,.3f} s"
    return time, "-" if line.step is None else f"{line.step:,}", line.seq_id if several else ""


def _row(cells: tuple[str, str, str], text: str, sizes: list[int], several: bool, width: int | None) -> list[str]:
    left = f"{cells[0].rjust(sizes[0])}  {cells[1].rjust(sizes[1])}  "
    left += f"{cells[2].ljust(sizes[2])}  " if several else ""
    if width is None or width - len(left) < 30:
        return [(left + text).rstrip()]
    wrapped = textwrap.wrap(text, width - len(left), break_long_words=False) or [""]
    return [(left + wrapped[0]).rstrip(), *(" " * len(left) + part for part in wrapped[1:])]


def title(facts: Facts) -> str:
    """Which request of which run."""
    run = facts.run
    words = [str(run[key]) for key in ("workload", "policy", "allocator") if run.get(key)]
    if run.get("num_blocks") and run.get("block_size_tokens"):
        words.append(f"{run['num_blocks']:,} blocks of {run['block_size_tokens']} tokens")
    if run.get("clock") == "virtual":
        words.append("simulated time")
    return f"request {facts.name}" + (f"  ({', '.join(words)})" if words else "")


def _width() -> int | None:
    return shutil.get_terminal_size().columns if is_terminal(sys.stdout) else None
