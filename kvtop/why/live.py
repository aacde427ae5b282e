"""Facts of a request from the state of a run that goes on. Gives the lines that the whole stream would give."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kvtop.state.model import RunState
from kvtop.state.request_logs import Entry, RequestLog
from kvtop.why.facts import Facts, Row, StepTimes, decision_row, owner_of, request_row
from kvtop.why.life import DROPPED
from kvtop.workloads.words import counted

_ENDS = ("complete", "interrupted", "failed")


def facts_now(state: RunState, log: RequestLog, name: str) -> Facts:
    """What is known now about the request of ``log``, or about its branch ``name``. O(decisions + steps lived)."""
    entries = [*log.older, *log.entries]
    steps = _steps(state, entries[0].step if entries else state.step, log)
    own = sorted((row for entry in entries for row in _rows(entry)), key=lambda row: row["step"])
    refusals = list(_refusals_of_others(state, log, {step.head for step in steps}))
    status = DROPPED if log.is_lost else state.status if state.status in _ENDS else "running"
    run = {**state.manifest, "status": status}
    return Facts(name, _request(log), [*refusals, *own], steps, run)


def gaps_of(state: RunState, log: RequestLog) -> list[str]:
    """What the lines of ``facts_now`` leave out, a sentence each."""
    notes = []
    if log.is_lost:
        notes.append("Events were dropped while it was alive: what they said is not told." + _end_of(log))
    first, kept = (log.older or log.entries)[:1], state.logs.steps
    if first and kept and len(kept) == kept.maxlen and first[0].step < kept[0][0]:
        notes.append(f"The times of steps before {kept[0][0]:,} are no longer kept: lines about them say less.")
    return notes


def _end_of(log: RequestLog) -> str:
    end = log.end
    return f" It ended ({end.finish_reason}) after {counted(end.output_tokens, 'token')}." if end is not None else ""


def _request(log: RequestLog) -> Row:
    if log.end is not None:
        return request_row(log.end)
    if log.arrival is not None:
        return {**request_row(log.arrival), "t_first_sched_ns": log.t_first_sched_ns}
    row = log.origin
    if row is None:  # neither its arrival nor a keyframe: the decisions alone
        prompt = next((e.decision[2] for e in log.entries if e.decision[0] in ("arrived", "rejected")), 0)
        return {"request_id": log.request_id, "prompt_tokens": prompt}
    return {
        "request_id": log.request_id,
        "prompt_tokens": row.num_prompt,
        "requested_output_tokens": row.max_tokens,
        "t_sched_ns": row.t_sched_ns,
        "t_submit_ns": row.t_submit_ns,
    }


def _steps(state: RunState, first: int, log: RequestLog) -> list[StepTimes]:
    last = log.last_step if log.end is not None and not log.is_lost else None
    found: list[StepTimes] = []
    for row in reversed(state.logs.steps):
        if row[0] < first:
            break
        if (last is None or row[0] <= last) and not (found and found[-1].step == row[0]):
            found.append(StepTimes(*row))  # of two with one number the later one is the step
    found.reverse()
    return found


def _rows(entry: Entry) -> Iterator[Row]:
    """The decisions an entry stands for."""
    decision, step, kind = entry.decision, entry.step, entry.decision[0]
    if kind == "known":
        _, seq_id, what, num_known, num_computed = decision
        known = {"state": what, "known_tokens": num_known, "computed_tokens": num_computed}
        yield {"kind": kind, "step": step, "request_id": seq_id, **known}
    elif kind == "alloc":
        yield from ({"kind": kind, "step": step, "request_id": decision[1]} for _ in range(entry.count))
    elif kind == "chunk":
        _, seq_id, count, start = decision
        for i in range(entry.count):
            yield {"kind": kind, "step": step + i, "request_id": seq_id, "num_tokens": count, "age_steps": start + i}
    elif kind == "evict":
        row = {**decision_row(step, decision), "owner": entry.owner}
        yield {**row, "idle_steps": entry.idle_least}
        others = {**row, "step": entry.last_step, "idle_steps": entry.idle_most}
        yield from (others for _ in range(entry.count - 1))
    elif kind == "skipped":
        yield {**decision_row(step, decision), "held_blocks": entry.held_blocks}
    else:
        row = decision_row(step, decision)
        yield from (row for _ in range(entry.count))


def _refusals_of_others(state: RunState, log: RequestLog, heads: set[str]) -> Iterator[Row]:
    own: dict[str, Any] = {log.request_id: None}
    for entry in state.logs.refusals:
        name = entry.decision[1]
        if name in heads and owner_of(name, own) is None:
            yield from _rows(entry)
