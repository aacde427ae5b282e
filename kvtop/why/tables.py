"""Facts of one request from the tables of a run. Only here polars is needed."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from kvtop.engine.errors import KvtopError, UnknownName, UsageError
from kvtop.engine.events import RequestEvent
from kvtop.results.load import Run, find_runs, open_run
from kvtop.results.recording import read_frames
from kvtop.why.facts import Facts, StepTimes, owner_of, since_arrival

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
    first, own = _own_decisions(run.events, request_id)
    if request["status"] == "rejected" and "RequestTooLong" not in own["reason"]:  # which has its numbers in the log
        request["error"] = _error(run, request_id)
    if name != request_id and own.filter(pl.col("request_id") == name).is_empty():
        raise _unknown(run, name, ids)
    last_step = None if request["status"] == "cutoff" or own.is_empty() else int(own["step"].item(-1))
    steps = _steps(run.steps, int(own["step"].item(0)) if len(own) else 0, last_step)
    others = _decisions_of_others(run.events, own, {step.head for step in steps if step.head})
    decisions = pl.concat([first, others]).unique("seq").sort("seq").to_dicts()
    return Facts(name, request, since_arrival(decisions, request_id), steps, run.manifest)


def _unknown(run: Run, name: str, ids: list[str]) -> UsageError:
    """Runs have thousands of requests: the nearest one and how many there are, not the list."""
    near = UnknownName("request", name, ids).nearest
    hint = f"; did you mean {near!r}?" if near else ""
    return UsageError(f"{run.path}: no request {name!r} among its {len(ids):,}{hint}")


def _own_decisions(events: pl.LazyFrame, request_id: str) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Decisions that name the request, and of those its own since it arrived last, both in order."""
    who, other, kind = pl.col("request_id"), pl.col("other"), pl.col("kind")
    branch = request_id + "#"
    mine = ((who == request_id) | who.str.starts_with(branch)).fill_null(False)
    named = ((other == request_id) | other.str.starts_with(branch)) & kind.is_in(
        ["preempted", "lookup", "forked", "restarted"]
    )
    rows = events.filter(mine | named.fill_null(False)).collect().sort("seq")
    own = rows.filter(mine)
    arrivals = own.filter((who == request_id) & kind.is_in(["arrived", "rejected"]))
    return rows, own.filter(pl.col("seq") >= arrivals["seq"].item(-1)) if len(arrivals) else own


def _decisions_of_others(events: pl.LazyFrame, own: pl.DataFrame, heads: set[str]) -> pl.DataFrame:
    """Refusals of ``heads``, the tables of those they waited for, and who published what the request evicted."""
    if own.is_empty():
        return own
    kind, seq, last = pl.col("kind"), pl.col("seq"), own["seq"].item(-1)
    skipped = events.filter((kind == "skipped") & pl.col("request_id").is_in(list(heads)) & (seq <= last)).collect()
    holders = skipped["other"].drop_nulls().unique().to_list()
    keys = own.filter(kind == "evict")["block_key"].unique().to_list()
    tables = kind.is_in(_TABLES) & pl.col("request_id").is_in(holders)
    published = (kind == "publish") & pl.col("block_key").is_in(keys)
    return pl.concat([skipped, events.filter((tables | published) & (seq <= last)).collect()])


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
    told = (
        event.error
        for events in read_frames(run.frames_path)
        for event in events
        if isinstance(event, RequestEvent) and event.request_id == request_id and event.error
    )
    return next(told, "")
