"""Mooncake JSONL: arrivals in ms, lengths, and one prefix-hash id for each 512 prompt tokens.

``hash_ids`` has one id for every block of 512 prompt tokens *including* the last, partial one. An id stands for the
block and everything before it, so one id always has the same predecessor.
Source: Qin et al., "Mooncake: Trading More Storage for Less Computation", FAST 2025.
"""

from __future__ import annotations

import msgspec

from kvtop.engine.errors import WorkloadError
from kvtop.workloads.files import TextFile
from kvtop.workloads.formats.base import (
    MAX_TIME_NS,
    NONE,
    NS_PER_MS,
    Clock,
    ReadOptions,
    Stamped,
    Trace,
    TraceFormat,
    Written,
    check_length,
    finish,
)
from kvtop.workloads.formats.hash_ids import CEIL, SharedIds, check_ids, prefix_notices
from kvtop.workloads.formats.json_rows import HASH_IDS, TOKENS, Field, check_spelling, json_lines
from kvtop.workloads.formats.portable import block_of, ceil_ids, lost
from kvtop.workloads.rows import Row
from kvtop.workloads.words import shorten

HASH_BLOCK_TOKENS = 512
FIELDS = {
    "timestamp": Field((int,), "an integer (milliseconds)", optional=True),
    "input_length": TOKENS,
    "output_length": TOKENS,
    "hash_ids": HASH_IDS,
}


class _Line(msgspec.Struct, gc=False):
    input_length: int
    output_length: int
    hash_ids: tuple[int, ...]
    timestamp: int | None = None


_decode = msgspec.json.Decoder(_Line).decode


def read(file: TextFile, options: ReadOptions) -> Trace:
    """Read every row; a malformed one raises WorkloadError with its number and reason."""
    block = HASH_BLOCK_TOKENS if options.hash_block_tokens is None else options.hash_block_tokens
    stamped: list[Stamped] = []
    ids = SharedIds()
    num_dropped = 0
    is_missing = False
    for line, found in json_lines(file, _decode, FIELDS):
        _check(found, block, file, line)
        if found.timestamp is None and not is_missing:
            is_missing = True
            check_spelling("timestamp", file, line, FIELDS)
        if found.output_length == 0:
            num_dropped += 1
            continue
        row = Row(0, found.input_length, found.output_length, ids.of(found.hash_ids), block)
        time_ns = None if found.timestamp is None else found.timestamp * NS_PER_MS
        stamped.append(Stamped(line, time_ns, row))
    return finish(
        stamped,
        MOONCAKE,
        path=file.path,
        sha256=file.sha256,
        num_dropped=num_dropped,
        notices=prefix_notices(entry.row for entry in stamped),
        rounding=CEIL,
    )


def write(trace: Trace) -> Written:
    """Arrivals in whole ms, lengths and ids; a block that is not of 512 tokens has to be named when it is read."""
    rows = trace.rows
    block = block_of(rows, HASH_BLOCK_TOKENS)
    ids = ceil_ids(rows, block)
    notices = lost(rows)
    if block != HASH_BLOCK_TOKENS:
        notices.append(f"a hash id stands for {block} tokens: read the file with hash_block_tokens {block}")
    if any(row.arrival_ns % NS_PER_MS for row in rows) and trace.arrivals != NONE:
        notices.append("arrivals are rounded to whole milliseconds")
    encode = msgspec.json.Encoder().encode
    timed = trace.arrivals != NONE
    lines = (
        encode(
            ({"timestamp": round(row.arrival_ns / NS_PER_MS)} if timed else {})
            | {"input_length": row.prompt_tokens, "output_length": row.output_tokens, "hash_ids": row_ids}
        )
        + b"\n"
        for row, row_ids in zip(rows, ids, strict=True)
    )
    return Written(lines, notices)


def _check(found: _Line, block: int, file: TextFile, line: int) -> None:
    if found.timestamp is not None and not 0 <= found.timestamp <= MAX_TIME_NS // NS_PER_MS:
        raise WorkloadError(f"timestamp is {shorten(found.timestamp)}, expected ms from 0 up", path=file.path, row=line)
    check_length(found.input_length, "input_length", path=file.path, line=line)
    check_length(found.output_length, "output_length", path=file.path, line=line, low=0)
    check_ids(found.hash_ids, found.input_length, block, CEIL, "input_length", file.path, line)


MOONCAKE = TraceFormat(
    name="mooncake",
    summary='JSON lines like {"timestamp": 0, "input_length": 600, "output_length": 20, "hash_ids": [0, 1]}',
    keys=tuple(FIELDS),
    read=read,
    write=write,
    clock=Clock(key="timestamp", unit="milliseconds", refuse=True),
    is_json=True,
    takes_hash_block=True,
)
