"""A recorded run of kvtop as a workload: the directory of a run, or its requests.parquet.

Arrivals are the intended ones (``t_sched_ns``), prompts as long as recorded, outputs as long as produced; where a
request did not end well (rejected, cut off, aborted, failed) as long as asked for. Turns of a session wait for the
one before: the think time is from its recorded end to the turn's arrival, unless the run was an open loop. Shared
prefixes are those of the decision log (events.parquet), in whole blocks; without a log, or without prefix caching,
prompts share nothing, and a notice says so.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import msgspec

from kvtop.engine.errors import WorkloadError
from kvtop.workloads.formats.base import Clock, ReadOptions, Stamped, Trace, TraceFormat, check_length, finish
from kvtop.workloads.formats.hash_ids import FLOOR
from kvtop.workloads.formats.recording_ids import block_ids
from kvtop.workloads.rows import Row
from kvtop.workloads.words import counted

TABLE, MANIFEST, LOG = "requests.parquet", "run.json", "events.parquet"
NEEDED = (
    "req_index",
    "request_id",
    "t_sched_ns",
    "prompt_tokens",
    "requested_output_tokens",
    "output_tokens",
    "status",
)
TEXTS = {"tenant": "tenant", "class": "klass", "session_id": "session_id"}
COUNTS = ("turn", "priority", "n")


def read_paths(paths: list[Path], options: ReadOptions) -> Trace:
    """Read one run.

    Raises:
        WorkloadError: no table, one that is not kvtop's, or more than one path.
    """
    if len(paths) > 1:
        raise WorkloadError(f"{len(paths)} runs are given, expected one", path=paths[1])
    table = paths[0] / TABLE if paths[0].is_dir() else paths[0]
    records = _records(table)
    manifest = _manifest(table.parent / MANIFEST)
    is_open = manifest.get("replay") == "open"
    block = manifest.get("block_size_tokens")
    block = block if isinstance(block, int) and block > 0 else 0
    ids = block_ids(table.parent / LOG, block) if block else {}
    records.sort(key=lambda record: (record["t_sched_ns"], record["req_index"]))
    stamped = [
        Stamped(number + 1, record["t_sched_ns"], _row(record, table, ids, block))
        for number, record in enumerate(records)
    ]
    rows = [entry.row for entry in stamped] if is_open else _linked([entry.row for entry in stamped], records)
    stamped = [msgspec.structs.replace(entry, row=row) for entry, row in zip(stamped, rows, strict=True)]
    notices = []
    if not any(row.hash_ids for row in rows):
        notices.append("the run did not record which prefixes are shared (no prefix caching, or no log): none is")
    if num_asked := sum(record["status"] != "ok" for record in records):
        notices.append(f"{counted(num_asked, 'request')} did not end well: the output is as long as asked for")
    sha256 = hashlib.sha256(table.read_bytes()).hexdigest()
    has_ids = any(row.hash_ids for row in rows)
    return finish(
        stamped,
        RECORDING,
        path=str(paths[0]),
        sha256=sha256,
        notices=notices,
        counted_by="kvtop",
        rounding=FLOOR if has_ids else None,
    )


def is_run(path: Path) -> bool:
    """Whether a directory is that of a run."""
    return (path / TABLE).is_file()


def _records(table: Path) -> list[dict[str, Any]]:
    import polars as pl

    try:
        frame = pl.read_parquet(table)
    except FileNotFoundError:
        raise WorkloadError("no such file", path=table) from None
    except (pl.exceptions.PolarsError, OSError) as error:
        raise WorkloadError(f"is no Parquet table: {' '.join(str(error).split())[:100]}", path=table) from None
    missing = [name for name in NEEDED if name not in frame.columns]
    if missing:
        raise WorkloadError(f"column {missing[0]!r} is missing, expected the requests table of a run", path=table)
    records = frame.filter(pl.col("t_sched_ns").is_not_null()).to_dicts()
    if not records:
        raise WorkloadError("holds no request", path=table)
    return records


def _manifest(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _row(record: dict[str, Any], table: Path, ids: dict[str, tuple[int, ...]], block: int) -> Row:
    produced, asked = record["output_tokens"], record["requested_output_tokens"]
    output_tokens = produced if record["status"] == "ok" and produced else asked
    place = f"{table}: request {record['req_index']}"
    for key, value in (("prompt_tokens", record["prompt_tokens"]), ("output_tokens", output_tokens)):
        if value is None:
            raise WorkloadError(f"{key} is not recorded", path=place)
        check_length(value, key, path=place, line=None)
    row = Row(0, record["prompt_tokens"], output_tokens)
    texts = {name: record.get(column) or "" for column, name in TEXTS.items()}
    counts = {name: record[name] for name in COUNTS if record.get(name) is not None}
    own_ids = ids.get(record["request_id"], ())[: row.prompt_tokens // block] if block else ()
    return msgspec.structs.replace(row, **texts, **counts, hash_ids=own_ids, hash_block_tokens=block if own_ids else 0)


def _linked(rows: list[Row], records: list[dict[str, Any]]) -> list[Row]:
    """Turns that came after the end of the one before, or of the request that made them due, wait for it."""
    last: dict[str, tuple[int, int | None]] = {}  # by session: last turn, ns of its end
    ended: dict[str, tuple[str, int, int | None]] = {}  # by request: session, turn, ns of its end
    linked = []
    for row, record in zip(rows, records, strict=True):
        if row.session_id:
            due_ns, done_ns = record["t_sched_ns"], record.get("t_done_ns")
            turn, end_ns = last.get(row.session_id, (-1, None))
            ends = [end_ns] if end_ns is not None and row.turn > turn else []
            session, number, parent_end_ns = ended.get(record.get("parent_request_id") or "", ("", 0, None))
            after = ((session, number),) if session not in ("", row.session_id) and parent_end_ns is not None else ()
            ends += [parent_end_ns] if after and parent_end_ns is not None else []
            if ends and max(ends) <= due_ns:
                row = msgspec.structs.replace(row, think_ns=due_ns - max(ends), after=after)
            last[row.session_id] = row.turn, done_ns
            ended[record["request_id"]] = row.session_id, row.turn, done_ns
        linked.append(row)
    return linked


RECORDING = TraceFormat(
    name="recording",
    summary="the directory of a recorded run of kvtop, or its requests.parquet",
    keys=(),
    read_paths=read_paths,
    claims=is_run,
    suffix=".parquet",
    clock=Clock(key="t_sched_ns", unit="nanoseconds of the run's clock", absolute=True),
)
