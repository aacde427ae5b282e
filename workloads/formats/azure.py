"""Azure LLM inference traces: CSV of arrival time and two token counts. No prefixes are known.

Times are text with up to nine fractional digits (the published files have seven, ticks of 100 ns), naive local time in
the 2023 files and with an offset in others. Source: Patel et al., "Splitwise", ISCA 2024.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from datetime import date

from kvtop.engine.errors import WorkloadError
from kvtop.workloads.files import TextFile, rows_of
from kvtop.workloads.formats.base import (
    NS_PER_S,
    ReadOptions,
    Stamped,
    TraceFormat,
    check_length,
    finish,
    missing_key,
)
from kvtop.workloads.rows import Row, RowSet
from kvtop.workloads.words import shorten

_TIME = re.compile(r"(\d{4})-(\d\d)-(\d\d)[ T](\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:?\d\d)?", flags=re.ASCII)
_COUNT = re.compile(r"-?\d{1,18}", flags=re.ASCII)


def read(file: TextFile, options: ReadOptions) -> RowSet:
    """Read every row; a malformed one raises WorkloadError with its number and reason."""
    cells_of_row = _cells(file)
    header_line, header = next(cells_of_row, (1, []))
    columns = _columns(header, file.path, header_line)
    stamped: list[Stamped] = []
    num_dropped = 0
    offset_seen: bool | None = None
    for line, cells in cells_of_row:
        if len(cells) != len(header):
            raise WorkloadError(f"found {len(cells)} columns, expected {len(header)}", path=file.path, row=line)
        time_text, prompt, output = (cells[i] for i in columns)
        time_ns, has_offset = _time_ns(time_text, file.path, line)
        if offset_seen not in (None, has_offset):
            raise WorkloadError("TIMESTAMP mixes times with and without an offset", path=file.path, row=line)
        offset_seen = has_offset
        prompt_tokens = _count(prompt, "ContextTokens", 1, file.path, line)
        output_tokens = _count(output, "GeneratedTokens", 0, file.path, line)
        if output_tokens == 0:
            num_dropped += 1
            continue
        stamped.append(Stamped(line, time_ns, Row(0, prompt_tokens, output_tokens)))
    return finish(stamped, file=file, format_name=AZURE.name, num_dropped=num_dropped, notices=[])


def _cells(file: TextFile) -> Iterator[tuple[int, list[str]]]:
    """Rows that are not blank, with their line numbers."""
    reader = csv.reader(rows_of(file.text), strict=True)
    try:
        for cells in reader:
            if cells and not (len(cells) == 1 and not cells[0].strip()):
                yield reader.line_num, cells
    except csv.Error as error:
        raise WorkloadError(f"bad CSV: {error}", path=file.path, row=reader.line_num) from None


def _columns(header: list[str], path: str, line: int) -> list[int]:
    names = [name.strip() for name in header]
    for key in AZURE.keys:
        if key not in names:
            raise missing_key(key, names, valid=AZURE.keys, what="column", path=path, line=line)
        if names.count(key) > 1:
            raise WorkloadError(f"column {key!r} appears {names.count(key)} times", path=path, row=line)
    return [names.index(key) for key in AZURE.keys]


def _time_ns(text: str, path: str, line: int) -> tuple[int, bool]:
    """Nanoseconds since year 1, exactly, and whether the text names its offset from UTC."""
    match = _TIME.fullmatch(text.strip())
    if match is None:
        expected = "a time like 2023-11-16 18:17:03.9799600"
        raise WorkloadError(f"TIMESTAMP is {shorten(text)}, expected {expected}", path=path, row=line)
    year, month, day, hour, minute, second = (int(part) for part in match.groups()[:6])
    fraction, offset = match.group(7) or "", match.group(8)
    if hour > 23 or minute > 59 or second > 59:
        raise WorkloadError(f"TIMESTAMP is {shorten(text)}, which is no time of day", path=path, row=line)
    try:
        days = date(year, month, day).toordinal()
    except ValueError:
        raise WorkloadError(f"TIMESTAMP is {shorten(text)}, which is no date", path=path, row=line) from None
    seconds = days * 86_400 + hour * 3600 + minute * 60 + second - _offset_s(offset)
    return seconds * NS_PER_S + int(fraction.ljust(9, "0")), offset is not None


def _offset_s(offset: str | None) -> int:
    if offset is None or offset == "Z":
        return 0
    sign = -1 if offset[0] == "-" else 1
    return sign * (int(offset[1:3]) * 3600 + int(offset[-2:]) * 60)


def _count(text: str, key: str, low: int, path: str, line: int) -> int:
    digits = text.strip()
    if not _COUNT.fullmatch(digits):
        raise WorkloadError(f"{key} is {shorten(text)}, expected an integer", path=path, row=line)
    value = int(digits)
    check_length(value, key, path=path, line=line, low=low)
    return value


AZURE = TraceFormat(
    name="azure",
    summary="CSV with the columns TIMESTAMP,ContextTokens,GeneratedTokens",
    keys=("TIMESTAMP", "ContextTokens", "GeneratedTokens"),
    read=read,
)
