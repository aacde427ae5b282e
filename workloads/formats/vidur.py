"""Vidur CSV: arrival in seconds and two token counts; some of its files hold lengths only. No prefixes are known.

Columns are ``arrived_at`` (s, may be absent), ``num_prefill_tokens`` and ``num_decode_tokens``; others are ignored.
Source: Agrawal et al., "Vidur: A Large-Scale Simulation Framework for LLM Inference", MLSys 2024.
"""

from __future__ import annotations

from decimal import Decimal

from kvtop.workloads.files import TextFile
from kvtop.workloads.formats.base import (
    NONE,
    NS_PER_S,
    Clock,
    ReadOptions,
    Stamped,
    Trace,
    TraceFormat,
    Written,
    finish,
    missing_key,
    nearest_key,
)
from kvtop.workloads.formats.csv_rows import read_table
from kvtop.workloads.formats.portable import lost
from kvtop.workloads.rows import Row


def read(file: TextFile, options: ReadOptions) -> Trace:
    """Read every row; a malformed one raises WorkloadError with its number and reason."""
    stamped: list[Stamped] = []
    num_dropped = 0
    table = read_table(file, VIDUR.keys[1:], wanted=VIDUR.keys[:1])
    if "arrived_at" not in table.columns and nearest_key("arrived_at", table.names, VIDUR.keys):
        raise missing_key("arrived_at", table.names, valid=VIDUR.keys, what="column", path=file.path, line=1)
    for line, cells in table:
        time_ns = cells["arrived_at"].seconds_ns() if "arrived_at" in cells else None
        prompt_tokens = cells["num_prefill_tokens"].count()
        output_tokens = cells["num_decode_tokens"].count(low=0)
        if output_tokens == 0:
            num_dropped += 1
            continue
        stamped.append(Stamped(line, time_ns, Row(0, prompt_tokens, output_tokens)))
    return finish(stamped, VIDUR, path=file.path, sha256=file.sha256, num_dropped=num_dropped)


def write(trace: Trace) -> Written:
    """Arrivals in seconds, to the ns, and lengths."""
    timed = trace.arrivals != NONE
    header = ",".join(VIDUR.keys if timed else VIDUR.keys[1:])
    notices = lost(trace.rows)
    if any(row.hash_ids or row.shared_tokens or row.conversation is not None for row in trace.rows):
        notices.append("shared prefixes are not written")
    lines = (
        (f"{Decimal(row.arrival_ns) / NS_PER_S:f}," if timed else "") + f"{row.prompt_tokens},{row.output_tokens}\n"
        for row in trace.rows
    )
    return Written((line.encode() for line in (f"{header}\n", *lines)), notices)


VIDUR = TraceFormat(
    name="vidur",
    summary="CSV with the columns arrived_at,num_prefill_tokens,num_decode_tokens",
    keys=("arrived_at", "num_prefill_tokens", "num_decode_tokens"),
    read=read,
    write=write,
    clock=Clock(key="arrived_at", unit="seconds"),
)
