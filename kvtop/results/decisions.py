"""Decisions of a step as rows of events.parquet."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kvtop.engine.events import DECISION_FIELDS, Decision, RequestEvent, StepEvent
from kvtop.results.schema import EVENTS

_COLUMNS = tuple(EVENTS)
_FIXED = ("run_id", "seq", "step", "t_ns", "kind")
_POSITION = {name: index for index, name in enumerate(_COLUMNS)}
_PLACES = {kind: tuple(_POSITION[name] for name in fields) for kind, fields in DECISION_FIELDS.items()}
_OTHER = _POSITION["other"]
_KEYS = (_POSITION["block_key"], _POSITION["parent_key"])

_BETWEEN_STEPS = frozenset({"arrived", "rejected", "aborted", "unpublish", "cleared", "pin", "unpin", "config"})
_AFTER_EXECUTION = frozenset({"chunk", "publish", "first_token"})


class DecisionRows:
    """Numbers decisions and gives each its time.

    A decision made between two steps carries the submission's time or the start of the step that reports it, one of the
    scheduler ``t_planned_ns``, and from the first one that follows execution on, ``t_done_ns``.
    """

    def __init__(self) -> None:
        self._seq = 0
        self._submitted_ns: dict[str, int] = {}

    def request(self, event: RequestEvent) -> None:
        """Learn the submission time of a request, which its decision does not carry."""
        if event.phase == "arrived":
            self._submitted_ns[event.request_id] = event.t_submit_ns
        elif event.finish_reason != "rejected":  # the decision of a rejected one is still to come
            self._submitted_ns.pop(event.request_id, None)

    def rows(self, run_id: str, event: StepEvent) -> Iterator[tuple[Any, ...]]:
        """Rows of one step, in order."""
        executed = False
        for decision in event.decisions:
            kind = decision[0]
            executed = executed or kind in _AFTER_EXECUTION or _is_dedup(decision)
            if kind in _BETWEEN_STEPS and not executed:
                t_ns = event.t_start_ns
                if kind in ("arrived", "rejected"):
                    t_ns = self._submitted_ns.pop(decision[1], t_ns)
            else:
                t_ns = event.t_done_ns if executed else event.t_planned_ns
            yield self._row(run_id, event.step, t_ns, decision)

    def _row(self, run_id: str, step: int, t_ns: int, decision: Decision) -> tuple[Any, ...]:
        row: list[Any] = [None] * len(_COLUMNS)
        row[: len(_FIXED)] = (run_id, self._seq, step, t_ns, decision[0])
        for place, value in zip(_PLACES[decision[0]], decision[1:], strict=True):
            row[place] = value
        if row[_OTHER] is not None:
            row[_OTHER] = str(row[_OTHER])
        for place in _KEYS:
            if row[place] is not None:
                row[place] = _int64(row[place])
        self._seq += 1
        return tuple(row)


def _is_dedup(decision: Decision) -> bool:
    return decision[0] in ("share", "free") and decision[-1] == "dedup"


def _int64(key: int) -> int:
    """A key as a signed 64-bit number; wider ones (a user's own key function) keep their low bits."""
    return (key + (1 << 63)) % (1 << 64) - (1 << 63)
