"""Decisions of steps as rows of events.parquet, made column by column.

A row at a time, each with eighteen places of which five are filled, was two thirds of what the tables of a run cost.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import polars as pl

from kvtop.engine.events import DECISION_FIELDS, Decision, RequestEvent, StepEvent
from kvtop.results.schema import EVENTS

_BETWEEN_STEPS = frozenset(
    {"arrived", "rejected", "aborted", "unpublish", "cleared", "pin", "unpin", "config", "withhold", "give_back"}
)
_AFTER_EXECUTION = frozenset({"chunk", "publish", "first_token"})
_DEDUPED = frozenset({"share", "free"})  # with the reason dedup: after execution too

_KEYS = frozenset({"block_key", "parent_key"})
_ROW = "row"  # place among the rows that are kept; in no table


class DecisionColumns:
    """Numbers decisions and gives each its time; keeps them until ``take``.

    A decision made between two steps carries the submission's time or the start of the step that reports it, one of the
    scheduler ``t_planned_ns``, and from the first one that follows execution on, ``t_done_ns``.
    """

    def __init__(self) -> None:
        self._num_taken = 0
        self._submitted_ns: dict[str, int] = {}
        self._decisions: list[Decision] = []
        self._steps: list[int] = []  # of each decision, as the times
        self._times: list[int] = []

    def __len__(self) -> int:
        """Decisions that are kept."""
        return len(self._decisions)

    def request(self, event: RequestEvent) -> None:
        """Learn the submission time of a request, which its decision does not carry."""
        if event.phase == "arrived":
            self._submitted_ns[event.request_id] = event.t_submit_ns
        elif event.finish_reason != "rejected":  # the decision of a rejected one is still to come
            self._submitted_ns.pop(event.request_id, None)

    def step(self, event: StepEvent) -> None:
        """Keep the decisions of one step, in order."""
        decisions = event.decisions
        self._decisions += decisions
        self._steps += [event.step] * len(decisions)
        before = len(self._times)
        for decision in decisions:
            kind = decision[0]
            if kind in _AFTER_EXECUTION or (kind in _DEDUPED and decision[-1] == "dedup"):
                break
            t_ns = event.t_planned_ns
            if kind in _BETWEEN_STEPS:
                t_ns = event.t_start_ns
                if kind in ("arrived", "rejected"):
                    t_ns = self._submitted_ns.pop(decision[1], t_ns)
            self._times.append(t_ns)
        self._times += [event.t_done_ns] * (before + len(decisions) - len(self._times))

    def take(self, run_id: str) -> pl.DataFrame:
        """What is kept, with the columns of events.parquet; nothing is kept any more."""
        decisions, first = self._decisions, self._num_taken
        places: dict[str, list[int]] = {}
        for row, decision in enumerate(decisions):
            kind = decision[0]
            if kind in places:
                places[kind].append(row)
            else:
                places[kind] = [row]
        found = pl.concat([_of_kind(kind, rows, decisions) for kind, rows in places.items()], how="diagonal").sort(_ROW)
        known: dict[str, Any] = {
            "run_id": pl.lit(run_id),
            "seq": pl.int_range(first, first + len(decisions), dtype=EVENTS["seq"]),
            "step": pl.Series(self._steps, dtype=EVENTS["step"]),
            "t_ns": pl.Series(self._times, dtype=EVENTS["t_ns"]),
        }
        missing = {name: pl.lit(None) for name in EVENTS if name not in known and name not in found.columns}
        table = found.with_columns(**known, **missing).select(pl.col(name).cast(kind) for name, kind in EVENTS.items())
        self._num_taken += len(decisions)
        self._decisions, self._steps, self._times = [], [], []
        return table


def _of_kind(kind: str, rows: list[int], decisions: Sequence[Decision]) -> pl.DataFrame:
    """The decisions at ``rows``, all of one kind, with the columns that its fields name."""
    names = ("kind", *DECISION_FIELDS[kind])
    columns = zip(*[decisions[row] for row in rows], strict=True)
    series = [_series(name, values) for name, values in zip(names, columns, strict=True)]
    return pl.DataFrame([pl.Series(_ROW, rows, dtype=pl.UInt32), *series])


def _series(name: str, values: Iterable[Any]) -> pl.Series:
    if name == "other":  # who, or which block
        values = [None if value is None else str(value) for value in values]
    elif name in _KEYS:
        values = [None if key is None else _int64(key) for key in values]
    return pl.Series(name, values, dtype=EVENTS[name])


def _int64(key: int) -> int:
    """A key as a signed 64-bit number; wider ones (a user's own key function) keep their low bits."""
    return (key + (1 << 63)) % (1 << 64) - (1 << 63)
