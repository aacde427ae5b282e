"""Changes a trace as a whole: a slice of its time, several copies of it, arrivals where none are recorded."""

from __future__ import annotations

import math
from random import Random

import msgspec

from kvtop.engine.errors import WorkloadError
from kvtop.workloads.rows import Row
from kvtop.workloads.words import counted

NS_PER_S = 1_000_000_000
MAX_ROWS = 10_000_000
replace = msgspec.structs.replace


def between(rows: list[Row], start_s: float = 0.0, end_s: float | None = None) -> tuple[list[Row], list[str]]:
    """Rows that arrive from ``start_s`` up to, not including, ``end_s`` (s from the first arrival); the first is at 0.

    Turns whose predecessors are cut away arrive at their recorded time.

    Raises:
        WorkloadError: times that are no slice, or nothing arrives in it.
    """
    if start_s == 0 and end_s is None:
        return rows, []
    end = math.inf if end_s is None else end_s
    if not 0 <= start_s < end:  # NaN compares false
        raise WorkloadError(f"start is {start_s:g} s and end {end:g} s, expected 0 <= start < end")
    low, high = round(start_s * NS_PER_S), math.inf if end == math.inf else round(end * NS_PER_S)
    kept = [row for row in rows if low <= row.arrival_ns < high]
    when = f"from {start_s:g} s {'on' if end_s is None else f'to {end:g} s'}"
    if not kept:
        last_s = rows[-1].arrival_ns / NS_PER_S
        raise WorkloadError(f"nothing arrives {when}: the last arrival is at {last_s:,.3f} s")
    first_ns = kept[0].arrival_ns
    text = f"{len(kept):,} of {counted(len(rows), 'request')}: those that arrive {when}"
    return [replace(row, arrival_ns=row.arrival_ns - first_ns) for row in kept], [text]


def tiled(rows: list[Row], copies: int) -> tuple[list[Row], list[str]]:
    """The rows ``copies`` times, one after the other, with ids, conversations and sessions of their own each time.

    A copy starts a mean gap after the last arrival of the one before, so that the rate stays the same.

    Raises:
        WorkloadError: fewer than one copy, or more rows than can be held.
    """
    if copies < 1 or copies * len(rows) > MAX_ROWS:
        raise WorkloadError(f"tile is {copies:,}, expected 1 to {MAX_ROWS // len(rows):,} copies of {len(rows):,} rows")
    if copies == 1:
        return rows, []
    span_ns = rows[-1].arrival_ns
    period_ns = span_ns + round(span_ns / max(1, len(rows) - 1))
    num_ids = 1 + max((max(row.hash_ids) for row in rows if row.hash_ids), default=-1)
    num_talks = 1 + max((row.conversation for row in rows if row.conversation is not None), default=-1)
    num_heads = 1 + max(row.shared_id for row in rows)
    out = list(rows)
    for copy in range(1, copies):
        out += [
            _copied(row, copy, copy * period_ns, copy * num_ids, copy * num_talks, copy * num_heads) for row in rows
        ]
    # Later turns of a copy may be due after the next copy has begun: rows stay in order of arrival.
    out.sort(key=lambda row: row.arrival_ns)
    return out, [
        f"tiled: {copies} copies, one every {period_ns / NS_PER_S:,.3f} s, that share no prefix with each other"
    ]


def with_arrivals(rows: list[Row], rate: float, seed: int) -> tuple[list[Row], list[str]]:
    """Let sessions, or requests without one, start as a Poisson process of ``rate`` per second (inf: all at once).

    The first starts at 0. Within a session, times keep their distance from its first request.

    Raises:
        WorkloadError: not a rate.
    """
    if not rate > 0:
        raise WorkloadError(f"arrival_rate is {rate!r}, expected a number of requests per second above 0, or inf")
    random = Random(f"{seed}:arrivals")
    units = _units(rows)
    starts: dict[str | int, int] = {}
    now_ns = 0
    shifted = []
    for row, unit in zip(rows, units, strict=True):
        if unit not in starts:
            starts[unit] = now_ns - row.arrival_ns
            if math.isfinite(rate):
                now_ns += round(-math.log(1.0 - random.random()) / rate * NS_PER_S)
        shifted.append(replace(row, arrival_ns=row.arrival_ns + starts[unit]))
    shifted.sort(key=lambda row: row.arrival_ns)
    how = f"Poisson, {rate:g} per second, seed {seed}" if math.isfinite(rate) else "all at once"
    what = "session" if any(isinstance(unit, str) for unit in units) else "request"
    return shifted, [f"arrivals are not from the trace: {counted(len(starts), what)}, {how}"]


def num_sessions(rows: list[Row]) -> int:
    """Sessions, those of sub-agents counted with the one that started them; a request without one counts alone."""
    return len(set(_units(rows)))


def _units(rows: list[Row]) -> list[str | int]:
    """For each row what it belongs to: the session it began in, or its own position."""
    root: dict[str, str] = {}
    units: list[str | int] = []
    for index, row in enumerate(rows):
        if not row.session_id:
            units.append(index)
            continue
        if row.session_id not in root:
            begun_by = row.after[0][0] if row.after else row.session_id
            root[row.session_id] = root.get(begun_by, begun_by)
        units.append(root[row.session_id])
    return units


def _copied(row: Row, copy: int, shift_ns: int, id_shift: int, talk_shift: int, head_shift: int) -> Row:
    return replace(
        row,
        arrival_ns=row.arrival_ns + shift_ns,
        hash_ids=tuple(i + id_shift for i in row.hash_ids),
        conversation=None if row.conversation is None else row.conversation + talk_shift,
        shared_id=row.shared_id + head_shift if row.shared_tokens else row.shared_id,
        session_id=_session(row.session_id, copy),
        after=tuple((_session(session, copy), turn) for session, turn in row.after),
        parent_request_id="",  # names a request of the first copy
    )


def _session(session_id: str, copy: int) -> str:
    return f"{session_id}~{copy}" if session_id else ""
