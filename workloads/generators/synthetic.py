"""Generated workloads: one stream of requests, or several side by side, such as long documents among chats.

Streams are merged in order of arrival. Requests of two streams share nothing.
"""

from __future__ import annotations

from typing import Any

import msgspec

from kvtop.engine.errors import WorkloadError
from kvtop.workloads.generators.base import Generator
from kvtop.workloads.generators.options import MAX_REQUESTS, NS_PER_S, seconds, shown
from kvtop.workloads.generators.stream import Ids, Placed, stream_keys, stream_rows
from kvtop.workloads.rows import Row, RowSet

MAX_STREAMS = 64
IN_A_MIX: dict[str, Any] = {"start_s": 0.0}  # of the stream's first arrival


def generate_one(options: dict[str, Any], seed: int) -> RowSet:
    """Rows in order of arrival, the first at 0. Same options and seed, same rows, on every machine.

    Raises:
        WorkloadError: an option that is missing, of the wrong type or out of its range.
        UnknownName: a name or key that does not exist.
    """
    return _merged([stream_rows(options, seed, Ids(), "", {})])


def generate_mix(options: dict[str, Any], seed: int) -> RowSet:
    """As ``generate_one``, of several streams, each at its own time."""
    streams = options.get("streams")
    if not isinstance(streams, list) or not 1 <= len(streams) <= MAX_STREAMS:
        raise WorkloadError(f"streams is {shown(streams)}, expected 1 to {MAX_STREAMS} tables")
    ids, parts = Ids(), []
    for given, name in zip(streams, _names(streams), strict=True):
        within = f"stream {name!r}: "
        start_ns = round(seconds({**IN_A_MIX, **given}, "start_s", within) * NS_PER_S)
        rows = stream_rows(given, seed, ids, within, IN_A_MIX)
        parts.append([Placed(_moved(row, start_ns), position) for row, position in rows])
    return _merged(parts)


def _names(streams: list[Any]) -> list[str]:
    """Their names, no two of them alike: every message about a stream has its name."""
    names: list[str] = []
    for index, given in enumerate(streams):
        if not isinstance(given, dict):
            raise WorkloadError(f"streams[{index}] is {shown(given)}, expected a table")
        name = given.get("name")
        if not isinstance(name, str) or not name.strip():
            raise WorkloadError(f"streams[{index}].name is {shown(name)}, expected a name")
        if name in names:
            raise WorkloadError(f"streams[{index}].name is {name!r}, which is the name of another stream")
        names.append(name)
    return names


def _merged(parts: list[list[Placed]]) -> RowSet:
    placed = [row for part in parts for row in part]
    if len(placed) > MAX_REQUESTS:
        raise WorkloadError(f"the streams have {len(placed):,} requests, expected at most {MAX_REQUESTS:,}")
    placed.sort(key=lambda entry: (entry.row.arrival_ns, entry.position))  # stable: then in the order of the streams
    start_ns = placed[0].row.arrival_ns
    rows = [_moved(row, -start_ns) for row, _ in placed]
    return RowSet(rows, _notices(rows), nominal_arrivals=any(row.think_ns is not None for row in rows))


def _moved(row: Row, by_ns: int) -> Row:
    return msgspec.structs.replace(row, arrival_ns=row.arrival_ns + by_ns) if by_ns else row


def _notices(rows: list[Row]) -> list[str]:
    equal = sorted({row.n for row in rows if row.n > 1 and row.num_beams == 1 and row.temperature == 0})
    return [f"n is {n} at temperature 0: all samples of a request are equal" for n in equal]


SYNTHETIC = Generator(name="synthetic", summary="one stream of requests", keys=stream_keys, generate=generate_one)
MIX = Generator(
    name="mix",
    summary="several streams side by side: [[streams]], each with a name",
    keys=lambda options: ("streams",),
    generate=generate_mix,
)
