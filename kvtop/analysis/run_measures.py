"""Throughput, hit rates and duration of one run, from the rows of its tables; None where it was not measured."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kvtop.analysis.hits import hit_loss
from kvtop.analysis.stats import ratio
from kvtop.results.window import BusyWindow, Window

if TYPE_CHECKING:
    import polars as pl

_S = 1_000_000_000
ASKED_COLUMNS = (
    "req_index", "n", "priority", "tenant", "class", "prompt_tokens", "requested_output_tokens", "session_id", "turn",
    "parent_request_id", "shared_prefix_tokens", "t_sched_ns",
)  # fmt: skip


def asked(rows: list[dict[str, Any]]) -> str:
    """SHA-256 (hex) of what was asked for and when, whatever the tokens' ids.

    The workload's own hash holds the seed, on which token ids depend: it differs between two seeds of a recorded trace,
    although nothing but the ids does. When a turn that waited for an answer is due follows from the run.
    """
    digest = hashlib.sha256()
    for row in sorted(rows, key=lambda row: row["req_index"]):
        values = {name: row[name] for name in ASKED_COLUMNS}
        if values["parent_request_id"] is not None:
            del values["t_sched_ns"]
        digest.update(repr(values).encode())
    return digest.hexdigest()


def window_of(steps: pl.DataFrame) -> Window | None:
    """The steady part by steps.parquet."""
    busy = BusyWindow()
    for step in steps.select("t_start_ns", "t_done_ns", "num_running").iter_rows():
        busy.add(*step)
    return busy.window()


def throughput(
    rows: list[dict[str, Any]], steps: pl.DataFrame, window: Window | None, duration: int | None
) -> dict[str, Any]:
    """Of the whole run and of its steady part, by field."""
    output = sum(row["output_tokens"] or 0 for row in rows)
    prompt = sum(row["prompt_tokens"] or 0 for row in rows if row["t_first_token_ns"] is not None)
    ok = [row for row in rows if row["status"] == "ok"]
    per_second = ratio(_S, duration)
    return {
        "output_tokens": output,
        "prompt_tokens": prompt,
        "output_tokens_s": _times(output, per_second),
        "total_tokens_s": _times(output + prompt, per_second),
        "requests_s": _times(len(ok), per_second),
        "steady_requests_s": _steady_rate(ok),
        "steady_output_tokens_s": _steady_tokens(steps, window),
    }


def hit_rates(rows: list[dict[str, Any]], manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Of the requests that were looked up, by field; each counts once."""
    looked_up = [row for row in rows if row["hit_tokens"] is not None]
    if manifest.get("prefix_caching") is False:
        looked_up = []
    prompt = sum(row["prompt_tokens"] for row in looked_up)
    hits = sum(row["hit_tokens"] for row in looked_up) if looked_up else None
    host = sum(row["host_hit_tokens"] or 0 for row in looked_up) if manifest.get("host_cache_blocks") else None
    return {
        "hit_rate": ratio(hits, prompt),
        "hit_tokens": hits,
        "host_hit_rate": ratio(host, prompt),
        "hits": hit_loss(looked_up),
    }


def _times(amount: float, per_second: float | None) -> float | None:
    return None if per_second is None else amount * per_second


def peak(table: pl.DataFrame, column: str) -> int | None:
    values = table[column].drop_nulls().to_list()
    return max(values) if values else None


def duration(rows: list[dict[str, Any]], steps: pl.DataFrame) -> int | None:
    """First scheduled arrival to the last thing that happened: set-up before the first arrival does not count."""
    ends = [row["t_done_ns"] for row in rows if row["t_done_ns"] is not None]
    last_step = peak(steps, "t_done_ns")
    if last_step is not None:
        ends.append(last_step)
    starts = [row["t_sched_ns"] for row in rows if row["t_sched_ns"] is not None]
    return max(ends) - min(starts) if ends and starts else None


def _steady_rate(ok: list[dict[str, Any]]) -> float | None:
    done = sorted(row["t_done_ns"] for row in ok if row["t_done_ns"] is not None)
    return ratio((len(done) - 1) * _S, done[-1] - done[0]) if len(done) > 1 else None


def _steady_tokens(steps: pl.DataFrame, window: Window | None) -> float | None:
    """Tokens emitted by the steps of the window, per second; None in tables that do not count them by step."""
    if window is None or steps["output_tokens"].null_count():
        return None
    inside = steps.filter((steps["t_done_ns"] > window[0]) & (steps["t_done_ns"] <= window[1]))
    return int(inside["output_tokens"].sum()) * _S / (window[1] - window[0])
