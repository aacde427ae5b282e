"""Mooncake JSONL: arrivals in ms, lengths, and one prefix-hash id for each 512 prompt tokens.

``hash_ids`` has one id for every block of 512 prompt tokens *including* the last, partial one. An id stands for the
block and everything before it, so one id always has the same predecessor.
Source: Qin et al., "Mooncake: Trading More Storage for Less Computation", FAST 2025.
"""

from __future__ import annotations

import json
from typing import Any, NoReturn

import msgspec

from kvtop.engine.errors import WorkloadError
from kvtop.workloads.files import TextFile, rows_of
from kvtop.workloads.formats.base import (
    NS_PER_MS,
    ReadOptions,
    Stamped,
    TraceFormat,
    check_length,
    finish,
    missing_key,
)
from kvtop.workloads.rows import Row, RowSet
from kvtop.workloads.words import counted, shorten

HASH_BLOCK_TOKENS = 512
MAX_SPAN_MS = 31 * 24 * 3600 * 1000
"""A longer span is taken for a wrong unit: an hour of microseconds read as milliseconds spans 41 days."""
MAX_INT = 2**63 - 1


class _Line(msgspec.Struct, gc=False):
    timestamp: int
    input_length: int
    output_length: int
    hash_ids: tuple[int, ...]


_decode = msgspec.json.Decoder(_Line).decode


def read(file: TextFile, options: ReadOptions) -> RowSet:
    """Read every row; a malformed one raises WorkloadError with its number and reason."""
    block = HASH_BLOCK_TOKENS if options.hash_block_tokens is None else options.hash_block_tokens
    stamped: list[Stamped] = []
    num_dropped = 0
    for line, text in enumerate(rows_of(file.text), 1):
        if not text or text.isspace():
            continue
        found = _parse(text, file.path, line)
        _check(found, block, file.path, line)
        if found.output_length == 0:
            num_dropped += 1
            continue
        row = Row(0, found.input_length, found.output_length, found.hash_ids, block)
        stamped.append(Stamped(line, found.timestamp * NS_PER_MS, row))
    notices = _check_unit(stamped, file.path) + _check_prefixes(stamped)
    return finish(stamped, file=file, format_name=MOONCAKE.name, num_dropped=num_dropped, notices=notices)


def _parse(text: str, path: str, line: int) -> _Line:
    try:
        return _decode(text)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        _explain(text, path, line, error)


def _check(found: _Line, block: int, path: str, line: int) -> None:
    if not 0 <= found.timestamp <= MAX_INT // NS_PER_MS:
        raise WorkloadError(f"timestamp is {shorten(found.timestamp)}, expected ms from 0 up", path=path, row=line)
    check_length(found.input_length, "input_length", path=path, line=line)
    check_length(found.output_length, "output_length", path=path, line=line, low=0)
    need = -(-found.input_length // block)
    num_ids = len(found.hash_ids)
    if num_ids != need:
        raise WorkloadError(
            f"hash_ids has {num_ids:,} ids, but input_length {found.input_length:,} needs {need:,} "
            f"(one for each {block} tokens, the last partial block included)",
            path=path,
            row=line,
        )
    if min(found.hash_ids) < 0 or max(found.hash_ids) > MAX_INT:
        bad = next(i for i in found.hash_ids if not 0 <= i <= MAX_INT)
        raise WorkloadError(f"hash_ids holds {shorten(bad)}, expected 0 to 2^63 - 1", path=path, row=line)


def _check_unit(stamped: list[Stamped], path: str) -> list[str]:
    """Refuse a span that only a wrong unit explains; a strange rate is a notice."""
    if len(stamped) < 2:
        return []
    first, last = min(stamped, key=lambda s: s.time_ns), max(stamped, key=lambda s: s.time_ns)
    span_ms = (last.time_ns - first.time_ns) // NS_PER_MS
    if span_ms > MAX_SPAN_MS:
        raise WorkloadError(
            f"timestamps span {span_ms / 86_400_000:,.1f} days over {len(stamped):,} rows if they are milliseconds, "
            f"expected milliseconds and at most {MAX_SPAN_MS // 86_400_000} days",
            path=path,
            row=last.line,
        )
    if span_ms and len(stamped) >= 100:
        rate = (len(stamped) - 1) / span_ms * 1000
        if rate > 1000 or rate < 1 / 60:
            shown = f"{rate:,.0f} requests/s" if rate > 1 else f"one request every {1 / rate:,.0f} s"
            return [f"timestamps read as milliseconds give {shown}: check their unit"]
    return []


def _check_prefixes(stamped: list[Stamped]) -> list[str]:
    """Ids of prefix hashes have one predecessor each; others share tokens, but not the whole prefix."""
    before: dict[int, int] = {}
    broken: set[int] = set()
    for entry in stamped:
        previous = -1
        for hash_id in entry.row.hash_ids:
            if before.setdefault(hash_id, previous) != previous:
                broken.add(hash_id)
            previous = hash_id
    if not broken:
        return []
    return [f"{counted(len(broken), 'hash id')} with more than one predecessor: they are not hashes of whole prefixes"]


def _explain(text: str, path: str, line: int, error: Exception) -> NoReturn:
    """Say why ``text`` is not a row. Slow and exact; only ever runs for the first bad row."""

    def fail(message: str) -> NoReturn:
        raise WorkloadError(message, path=path, row=line) from None

    def not_json(name: str) -> NoReturn:
        fail(f"{name} is not JSON, expected a finite number")

    try:
        value: Any = json.loads(text, parse_constant=not_json)
    except json.JSONDecodeError as bad:
        fail(f"bad JSON at column {bad.colno}: {bad.msg[0].lower() + bad.msg[1:]} (found {shorten(text.strip())})")
    except (ValueError, RecursionError):
        fail(f"bad JSON: {str(error)[:100]}")
    if not isinstance(value, dict):
        fail(f"found {_shown(value)}, expected one JSON object a line")
    for key in MOONCAKE.keys:
        if key not in value:
            raise missing_key(key, value, valid=MOONCAKE.keys, what="key", path=path, line=line) from None
    for key in MOONCAKE.keys[:3]:
        if type(value[key]) is not int:
            unit = "milliseconds" if key == "timestamp" else "tokens"
            fail(f"{key} is {_shown(value[key])}, expected an integer ({unit})")
    if not isinstance(value["hash_ids"], list):
        fail(f"hash_ids is {_shown(value['hash_ids'])}, expected a list of integers")
    for hash_id in value["hash_ids"]:
        if type(hash_id) is not int:
            fail(f"hash_ids holds {_shown(hash_id)}, expected integers")
    fail(f"cannot be read: {error}")


def _shown(value: object) -> str:
    """The value as JSON, as it stands in the file, cut short."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "..."


MOONCAKE = TraceFormat(
    name="mooncake",
    summary='JSON lines like {"timestamp": 0, "input_length": 600, "output_length": 20, "hash_ids": [0, 1]}',
    keys=("timestamp", "input_length", "output_length", "hash_ids"),
    read=read,
    is_json=True,
    takes_hash_block=True,
)
