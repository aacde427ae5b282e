"""kvtop's own trace format: JSON lines that hold everything a workload's rows can hold, exactly.

The first line is a header, ``{"kvtop_trace": 1, ...}``, and says where the rows come from and what was done to them;
then one object a row with the fields of ``Row`` that are not at their default, times in ns from the first arrival.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NoReturn

import msgspec

from kvtop.engine.errors import WorkloadError
from kvtop.engine.types import MAX_BRANCHES
from kvtop.workloads.files import TextFile
from kvtop.workloads.formats.base import (
    ARRIVALS,
    MAX_INT,
    MAX_TIME_NS,
    RECORDED,
    Clock,
    ReadOptions,
    Trace,
    TraceFormat,
    Written,
    check_length,
)
from kvtop.workloads.formats.hash_ids import CEIL, FLOOR, SharedIds, num_ids
from kvtop.workloads.formats.json_rows import TOKENS, Field, json_lines
from kvtop.workloads.rows import MAX_LENGTH_TOKENS, Row
from kvtop.workloads.words import shorten

VERSION = 1
NANOSECONDS = Field((int,), "an integer (ns)")
HEADER = {"kvtop_trace": Field((int,), f"a version, {VERSION}")}
FIELDS = {"arrival_ns": NANOSECONDS, "prompt_tokens": TOKENS, "output_tokens": TOKENS}


class Header(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What all rows have in common. ``notices``: what was known of the source, and what was changed since.
    ``in_order`` False: rows were written as they ended, and a reader sorts them by arrival."""

    kvtop_trace: int
    source_format: str | None = None
    source_sha256: str | None = None
    arrivals: str = RECORDED
    rounding: str | None = None
    counted_by: str = "the publisher"
    nominal_arrivals: bool = False
    in_order: bool = True
    notices: list[str] = []


BOUNDS = {
    "arrival_ns": (0, MAX_TIME_NS),
    "think_ns": (0, MAX_TIME_NS),
    "hash_block_tokens": (0, MAX_LENGTH_TOKENS),
    "shared_tokens": (0, MAX_LENGTH_TOKENS),
    "shared_id": (0, MAX_INT),
    "conversation": (0, MAX_INT),
    "turn": (0, MAX_INT),
    "priority": (-MAX_INT, MAX_INT),
    "n": (1, MAX_BRANCHES),
    "num_beams": (1, MAX_BRANCHES),
}
"""Least and most of what is no length: beyond these a request could be read, but not served or written down."""

_decode_header = msgspec.json.Decoder(Header).decode
_decode_row = msgspec.json.Decoder(Row).decode
_DEFAULTS = {name: value for name, value in msgspec.to_builtins(Row(0, 0, 0)).items() if name not in FIELDS}


def read(file: TextFile, options: ReadOptions) -> Trace:
    """Read header and rows; a malformed one raises WorkloadError with its number and reason."""
    line, header = _header(file)
    rows: list[Row] = []
    ids = SharedIds()
    last_ns = 0
    for number, row in json_lines(file, _decode_row, FIELDS, skip=line):
        _check(row, last_ns if header.in_order else 0, file.path, number)
        last_ns = row.arrival_ns
        rows.append(msgspec.structs.replace(row, hash_ids=ids.of(row.hash_ids)) if row.hash_ids else row)
    if not rows:
        raise WorkloadError("no rows, expected at least one request", path=file.path)
    if not header.in_order:
        rows.sort(key=lambda row: row.arrival_ns)
        first_ns = rows[0].arrival_ns
        rows = [msgspec.structs.replace(row, arrival_ns=row.arrival_ns - first_ns) for row in rows]
    if rows[0].arrival_ns:
        raise WorkloadError(f"the first arrival_ns is {rows[0].arrival_ns:,}, expected 0", path=file.path, row=line + 1)
    return Trace(
        rows=rows,
        notices=list(header.notices),
        trace_sha256=file.sha256,
        format=KVTOP.name,
        nominal_arrivals=header.nominal_arrivals,
        arrivals=header.arrivals,
        time_unit="nanoseconds",
        rounding=header.rounding,
        counted_by=header.counted_by,
    )


