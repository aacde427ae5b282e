"""Azure LLM inference traces: CSV of arrival time and two token counts. No prefixes are known.

Times are text with up to nine fractional digits (the published files have seven, ticks of 100 ns), naive local time in
the 2023 files and with an offset in those of 2024. Source: Patel et al., "Splitwise", ISCA 2024.
"""

from __future__ import annotations

import re
from datetime import date

from kvtop.engine.errors import WorkloadError
from kvtop.workloads.files import TextFile
from kvtop.workloads.formats.base import NS_PER_S, Clock, ReadOptions, Stamped, Trace, TraceFormat, finish
from kvtop.workloads.formats.csv_rows import Cell, read_table
from kvtop.workloads.rows import Row
from kvtop.workloads.words import shorten

_TIME = re.compile(r"(\d{4})-(\d\d)-(\d\d)[ T](\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:?\d\d)?", flags=re.ASCII)


def read(file: TextFile, options: ReadOptions) -> Trace:
    """Read every row; a malformed one raises WorkloadError with its number and reason."""
    stamped: list[Stamped] = []
    num_dropped = 0
    offset_seen: bool | None = None
    for line, cells in read_table(file, AZURE.keys):
        time_ns = None
        if (time := cells["TIMESTAMP"]).text.strip():
            time_ns, has_offset = _time_ns(time)
            if offset_seen not in (None, has_offset):
                raise WorkloadError("TIMESTAMP mixes times with and without an offset", path=file.path, row=line)
            offset_seen = has_offset
        prompt_tokens = cells["ContextTokens"].count()
        output_tokens = cells["GeneratedTokens"].count(low=0)
        if output_tokens == 0:
            num_dropped += 1
            continue
        stamped.append(Stamped(line, time_ns, Row(0, prompt_tokens, output_tokens)))
    return finish(stamped, AZURE, path=file.path, sha256=file.sha256, num_dropped=num_dropped)


def _time_ns(cell: Cell) -> tuple[int, bool]:
    """Nanoseconds since year 1, exactly, and whether the text names its offset from UTC."""
    match = _TIME.fullmatch(cell.text.strip())
    if match is None:
        raise cell.fail("a time like 2023-11-16 18:17:03.9799600")
    year, month, day, hour, minute, second = (int(part) for part in match.groups()[:6])
    fraction, offset = match.group(7) or "", match.group(8)
    if hour > 23 or minute > 59 or second > 59:
        raise WorkloadError(
            f"TIMESTAMP is {shorten(cell.text)}, which is no time of day", path=cell.path, row=cell.line
        )
    try:
        days = date(year, month, day).toordinal()
    except ValueError:
        raise WorkloadError(
            f"TIMESTAMP is {shorten(cell.text)}, which is no date", path=cell.path, row=cell.line
        ) from None
    seconds = days * 86_400 + hour * 3600 + minute * 60 + second - _offset_s(offset)
    return seconds * NS_PER_S + int(fraction.ljust(9, "0")), offset is not None


def _offset_s(offset: str | None) -> int:
    if offset is None or offset == "Z":
        return 0
    sign = -1 if offset[0] == "-" else 1
    return sign * (int(offset[1:3]) * 3600 + int(offset[-2:]) * 60)


AZURE = TraceFormat(
    name="azure",
    summary="CSV with the columns TIMESTAMP,ContextTokens,GeneratedTokens",
    keys=("TIMESTAMP", "ContextTokens", "GeneratedTokens"),
    read=read,
    clock=Clock(key="TIMESTAMP", unit="date and time", absolute=True),
)
