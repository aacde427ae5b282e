"""Several streams of requests in one workload, each with its own pace and lengths: long documents among chats.

A stream sends a request every ``every_s`` seconds, or at a Poisson ``rate``; the schedule is absolute. Requests of one
stream share its system prompt, those of two streams share nothing. Every stream draws from random numbers of its own,
under its name: another stream beside it, or another length range, leaves its arrivals alone.
"""

from __future__ import annotations

import math
from random import Random
from typing import Any

import msgspec

from kvtop.engine.errors import UnknownName, WorkloadError
from kvtop.workloads.generators.base import Generator
from kvtop.workloads.generators.options import MAX_REQUESTS, NS_PER_S, integer, lengths, number, shown, uniform
from kvtop.workloads.rows import MAX_LENGTH_TOKENS, Row, RowSet

MAX_STREAMS = 64
MAX_SECONDS = 1e7

OPTIONS: dict[str, Any] = {"streams": None}  # a table for each

STREAM: dict[str, Any] = {
    "name": None,  # the requests' class: figures of each are told apart by it
    "num_requests": 1,
    "start_s": 0.0,  # of its first request
    "every_s": None,  # seconds between two requests; 0: all at once
    "rate": None,  # instead of every_s: requests per second, exponential gaps
    "system_prompt_tokens": 0,  # shared by every request of the stream
    "user_prompt_tokens": [32, 256],  # uniform from low to high, or one number
    "output_tokens": [16, 64],
}


def generate(options: dict[str, Any], seed: int) -> RowSet:
    """Rows of all streams in order of arrival, the first at 0. Same options and seed, same rows, on every machine.

    Raises:
        WorkloadError: an option that is missing, of the wrong type or out of its range.
        UnknownName: a key that no stream has.
    """
    streams = options["streams"]
    if not isinstance(streams, list) or not 1 <= len(streams) <= MAX_STREAMS:
        raise WorkloadError(f"streams is {shown(streams)}, expected 1 to {MAX_STREAMS} tables")
    rows: list[Row] = []
    names: list[str] = []
    for index, given in enumerate(streams):
        stream = _checked(given, f"streams[{index}]", names)
        names.append(stream["name"])
        rows += _rows(stream, index, seed, f"stream {stream['name']!r}: ")
    rows.sort(key=lambda row: row.arrival_ns)  # stable: at the same time in the order of the streams
    if len(rows) > MAX_REQUESTS:
        raise WorkloadError(f"the streams have {len(rows):,} requests, expected at most {MAX_REQUESTS:,}")
    return RowSet([_moved(row, rows[0].arrival_ns) for row in rows] if rows[0].arrival_ns else rows)


def _checked(given: object, place: str, taken: list[str]) -> dict[str, Any]:
    """One stream's table with its defaults."""
    if not isinstance(given, dict):
        raise WorkloadError(f"{place} is {shown(given)}, expected a table")
    for key in given:
        if key not in STREAM:
            raise UnknownName(f"key in {place}", key, STREAM)
    stream = {**STREAM, **given}
    name = stream["name"]
    if not isinstance(name, str) or not name.strip():
        raise WorkloadError(f"{place}.name is {shown(name)}, expected a name")
    if name in taken:
        raise WorkloadError(f"{place}.name is {name!r}, which is the name of another stream")
    return stream


def _rows(stream: dict[str, Any], index: int, seed: int, within: str) -> list[Row]:
    num_requests = integer(stream, "num_requests", 1, MAX_REQUESTS, within)
    system = integer(stream, "system_prompt_tokens", 0, MAX_LENGTH_TOKENS // 2, within)
    user, output = lengths(stream, "user_prompt_tokens", within), lengths(stream, "output_tokens", within)
    arrivals, prompts, outputs = (
        Random(f"{seed}:{stream['name']}:{part}") for part in ("arrivals", "prompts", "outputs")
    )
    return [
        Row(
            arrival_ns,
            system + uniform(prompts, user),
            uniform(outputs, output),
            hash_ids=(index,) if system else (),
            hash_block_tokens=system,
            klass=stream["name"],
        )
        for arrival_ns in _arrivals(stream, num_requests, arrivals, within)
    ]


def _arrivals(stream: dict[str, Any], num_requests: int, random: Random, within: str) -> list[int]:
    """Scheduled times in ns."""
    start_s = number(stream, "start_s", 0.0, MAX_SECONDS, within)
    if num_requests > 1 and (stream["every_s"] is None) == (stream["rate"] is None):
        found = "neither is" if stream["rate"] is None else "both are"
        raise WorkloadError(f"{within}{found} given, expected every_s or rate")
    if stream["rate"] is None:
        every_s = 0.0 if stream["every_s"] is None else number(stream, "every_s", 0.0, MAX_SECONDS, within)
        return [round((start_s + k * every_s) * NS_PER_S) for k in range(num_requests)]
    rate = number(stream, "rate", 1e-6, 1e6, within)
    times, now_ns = [], round(start_s * NS_PER_S)
    for _ in range(num_requests):
        times.append(now_ns)
        now_ns += round(-math.log(1.0 - random.random()) / rate * NS_PER_S)
    return times


def _moved(row: Row, start_ns: int) -> Row:
    return msgspec.structs.replace(row, arrival_ns=row.arrival_ns - start_ns)


MIX = Generator(name="mix", options=OPTIONS, generate=generate)
