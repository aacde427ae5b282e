"""What a request's life is told from: plain rows of the decision log and the times of the steps. Loads no polars.

``facts_of`` takes them from a stream of events, ``kvtop.why.tables`` from the tables of a run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from kvtop.engine.events import DECISION_FIELDS, Decision, Event, RequestEvent, RunStarted, StepEvent

Row = Mapping[str, Any]
"""A decision: ``kind``, ``step`` and the fields that ``DECISION_FIELDS`` names, as in events.parquet."""


@dataclass(frozen=True, slots=True)
class StepTimes:
    """One step: when it was, who headed the queue and was refused ("" for nobody), prompt tokens it computed."""

    step: int
    t_start_ns: int
    t_done_ns: int
    head: str = ""
    prefill_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Facts:
    """All there is to know about one request.

    ``decisions`` are in order, and hold at least: all of the request's own sequences, all ``skipped``, ``preempted``,
    ``forked`` and ``lookup`` that name them, the ``publish`` of blocks they evicted, and ``alloc``, ``share`` and
    ``free`` of the sequences they waited for. More does no harm, less makes a line say less.

    Where the log is kept request by request (``kvtop.why.live``), rows stand for what others did: ``held_blocks`` of a
    ``skipped`` (of the one in the way, at that moment), ``owner`` of an ``evict`` (who had published the block), and a
    first row of kind ``known`` (``state``, ``known_tokens``, ``computed_tokens``) where a log does not begin with its
    request's arrival.
    """

    name: str  # id of a request, or of one of its branches (a#1)
    request: Row  # as in requests.parquet
    decisions: Sequence[Row]
    steps: Sequence[StepTimes]  # from arrival to end
    run: Mapping[str, Any] = field(default_factory=dict)  # as run.json

    @property
    def request_id(self) -> str:
        return str(self.request["request_id"])


def decision_row(step: int, decision: Decision) -> Row:
    """A decision of an event as a plain row."""
    kind = decision[0]
    return {"kind": kind, "step": step, **dict(zip(DECISION_FIELDS[kind], decision[1:], strict=True))}


def request_row(event: RequestEvent) -> dict[str, Any]:
    """A request that arrived or ended, as a row of requests.parquet."""
    row = {name: getattr(event, name) for name in event.__struct_fields__ if name not in ("phase", "t_ns")}
    row["class"] = row.pop("klass")
    return row


def step_times(event: StepEvent) -> StepTimes:
    return StepTimes(event.step, event.t_start_ns, event.t_done_ns, event.head_of_line, event.prefill_tokens)


def owner_of(name: str, request_ids: Iterable[str] | Mapping[str, Any]) -> str | None:
    """The request that ``name`` means: itself, or the one it is a branch of (``a#1`` of ``a``); None: neither."""
    if name in request_ids:
        return name
    parent, mark, branch = name.rpartition("#")
    return parent if mark and branch.isdigit() and parent in request_ids else None


def facts_of(events: Iterable[Event], name: str, run: Mapping[str, Any] | None = None) -> Facts | None:
    """Facts of a request from the event stream; None when it never arrived. Complexity: O(all decisions)."""
    requests: dict[str, dict[str, Any]] = {}
    decisions: list[Row] = []
    steps: dict[int, StepTimes] = {}  # what happens while nobody lives is told under the number of the next step
    manifest: Mapping[str, Any] = run or {}
    for event in events:
        if isinstance(event, StepEvent):
            decisions += [decision_row(event.step, decision) for decision in event.decisions]
            steps[event.step] = step_times(event)
        elif isinstance(event, RequestEvent):
            requests[event.request_id] = request_row(event)
        elif isinstance(event, RunStarted) and run is None:
            manifest = msgspec.to_builtins(event.manifest)
    request_id = owner_of(name, requests)
    if request_id is None:
        return None
    return Facts(name, requests[request_id], since_arrival(decisions, request_id), list(steps.values()), manifest)


def since_arrival(decisions: Sequence[Row], request_id: str) -> Sequence[Row]:
    """Without what an earlier request of the same id did. Others keep all of theirs: their blocks are counted."""
    arrivals = [
        index
        for index, row in enumerate(decisions)
        if row["kind"] in ("arrived", "rejected") and row["request_id"] == request_id
    ]
    if len(arrivals) < 2:
        return decisions
    last = arrivals[-1]
    earlier = [row for row in decisions[:last] if owner_of(str(row.get("request_id")), (request_id,)) is None]
    return [*earlier, *decisions[last:]]
