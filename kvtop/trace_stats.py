"""What a trace holds, in numbers: span, arrivals, lengths, ids, sessions. Values that are not known are None."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from kvtop.analysis.stats import mean, percentile
from kvtop.workloads.formats.base import NONE, Trace
from kvtop.workloads.rows import Row
from kvtop.workloads.shape import num_sessions

NS_PER_S = 1_000_000_000
PERCENTS = (50, 95, 99)


def describe(trace: Trace) -> dict[str, Any]:
    """Everything ``kvtop trace info`` shows; a name ends with its value's unit. Percentiles interpolate linearly."""
    rows = trace.rows
    return {
        "format": trace.format,
        "trace_sha256": trace.trace_sha256,
        "rows": len(rows),
        "rows_dropped": trace.num_dropped,
        "arrivals": _arrivals(trace),
        "prompt_tokens": distribution([row.prompt_tokens for row in rows]),
        "output_tokens": distribution([row.output_tokens for row in rows]),
        "tokens_counted_by": trace.counted_by,
        "ids": _ids(rows, trace.rounding),
        "sessions": _sessions(rows),
        "classes": dict(Counter(row.klass for row in rows if row.klass).most_common()),
        "notices": list(trace.notices),
    }


def distribution(values: Sequence[int | float]) -> dict[str, float | None] | None:
    """n, sum, mean, min, percentiles and max; None of nothing."""
    if not values:
        return None
    ordered = sorted(values)
    return {
        "n": len(values),
        "sum": sum(values),
        "mean": mean(values),
        "min": ordered[0],
        **{f"p{percent}": percentile(ordered, percent) for percent in PERCENTS},
        "max": ordered[-1],
    }


def _arrivals(trace: Trace) -> dict[str, Any]:
    source: dict[str, Any] = {"source": trace.arrivals, "unit_in_file": trace.time_unit or None}
    if trace.arrivals == NONE:
        return source
    times = [row.arrival_ns for row in trace.rows]
    gaps = [b - a for a, b in itertools.pairwise(times)]
    span_ns = times[-1]
    stamps = Counter(times)
    return {
        **source,
        "span_s": span_ns / NS_PER_S,
        "rate_per_s": len(gaps) / span_ns * NS_PER_S if span_ns else None,
        "gap_cv": _variation(gaps),
        "longest_gap_s": max(gaps) / NS_PER_S if gaps else None,
        "distinct_times": len(stamps),
        "most_rows_at_one_time": max(stamps.values()),
    }


def _variation(gaps: list[int]) -> float | None:
    """Standard deviation of the gaps (of the population) over their mean."""
    average = mean(gaps)
    if not average:
        return None
    return math.sqrt(math.fsum((gap - average) ** 2 for gap in gaps) / len(gaps)) / average


def _ids(rows: list[Row], rounding: str | None) -> dict[str, Any] | None:
    num_total = sum(len(row.hash_ids) for row in rows)
    blocks = sorted({row.hash_block_tokens for row in rows if row.hash_block_tokens})
    if not blocks:
        return None
    distinct = set(itertools.chain.from_iterable(row.hash_ids for row in rows))
    return {
        "block_tokens": blocks[0] if len(blocks) == 1 else blocks,
        "rounding": rounding,
        "total": num_total,
        "distinct": len(distinct),
        "seen_before_share": 1 - len(distinct) / num_total if num_total else None,
    }


def _sessions(rows: list[Row]) -> dict[str, Any] | None:
    turns = Counter(row.session_id for row in rows if row.session_id)
    if not turns:
        return None
    alone = sum(not row.session_id for row in rows)
    subs = {row.session_id for row in rows if row.session_id and row.after and row.think_ns is not None}
    firsts = {row.session_id: row for row in reversed(rows) if row.session_id}
    sub_agents = sum(bool(firsts[session].after) for session in subs)
    return {
        "sessions": num_sessions(rows) - alone,
        "sub_agents": sub_agents,
        "rows_of_sub_agents": sum(turns[session] for session in subs if firsts[session].after),
        "turns": distribution(list(turns.values())),
        "think_s": distribution([row.think_ns / NS_PER_S for row in rows if row.think_ns is not None]),
        "rows_without_session": alone,
    }
