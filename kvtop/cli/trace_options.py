"""Options that the subcommands of ``kvtop trace`` share."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from kvtop.cli.values import count, count_or_zero, not_negative, positive

if TYPE_CHECKING:
    from kvtop.workloads.formats.base import ReadOptions, Trace


def add_trace_options(parser: argparse.ArgumentParser) -> None:
    """The files, and how they are read."""
    parser.add_argument(
        "files", nargs="+", metavar="FILE",
        help="a trace, plain or gzip; a directory or several files where each is a session",
    )  # fmt: skip
    reading = parser.add_argument_group("reading")
    reading.add_argument("--format", metavar="F", help="trace format, where it is not recognised")
    reading.add_argument(
        "--hash-block-tokens", type=count, metavar="N", help="prompt tokens for each hash id, where it is not as usual"
    )
    reading.add_argument(
        "--tokenizer", metavar="FILE", help="tokenizer.json that counts the tokens of text (default: approximated)"
    )
    reading.add_argument(
        "--output-tokens", type=count, metavar="N", help="length of answers where the trace records none"
    )
    reading.add_argument("--seed", type=count_or_zero, default=0, metavar="S", help="of what is sampled (default 0)")
    reading.add_argument(
        "--start", type=not_negative, default=0.0, metavar="S", help="leave out what arrives before (s)"
    )
    reading.add_argument("--end", type=positive, metavar="S", help="leave out what arrives at or after this time (s)")


def read_options(args: argparse.Namespace) -> ReadOptions:
    """The options as asked for."""
    from kvtop.workloads.formats.base import ReadOptions

    return ReadOptions(
        hash_block_tokens=args.hash_block_tokens,
        tokenizer=args.tokenizer,
        output_tokens=args.output_tokens,
        start_s=args.start,
        end_s=args.end,
        seed=args.seed,
    )


def sliced(trace: Trace, args: argparse.Namespace) -> Trace:
    """The part of the trace between --start and --end."""
    from kvtop.workloads.formats import registry

    return registry.sliced(trace, args.files[0], read_options(args))