def write(trace: Trace, *, in_order: bool = True) -> Written:
    """The whole trace: nothing is lost. ``in_order`` False: more rows follow, in any order."""
    return Written(_lines(trace, in_order))


def encode_row(row: Row) -> bytes:
    """A row as a line of the file."""
    values = msgspec.to_builtins(row)
    return (
        msgspec.json.encode({key: value for key, value in values.items() if _DEFAULTS.get(key, ...) != value}) + b"\n"
    )


def _lines(trace: Trace, in_order: bool) -> Iterator[bytes]:
    header = Header(
        kvtop_trace=VERSION,
        source_format=trace.format,
        source_sha256=trace.trace_sha256,
        arrivals=trace.arrivals,
        rounding=trace.rounding,
        counted_by=trace.counted_by,
        nominal_arrivals=trace.nominal_arrivals,
        in_order=in_order,
        notices=list(trace.notices),
    )
    yield msgspec.json.encode(header) + b"\n"
    yield from map(encode_row, trace.rows)


def _header(file: TextFile) -> tuple[int, Header]:
    line, header = next(json_lines(file, _decode_header, HEADER), (1, None))
    if header is None:
        raise WorkloadError("holds only blank lines, expected a trace", path=file.path)
    valid = {
        "kvtop_trace": (header.kvtop_trace, (VERSION,)),
        "arrivals": (header.arrivals, ARRIVALS),
        "rounding": (header.rounding, (None, CEIL, FLOOR)),
    }
    for key, (value, choices) in valid.items():
        if value not in choices:
            expected = " or ".join(str(choice) for choice in choices if choice is not None)
            raise WorkloadError(f"{key} is {shorten(value)}, expected {expected}", path=file.path, row=line)
    return line, header


def _check(row: Row, last_ns: int, path: str, line: int) -> None:
    def fail(message: str) -> NoReturn:
        raise WorkloadError(message, path=path, row=line)

    if row.arrival_ns < last_ns:
        fail(f"arrival_ns is {shorten(row.arrival_ns)} after {last_ns:,}, expected rows in order of arrival")
    check_length(row.prompt_tokens, "prompt_tokens", path=path, line=line)
    check_length(row.output_tokens, "output_tokens", path=path, line=line, low=0)
    for key, (low, high) in BOUNDS.items():
        value = getattr(row, key)
        if value is not None and not low <= value <= high:
            fail(f"{key} is {shorten(value)}, expected {low:,} to {high:,}")
    if row.temperature < 0:
        fail(f"temperature is {row.temperature:g}, expected 0 or more")
    if row.hash_ids and not (row.hash_block_tokens and 0 <= min(row.hash_ids) <= max(row.hash_ids) <= MAX_INT):
        fail("hash_ids need a hash_block_tokens above 0 and ids from 0 to 2^63 - 1")
    if row.shared_tokens > row.prompt_tokens:
        fail(f"shared_tokens is {row.shared_tokens:,}, expected at most prompt_tokens ({row.prompt_tokens:,})")
    if row.hash_ids and len(row.hash_ids) > (most := _most_ids(row)):
        fail(
            f"hash_ids has {len(row.hash_ids):,} ids, but prompt_tokens {row.prompt_tokens:,} has room for {most:,} "
            f"(one for each {row.hash_block_tokens:,} tokens)"
        )


def _most_ids(row: Row) -> int:
    return num_ids(row.prompt_tokens - row.shared_tokens, row.hash_block_tokens, CEIL)


KVTOP = TraceFormat(
    name="kvtop",
    summary='JSON lines below a header {"kvtop_trace": 1}: what kvtop trace convert writes',
    keys=("kvtop_trace", "source_format"),
    read=read,
    write=write,
    clock=Clock(key="arrival_ns", unit="nanoseconds"),
    is_json=True,
    shown_by=lambda first: first.lstrip().startswith('{"kvtop_trace"'),
)
