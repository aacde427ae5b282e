"""One row a request: what the engine said at its end, or, for one that the run cut off, what had happened by then."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from kvtop.analysis.outcome import status_of
from kvtop.analysis.slo import Slo
from kvtop.engine.events import Event, RequestEvent, StepEvent
from kvtop.results.schema import REQUESTS
from kvtop.results.window import Window, phases

_COPIED = (
    "req_index", "request_id", "turn", "priority", "n", "prompt_tokens", "requested_output_tokens", "output_tokens",
    "t_sched_ns", "t_submit_ns", "t_first_sched_ns", "t_first_token_ns", "t_last_token_ns", "t_done_ns", "tpot_ns",
    "itl_max_ns", "hit_tokens", "host_hit_tokens", "restored_tokens", "recomputed_tokens", "num_preemptions",
    "preempted_ns", "queue_total_ns", "peak_blocks", "shared_blocks_saved",
)  # fmt: skip
_TEXTS = ("session_id", "parent_request_id", "tenant", "miss_reason", "finish_reason")


@dataclass(slots=True)
class _Live:
    """What the steps say about a request that has not ended."""

    arrived: RequestEvent
    t_first_sched_ns: int | None = None
    t_first_token_ns: int | None = None
    t_last_token_ns: int | None = None
    output_tokens: int = 0
    hit_tokens: int | None = None
    host_hit_tokens: int = 0
    miss_reason: str | None = None
    num_preemptions: int = 0
    last_token_ns: dict[str, int] = field(default_factory=dict)  # by sequence id
    itl_max_ns: int | None = None


class RequestRows:
    """Folds request events; ``rows`` gives every request that arrived, in order of submission.

    Those that never ended (``has_open``) know what happened to them once ``retrace`` has seen the whole run again.
    """

    def __init__(self) -> None:
        self._live: dict[str, _Live] = {}
        self._rows: list[dict[str, Any]] = []

    def request(self, event: RequestEvent) -> None:
        if event.phase == "arrived":
            self._live[event.request_id] = _Live(event)
            return
        self._live.pop(event.request_id, None)
        row = {name: getattr(event, name) for name in _COPIED}
        row |= {name: getattr(event, name) or None for name in _TEXTS}
        row |= {"class": event.klass or None, "status": status_of(event)}
        if row["status"] == "rejected":
            row |= dict.fromkeys(_NEVER_QUEUED)
        self._rows.append(_derive(row))

    @property
    def has_open(self) -> bool:
        """A request has not ended."""
        return bool(self._live)

    def retrace(self, event: Event) -> None:
        """Keep what would be lost with a request that never ends. All events in order, after the last of them."""
        if isinstance(event, RequestEvent):
            if event.phase == "arrived" and event.request_id in self._live:
                self._live[event.request_id] = _Live(event)  # an earlier one of this name is none of them
        elif isinstance(event, StepEvent):
            self._step(event)

    def _step(self, event: StepEvent) -> None:
        for decision in event.decisions:
            if (fold := _FOLDS.get(decision[0])) and (live := self._of(decision[1])) is not None:
                fold(live, decision, event)
        for seq_id, count in event.emitted:
            if (live := self._of(seq_id)) is not None:
                _emitted(live, seq_id, count, event.t_done_ns)

    def rows(
        self,
        run_id: str,
        window: Window | None,
        num_warmup: int,
        ideal: Mapping[str, tuple[int | None, int | None]],
        slo: Slo | None,
    ) -> Iterator[tuple[Any, ...]]:
        """All rows; ``ideal``: by request id, what an infinite cache serves in whole blocks, and exactly."""
        found = self._rows + [_derive(_cut_off(live)) for live in self._live.values()]
        found.sort(key=lambda row: row["req_index"])
        for row, phase in zip(found, phases(found, window, num_warmup), strict=True):
            row |= {"run_id": run_id, "phase": phase, "slo_ok": slo and slo.judge(row)}
            row["ideal_hit_tokens"], row["shared_prefix_tokens"] = ideal.get(row["request_id"], (None, None))
            yield tuple(row.get(name) for name in REQUESTS)

    def _of(self, seq_id: str) -> _Live | None:
        live = self._live.get(seq_id)
        if live is None:  # branches are called a#1, a#2, ...
            request_id, mark, branch = seq_id.rpartition("#")
            if mark and branch.isdigit():
                live = self._live.get(request_id)
        return live


_NEVER_QUEUED = (
    "output_tokens", "restored_tokens", "recomputed_tokens", "num_preemptions", "preempted_ns", "queue_total_ns",
    "peak_blocks", "shared_blocks_saved", "hit_tokens", "host_hit_tokens",
)  # fmt: skip
"""Measures of a request that never entered the queue: null, not 0."""


def _derive(row: dict[str, Any]) -> dict[str, Any]:
    """Differences of section "measures"; null when one of the two times has not happened."""

    def minus(end: str, start: str) -> int | None:
        return None if row.get(end) is None or row.get(start) is None else row[end] - row[start]

    row["lag_ns"] = minus("t_submit_ns", "t_sched_ns")
    row["queue_first_ns"] = minus("t_first_sched_ns", "t_submit_ns")
    row["prefill_ns"] = minus("t_first_token_ns", "t_first_sched_ns")
    row["ttft_ns"] = minus("t_first_token_ns", "t_sched_ns")
    row["ttft_submit_ns"] = minus("t_first_token_ns", "t_submit_ns")
    row["e2e_ns"] = None if row["status"] == "rejected" else minus("t_done_ns", "t_sched_ns")
    return row


def _cut_off(live: _Live) -> dict[str, Any]:
    """What is known of a request that was alive at the end; totals that only the engine knows stay null."""
    event = live.arrived
    row: dict[str, Any] = {name: getattr(event, name) for name in _COPIED[:7]}
    row |= {name: getattr(event, name) or None for name in ("session_id", "parent_request_id", "tenant")}
    row |= {"class": event.klass or None, "status": "cutoff", "t_sched_ns": event.t_sched_ns}
    row |= {"t_submit_ns": event.t_submit_ns, "t_first_sched_ns": live.t_first_sched_ns}
    row |= {"t_first_token_ns": live.t_first_token_ns, "t_last_token_ns": live.t_last_token_ns}
    row |= {"output_tokens": live.output_tokens, "hit_tokens": live.hit_tokens, "miss_reason": live.miss_reason}
    row |= {"num_preemptions": live.num_preemptions, "itl_max_ns": live.itl_max_ns}
    row["host_hit_tokens"] = None if live.hit_tokens is None else live.host_hit_tokens
    return row


def _emitted(live: _Live, seq_id: str, count: int, t_ns: int) -> None:
    before = live.last_token_ns.get(seq_id)
    if before is not None:
        gap = (t_ns - before) // count
        live.itl_max_ns = gap if live.itl_max_ns is None else max(live.itl_max_ns, gap)
    if live.t_first_token_ns is None:
        live.t_first_token_ns = t_ns
    live.last_token_ns[seq_id] = live.t_last_token_ns = t_ns
    live.output_tokens += count


def _fold_host_hit(live: _Live, decision: tuple[Any, ...], event: StepEvent) -> None:
    """Of an admission, before its lookup: a later one restores what was lost and is no hit."""
    if live.hit_tokens is None:
        live.host_hit_tokens = decision[2]


def _fold_lookup(live: _Live, decision: tuple[Any, ...], event: StepEvent) -> None:
    if live.hit_tokens is None:
        live.hit_tokens, live.miss_reason = decision[2] - live.host_hit_tokens, decision[3]


def _fold_chunk(live: _Live, decision: tuple[Any, ...], event: StepEvent) -> None:
    if live.t_first_sched_ns is None:
        live.t_first_sched_ns = event.t_start_ns


def _fold_preempted(live: _Live, decision: tuple[Any, ...], event: StepEvent) -> None:
    live.num_preemptions += 1


_FOLDS = {"host_hit": _fold_host_hit, "lookup": _fold_lookup, "chunk": _fold_chunk, "preempted": _fold_preempted}
