"""``kvtop trace convert``: a trace in another format, sliced, scaled or tiled on the way."""

from __future__ import annotations

import argparse
import gzip
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import IO, TYPE_CHECKING

from kvtop.cli.run_options import add_json
from kvtop.cli.trace_options import add_trace_options, read_options, sliced
from kvtop.cli.values import count, not_negative, positive
from kvtop.workloads.words import counted

if TYPE_CHECKING:
    from kvtop.workloads.formats.base import Trace, Written

DESCRIPTION = """\
Write a trace in another format. kvtop's own (the default) holds everything: sessions, think times, ids, arrivals to the
ns; others lose what they cannot hold, and it says what. In this order the trace is cut (--start, --end, --limit), given
arrivals (--arrival-rate), scaled, and tiled."""

EXAMPLES = """
kvtop trace convert trace.csv -o part.jsonl --to mooncake --start 600 --end 1200
kvtop trace convert trace.jsonl -o twice.jsonl.gz --tile 2 --time-scale 0.5
kvtop trace convert lengths.csv -o timed.jsonl --arrival-rate 2
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_trace_options(parser)
    writing = parser.add_argument_group("writing")
    writing.add_argument("-o", "--output", type=Path, required=True, metavar="OUT", help="file to write; .gz is gzip")
    writing.add_argument("--to", default="kvtop", metavar="F", help="kvtop (default), mooncake or vidur")
    changes = parser.add_argument_group("changes")
    changes.add_argument("--limit", type=count, metavar="N", help="only the first N requests")
    changes.add_argument(
        "--arrival-rate", type=float, metavar="R",
        help="Poisson arrivals per second, of requests or sessions, where none are recorded (inf: all at once)",
    )  # fmt: skip
    changes.add_argument(
        "--time-scale", type=not_negative, default=1.0, metavar="X", help="multiplies gaps and think times"
    )
    changes.add_argument(
        "--length-scale", type=positive, default=1.0, metavar="X", help="multiplies prompts and outputs"
    )
    changes.add_argument(
        "--tile", type=count, default=1, metavar="N", help="N copies one after the other, which share no prefix"
    )
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Read, change and write the trace; what was changed or lost goes to stderr."""
    from kvtop.engine.errors import UnknownName
    from kvtop.workloads.formats.registry import FORMATS, answered, load_trace

    writers = {name: found.write for name, found in FORMATS.items() if found.write is not None}
    if args.to not in writers:
        raise UnknownName("format to write", args.to, writers)
    _spare_the_source(args.files, args.output)
    trace = changed(sliced(load_trace(args.files, args.format, read_options(args)), args), args)
    if args.to != "kvtop":
        trace = answered(trace)
    written = writers[args.to](trace)
    write(args.output, written)
    notices = [*trace.notices, *written.notices]
    if args.json:
        values = {"path": str(args.output), "format": args.to, "rows": len(trace.rows), "notices": notices}
        print(json.dumps(values, indent=2))
        return 0
    print(f"{args.output}: {counted(len(trace.rows), 'row')}, {args.to}")
    for notice in notices:
        print(f"note: {notice}", file=sys.stderr)
    return 0


def _spare_the_source(files: Iterable[str], output: Path) -> None:
    """Refuse to write over what is read: of a recording there may be no other copy.

    Raises:
        UsageError: ``output`` is one of the files, under whatever name.
    """
    from kvtop.engine.errors import UsageError

    if output.resolve() in [Path(file).resolve() for file in files]:
        raise UsageError(f"-o {output}: is the trace that is read, expected another file")


def changed(trace: Trace, args: argparse.Namespace) -> Trace:
    """The trace as the options want it."""
    import msgspec

    from kvtop.workloads.formats.registry import started
    from kvtop.workloads.scale import check_factor, cut, scale_lengths, scale_time
    from kvtop.workloads.shape import tiled

    rows, notices = cut(trace.rows, args.limit)
    trace = msgspec.structs.replace(trace, rows=rows, notices=[*trace.notices, *notices])
    if args.arrival_rate is not None:
        trace = started(trace, args.files[0], args.arrival_rate, args.seed)
    rows, notices = scale_lengths(
        scale_time(trace.rows, check_factor(args.time_scale, "time_scale", zero=True)),
        check_factor(args.length_scale, "length_scale"),
    )
    rows, more = tiled(rows, args.tile)
    for name, value in (("time_scale", args.time_scale), ("length_scale", args.length_scale)):
        if value != 1:
            notices.append(f"{name} {value:g} was applied")
    return msgspec.structs.replace(trace, rows=rows, notices=[*trace.notices, *notices, *more])


def write(path: Path, written: Written) -> None:
    """Whole or not at all; the same trace gives the same bytes.

    Raises:
        FileError: the file cannot be written.
    """
    from kvtop.results.files import replacing

    with replacing(path) as temp, open(temp, "wb") as file:
        if path.name.endswith(".gz"):
            with gzip.GzipFile(fileobj=file, mode="wb", filename="", mtime=0) as packed:
                _write_lines(packed, written.lines)
        else:
            _write_lines(file, written.lines)


def _write_lines(file: IO[bytes] | gzip.GzipFile, lines: Iterable[bytes]) -> None:
    for line in lines:
        file.write(line)
