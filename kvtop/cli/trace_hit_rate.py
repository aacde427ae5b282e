"""``kvtop trace hit-rate``: how many of a trace's blocks a prefix cache can serve, by its size and its policy."""

from __future__ import annotations

import argparse
import json
import sys
from argparse import ArgumentTypeError
from pathlib import Path
from typing import TYPE_CHECKING

from kvtop.cli.run_options import add_json
from kvtop.cli.trace_options import add_trace_options, read_options, sliced
from kvtop.cli.values import count

if TYPE_CHECKING:
    from kvtop.workloads.formats.base import Trace
    from kvtop.workloads.oracle.hit_rate import HitRates

POLICIES = ("fifo", "lru", "lfu", "opt")
AUTO = "auto"

DESCRIPTION = """\
How many of a trace's blocks a prefix cache can serve: with room for everything, and over the size of the cache with
FIFO, LRU, LFU and OPT (Belady: no order of eviction has more hits). No engine runs: requests are taken one after the
other, in the trace's order. docs/hit-rate.md defines every figure."""

EXAMPLES = """
kvtop trace hit-rate conversation_trace.jsonl.gz
kvtop trace hit-rate conversation_trace.jsonl.gz --block-size 16 --svg curves.svg
kvtop trace hit-rate conversation_trace.jsonl.gz --capacity 1000,10000,50000 --policy lru,opt --json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_trace_options(parser)
    parser.add_argument("--limit", type=count, metavar="N", help="only the first N requests")
    group = parser.add_argument_group("cache")
    group.add_argument(
        "--block-size", type=count, metavar="N",
        help="tokens in a block of the cache (default: the trace's own; 16 where it has no block ids)",
    )  # fmt: skip
    group.add_argument(
        "--full-blocks", action="store_true",
        help="count whole blocks only, as an engine does, also where ids of partial blocks are recorded",
    )  # fmt: skip
    group.add_argument(
        "--with-answers", action="store_true",
        help="answers take room in the cache, too, as in an engine (whole blocks only)",
    )  # fmt: skip
    group.add_argument(
        "--capacity", type=_capacities, default=None, metavar="N,N,...",
        help="sizes of the cache in blocks (default auto: about 24, up to all there are)",
    )  # fmt: skip
    group.add_argument(
        "--policy", type=_policies, default=POLICIES, metavar="P,P,...", help=f"of {', '.join(POLICIES)} (default: all)"
    )
    add_json(parser)
    parser.add_argument("--svg", type=Path, metavar="FILE", help="also draw the curves into FILE")


def run(args: argparse.Namespace) -> int:
    """Read the trace, compute, print, draw."""
    from kvtop.cli.hit_rate_report import as_json, curve_plot, render
    from kvtop.cli.plotting import check_plot_options
    from kvtop.cli.text import output_width
    from kvtop.plots.curves import render_svg
    from kvtop.results.files import write_bytes

    check_plot_options(args)
    trace = _trace(args)
    name = Path(args.files[0]).name + (f" and {len(args.files) - 1} more" if len(args.files) > 1 else "")
    found = _computed(trace, args)
    if args.json:
        print(json.dumps(as_json(found, trace), indent=2, allow_nan=False))
    else:
        print(render(found, trace, name, output_width()))
    if args.svg is not None:
        write_bytes(args.svg, render_svg(curve_plot(found, name)).encode())
        print(f"kvtop: plot written to {args.svg}", file=sys.stderr)
    return 0


def _trace(args: argparse.Namespace) -> Trace:
    """The rows asked for, in the trace's order."""
    import msgspec

    from kvtop.workloads.formats.registry import answered, load_trace
    from kvtop.workloads.scale import cut

    trace = sliced(answered(load_trace(args.files, args.format, read_options(args))), args)
    rows, notices = cut(trace.rows, args.limit)
    trace = msgspec.structs.replace(trace, rows=rows, notices=[*trace.notices, *notices])
    return msgspec.structs.replace(trace, notices=[*trace.notices, *_about_order(trace)])


def _about_order(trace: Trace) -> list[str]:
    """What the order of the requests rests on, where that is not their recorded arrivals."""
    from kvtop.workloads.formats.base import NONE, PER_SESSION
    from kvtop.workloads.shape import num_sessions

    if trace.arrivals == NONE:
        return ["no arrivals are recorded: requests are taken in the order of the file"]
    if trace.arrivals == PER_SESSION and (num := num_sessions(trace.rows)) > 1:
        return [f"{num:,} sessions are taken to start together: each has a clock of its own"]
    return []


def _computed(trace: Trace, args: argparse.Namespace) -> HitRates:
    from kvtop.engine.errors import WorkloadError
    from kvtop.workloads.oracle.hit_rate import hit_rates

    try:
        return hit_rates(
            trace.rows,
            block_size=args.block_size,
            full_blocks=args.full_blocks,
            with_answers=args.with_answers,
            capacities=args.capacity,
            policies=args.policy,
        )
    except WorkloadError as error:
        raise WorkloadError(str(error), path=args.files[0]) from None


def _capacities(text: str) -> list[int] | None:
    """``1000,10000``, or None for ``auto``."""
    return None if text.strip() == AUTO else [count(word) for word in text.split(",")]


def _policies(text: str) -> tuple[str, ...]:
    from kvtop.engine.errors import UnknownName

    names = [word.strip() for word in text.split(",")]
    for name in names:
        if name not in POLICIES:
            raise ArgumentTypeError(str(UnknownName("policy", name, POLICIES)))
    return tuple(dict.fromkeys(names))
