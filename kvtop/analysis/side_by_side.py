"""Two runs of one workload at one moment: what each measures, the paired change, and what it means.

The same functions as ``kvtop compare`` uses on finished runs, over the requests that have ended in both by then.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kvtop.analysis.compare import MUST_AGREE
from kvtop.analysis.inference import Interval
from kvtop.analysis.outcome import status_of
from kvtop.analysis.paired import paired_requests
from kvtop.analysis.single_run import FEWEST, change_intervals
from kvtop.analysis.stats import percentile, ratio
from kvtop.analysis.summary import RequestTimes
from kvtop.engine.events import Event, RequestEvent
from kvtop.state.model import RunState

COMPARABLE = MUST_AGREE | {"model": "model"}
BETTER, WORSE, SAME, COSTS, FEW = "better", "worse", "same", "costs", "too few"
UNCLEAR = "unclear"  # the interval holds 0: no difference is shown, which is not that there is none

_COSTS = {"num_blocks": "pool blocks", "host_blocks": "host blocks", "host_cache_blocks": "host cache blocks"}
_SETTINGS = (
    "policy", "policy_params", "batch_policy", "eviction", "victim", "allocator", "preemption_mode", "prefix_caching",
    "chunked_prefill", "kv_dtype", "max_num_seqs", "max_batched_tokens", "max_model_len",
)  # fmt: skip


@dataclass(slots=True)
class Journal:
    """Requests of one run by when they ended, so that any moment can be compared."""

    _ended: list[tuple[int, int, int, RequestTimes]] = field(default_factory=list)  # (t, due, index, times)

    def fold(self, event: Event) -> None:
        if isinstance(event, RequestEvent) and event.phase == "finished":
            ended_ns = event.t_done_ns if event.t_done_ns is not None else event.t_ns
            insort(self._ended, (ended_ns, event.t_sched_ns, event.req_index, _times(event)), key=lambda e: e[:3])

    def until(self, t_ns: int) -> Ended:
        """Those that had ended by ``t_ns``, by intended arrival."""
        known = self._ended[: bisect_right(self._ended, t_ns, key=lambda e: e[0])]
        return Ended([times for *_, times in sorted(known, key=lambda e: e[1:3])])


@dataclass(frozen=True, slots=True)
class Ended:
    """Requests that have ended, as a comparison pairs them."""

    requests: list[RequestTimes]


def _times(event: RequestEvent) -> RequestTimes:
    ok = status_of(event) == "ok"
    first, done, due = event.t_first_token_ns, event.t_done_ns, event.t_sched_ns
    return RequestTimes(
        event.request_id,
        event.klass,
        status_of(event),
        None,
        first - due if ok and first is not None else None,
        event.tpot_ns if ok else None,
        done - due if ok and done is not None else None,
    )


@dataclass(frozen=True, slots=True)
class Line:
    """One row. ``unit``: ns, ratio, count, /s or text; ``change`` is relative for ns and /s, else a difference.

    ``interval``: of the change, this pair of runs only; None for what is counted, and where there are too few.
    """

    label: str
    unit: str
    first: Any
    other: Any
    change: float | None = None
    interval: Interval | None = None
    verdict: str = ""
    n: int | None = None  # pairs


def conflicts(first: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """What must agree in two manifests and does not, a phrase each."""
    found: dict[str, None] = {}
    for key, name in COMPARABLE.items():
        if first.get(key) != other.get(key):
            found[f"{name} is {_short(first.get(key))} and {_short(other.get(key))}"] = None
    return list(found)


def _short(value: object) -> str:
    text = "not recorded" if value is None else str(value)
    return text if len(text) <= 16 else text[:12] + "..."


def settings(first: Mapping[str, Any], other: Mapping[str, Any]) -> list[Line]:
    """The configuration in which two runs differ; more memory costs."""
    found = [
        Line(key.replace("_", " "), "text", first.get(key), other.get(key))
        for key in _SETTINGS
        if first.get(key) != other.get(key)
    ]
    for key, label in _COSTS.items():
        a, b = first.get(key), other.get(key)
        if a != b:
            more = (b or 0) > (a or 0)
            found.append(Line(label, "count", a, b, (b or 0) - (a or 0), None, COSTS if more else "saves"))
    return found


def latencies(first: Ended, other: Ended) -> list[Line]:
    """Percentiles over the requests that both have, and their relative change, resampled in pairs of blocks."""
    found = []
    for change in change_intervals(first, other):
        key, _, rest = change.key.partition("_p")
        q = float(rest.removesuffix("_ns"))
        both = paired_requests(first, other, key)
        a, b = (percentile(sorted(getattr(pair[i], key) for pair in both), q) for i in (0, 1))
        interval = change.interval
        relative = interval.estimate if interval else None if not a or b is None else b / a - 1
        few = change.n < FEWEST[int(q)]
        verdict = FEW if interval is None and few else _verdict(interval, relative)
        found.append(Line(change.label, "ns", a, b, relative, interval, verdict, change.n))
    return found


def _verdict(interval: Interval | None, change: float | None) -> str:
    """Of something that should be small."""
    if interval is None:
        return SAME if not change else ""
    if interval.low <= 0 <= interval.high:
        return SAME if interval.low == interval.high else UNCLEAR
    return BETTER if interval.high < 0 else WORSE


def counts(first: RunState, other: RunState) -> list[Line]:
    """Totals of both runs at this moment. They are counted, not sampled: a difference is one, on this workload."""
    found = [_count("requests ended", first.num_finished, other.num_finished, more_is_better=True)]
    hit_a, hit_b = (ratio(s.totals.get("hit_tokens"), s.totals.get("query_tokens")) for s in (first, other))
    if hit_a is not None and hit_b is not None:
        found.append(_count("prefix hit rate", hit_a, hit_b, unit="ratio", more_is_better=True))
    for key, label in (
        ("preemptions", "preemptions"), ("recomputed_tokens", "computed again"), ("evictions", "evictions"),
    ):  # fmt: skip
        a, b = (state.totals.get(key, 0) for state in (first, other))
        if a or b or key != "recomputed_tokens":
            found.append(_count(label, a, b))
    a, b = (ratio(s.totals.get("output_tokens", 0) * 1e9, s.t_ns) for s in (first, other))
    if a and b is not None:
        # By how much the last steps end apart is no difference: what rounds to 0.0 % is none.
        verdict = SAME if abs(b / a - 1) < 0.0005 else BETTER if b > a else WORSE
        found.append(Line("output tokens/s", "/s", a, b, b / a - 1, None, verdict))
    return found


def _count(label: str, a: float, b: float, *, unit: str = "count", more_is_better: bool = False) -> Line:
    verdict = SAME if a == b else BETTER if (b > a) == more_is_better else WORSE
    return Line(label, unit, a, b, b - a, None, verdict)
