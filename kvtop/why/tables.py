"""Facts of one request from the tables of a run. Only here polars is needed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl

from kvtop.engine.errors import KvtopError, UnknownName, UsageError
from kvtop.engine.events import RequestEvent
from kvtop.results.load import Run, find_runs, open_run
from kvtop.results.recording import read_frames
from kvtop.why.facts import Facts, Row, StepTimes, owner_of, since_arrival

_TABLES = ("alloc", "share", "free")  # decisions that change the length of a table
_SHOWN_NAMES = 5


def the_run(path: Path) -> Run:
    """The run in ``path``, or the only one below it.

    Raises:
        UsageError: no run, several, or one that cannot be opened.
    """
    runs = find_runs(path)
    if len(runs) > 1:
        names = ", ".join(run.name for run in runs[:_SHOWN_NAMES])
        more = f" and {len(runs) - _SHOWN_NAMES} more" if len(runs) > _SHOWN_NAMES else ""
        raise UsageError(f"{path}: holds {len(runs)} runs, expected one; name it: {names}{more}")
    return open_run(runs[0] if runs else path)


def load_facts(run: Run, name: str) -> Facts:
    """Facts of request or branch ``name``.

    Raises:
        UnknownName: no such request in the run, with the nearest one.
        KvtopError: a table that cannot be read.
    """
    try:
        return _load(run, name)
    except (pl.exceptions.PolarsError, OSError) as error:
        raise KvtopError(f"{run.path}: a table cannot be read: {str(error).splitlines()[0]}") from None


def _load(run: Run, name: str) -> Facts:
    ids = run.requests.select("request_id").collect().to_series().to_list()
    request_id = owner_of(name, set(ids))
    if request_id is None:
        raise _unknown(run, name, ids)
    request = run.requests.filter(pl.col("request_id") == request_id).collect().row(-1, named=True)
    if request["status"] == "rejected":
        request["error"] = _error(run, request_id)
    decisions = since_arrival(_decisions(run.events, request_id), request_id)
    own = [row["step"] for row in decisions if owner_of(str(row["request_id"]), (request_id,))]
    if name not in {request_id, *(str(row["request_id"]) for row in decisions)}:
        raise _unknown(run, name, ids)
    steps = _steps(run.steps, min(own, default=0), max(own, default=0) if request["status"] != "cutoff" else None)
    return Facts(name, request, decisions, steps, run.manifest)


def _unknown(run: Run, name: str, ids: list[str]) -> UsageError:
    """Runs have thousands of requests: the nearest one and how many there are, not the list."""
    near = UnknownName("request", name, ids).nearest
    hint = f"; did you mean {near!r}?" if near else ""
    return UsageError(f"{run.path}: no request {name!r} among its {len(ids):,}{hint}")


def _decisions(events: pl.LazyFrame, request_id: str) -> list[Row]:
    """What ``Facts.decisions`` asks for, in order. Two passes: whom it waited for is known after the first."""
    who, other, kind = pl.col("request_id"), pl.col("other"), pl.col("kind")
    branch = request_id + "#"
    own = (who == request_id) | who.str.starts_with(branch)
    named = ((other == request_id) | other.str.starts_with(branch)) & kind.is_in(["preempted", "lookup", "forked"])
    first = events.filter(own | named | (kind == "skipped")).collect()
    heads = _blockers(first, request_id)
    keys = first.filter(kind == "evict")["block_key"].unique().to_list()
    asked = (kind.is_in(_TABLES) & who.is_in(heads)) | ((kind == "publish") & pl.col("block_key").is_in(keys))
    second = events.filter(asked & ~own.fill_null(False)).collect()
    return pl.concat([first, second]).sort("seq").unique("seq", maintain_order=True).to_dicts()


def _blockers(rows: pl.DataFrame, request_id: str) -> list[str]:
    """Sequences whose blocks somebody in these rows waited for, while the request was there."""
    mine = rows.filter(pl.col("request_id").str.starts_with(request_id).fill_null(False))
    if mine.is_empty():
        return []
    first, last = mine["seq"].min(), mine["seq"].max()
    skipped = (pl.col("kind") == "skipped") & pl.col("seq").is_between(first, last)
    return rows.filter(skipped)["other"].drop_nulls().unique().to_list()


def _steps(steps: pl.LazyFrame, first: int, last: int | None) -> list[StepTimes]:
    columns = ["step", "t_start_ns", "t_done_ns", "prefill_tokens"]
    head = pl.col("head_of_line") if "head_of_line" in steps.collect_schema() else pl.lit(None, pl.String)
    wanted = pl.col("step") >= first
    if last is not None:
        wanted &= pl.col("step") <= last
    rows = steps.filter(wanted).select(*columns, head.fill_null("").alias("head")).collect()
    rows = rows.unique("step", keep="last", maintain_order=True)
    return [StepTimes(step, start, done, name, prompt) for step, start, done, prompt, name in rows.iter_rows()]


def _error(run: Run, request_id: str) -> str:
    """The engine's own line about a rejected request: only the recording has it."""
    if run.frames_path is None:
        return ""
    found: dict[str, Any] = {}
    for events in read_frames(run.frames_path):
        for event in events:
            if isinstance(event, RequestEvent) and event.request_id == request_id and event.error:
                found["error"] = event.error
    return str(found.get("error", ""))
