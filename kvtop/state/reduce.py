"""Fold the event stream into a ``RunState``: live, from a recording, from the start or from any keyframe."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from kvtop.engine.events import (
    ConfigChanged,
    Decision,
    Event,
    Gap,
    Keyframe,
    Notice,
    Paused,
    RequestEvent,
    Resumed,
    RunEnded,
    RunStarted,
    SequenceRow,
    Stalled,
    StepEvent,
)
from kvtop.state.blocks import BLOCK_FOLDS, fill, pool_of, settle
from kvtop.state.model import RunState, SequenceState


def reduce(state: RunState, event: Event) -> RunState:
    """``state`` with ``event`` folded in, in place. Complexity: O(decisions of the event); no I/O."""
    _EVENT_FOLDS[type(event)](state, event)
    state.version += 1
    return state


# -- events ------------------------------------------------------------------------------------------------------


def _run_started(state: RunState, event: RunStarted) -> None:
    state.run_id, state.manifest, state.status = event.run_id, event.manifest, "running"
    state.notice, state.progress = "", None


def _step(state: RunState, event: StepEvent) -> None:
    state.step, state.t_ns, state.last_step = event.step, event.t_done_ns, event
    state.head_of_line = event.head_of_line
    notes = _StepNotes()
    pool, sequences, step = state.pool, state.sequences, event.step
    block_fold, request_fold = BLOCK_FOLDS.get, _REQUEST_FOLDS.get
    for decision in event.decisions:
        kind = decision[0]
        if fold := block_fold(kind):
            if pool is not None:
                fold(pool, sequences, decision, step)
        elif fold := request_fold(kind):
            fold(state, event, decision, notes)
    if event.emitted:
        _emitted(state, event.emitted, event.t_done_ns)
    for seq_id in notes.ended:  # only now: their last tokens are in ``emitted``
        sequences.pop(seq_id, None)
    for seq in notes.born:
        if seq.state != "running":  # it got no blocks: nothing of it is computed
            seq.num_computed = 0
    if pool is not None:
        settle(pool, event.in_transfer_blocks)
    t_ns = event.t_done_ns
    state.log.extend([(step, t_ns, decision) for decision in event.decisions])
    _count(state.totals, event, notes)
    _remember(state, event)


def _count(totals: dict[str, int], event: StepEvent, notes: _StepNotes) -> None:
    for name in ("query_tokens", "hit_tokens", "evictions", "preemptions", "copies", "prefill_tokens", "decode_tokens"):
        totals[name] = totals.get(name, 0) + getattr(event, name)
    _add(totals, "computed_tokens", notes.computed)
    _add(totals, "recomputed_tokens", notes.recomputed)
    totals["used"], totals["idle"] = event.used_blocks, event.idle_blocks
    totals["fresh"], totals["in_transfer"] = event.fresh_blocks, event.in_transfer_blocks


def _remember(state: RunState, event: StepEvent) -> None:
    history = state.history
    history.t_ns.append(event.t_done_ns)
    history.used.append(event.used_blocks)
    history.idle.append(event.idle_blocks)
    history.fresh.append(event.fresh_blocks)
    history.running.append(event.num_running)
    history.waiting.append(event.num_waiting)
    history.prefill_tokens.append(event.prefill_tokens)
    history.decode_tokens.append(event.decode_tokens)
    history.step_ns.append(event.t_done_ns - event.t_start_ns)


def _request(state: RunState, event: RequestEvent) -> None:
    state.t_ns = max(state.t_ns, event.t_ns)
    if event.phase == "arrived":
        state.arrivals[event.request_id] = event
        return
    state.arrivals.pop(event.request_id, None)
    state.finished.append(event)
    if event.finish_reason == "rejected":
        state.num_rejected += 1
    else:
        state.num_finished += 1


def _keyframe(state: RunState, event: Keyframe) -> None:
    state.t_ns, state.step = max(state.t_ns, event.t_ns), max(state.step, event.step)
    state.pool = pool_of(event)
    rows = sorted(event.sequences, key=lambda row: row.t_submit_ns)
    state.sequences = {row.seq_id: _sequence(row, state.sequences.get(row.seq_id)) for row in rows}
    waiting = [row for row in event.sequences if row.state != "running"]
    state.head_of_line = next((row.wait_blocker for row in waiting if row.wait_reason == "head_of_line"), "")
    if not state.head_of_line:
        state.head_of_line = next((row.seq_id for row in waiting if row.wait_reason), "")
    state.totals.update(event.totals)


def _sequence(row: SequenceRow, known: SequenceState | None) -> SequenceState:
    """``row`` as a live sequence. What a keyframe does not carry is kept from ``known``."""
    seq = SequenceState(
        seq_id=row.seq_id,
        request_id=row.request_id,
        state=row.state,
        num_prompt=row.num_prompt,
        max_tokens=row.max_tokens,
        num_tokens=row.num_tokens,
        num_computed=row.num_computed,
        cached_tokens=row.cached_tokens,
        table=list(row.block_table),
        num_preemptions=row.num_preemptions,
        wait_reason=row.wait_reason,
        wait_blocker=row.wait_blocker,
        t_sched_ns=row.t_sched_ns,
        t_submit_ns=row.t_submit_ns,
        t_first_token_ns=row.t_first_token_ns,
        t_last_token_ns=row.t_last_token_ns,
    )
    # A sequence that has emitted computed everything but its last token; of a chunked one only the present is known.
    computed = row.num_tokens - 1 if row.num_tokens > row.num_prompt else row.num_computed
    seq.high_water = computed
    if known is not None:
        seq.high_water = max(known.high_water, computed)
        seq.miss_reason, seq.last_itl_ns = known.miss_reason, known.last_itl_ns
        seq.need_blocks, seq.have_blocks = known.need_blocks, known.have_blocks
        if row.wait_reason == "head_of_line":  # its own reason, if it ever was the head
            seq.wait_reason, seq.wait_blocker = known.wait_reason, known.wait_blocker
    return seq


def _paused(state: RunState, event: Paused) -> None:
    state.status, state.t_ns = "paused", max(state.t_ns, event.t_ns)


def _resumed(state: RunState, event: Resumed) -> None:
    state.status, state.t_ns = "running", max(state.t_ns, event.t_ns)


def _config_changed(state: RunState, event: ConfigChanged) -> None:
    state.manifest = {**state.manifest, **event.changes}


def _stalled(state: RunState, event: Stalled) -> None:
    who = event.request_id or "the run"
    state.stalled = f"{who}: {event.reason} (needs {event.need_blocks}, has {event.have_blocks})"


def _gap(state: RunState, event: Gap) -> None:
    state.events_dropped += event.dropped


def _notice(state: RunState, event: Notice) -> None:
    state.notice, state.notice_level, state.progress = event.text, event.level, event.progress


def _run_ended(state: RunState, event: RunEnded) -> None:
    state.status, state.error, state.traceback = event.status, event.error, event.traceback
    state.t_ns, state.progress = max(state.t_ns, event.t_ns), None


_EVENT_FOLDS: dict[type[Event], Callable[[RunState, Any], None]] = {
    RunStarted: _run_started,
    StepEvent: _step,
    RequestEvent: _request,
    Keyframe: _keyframe,
    Paused: _paused,
    Resumed: _resumed,
    ConfigChanged: _config_changed,
    Stalled: _stalled,
    Gap: _gap,
    Notice: _notice,
    RunEnded: _run_ended,
}


# -- decisions about requests ------------------------------------------------------------------------------------


@dataclass(slots=True)
class _StepNotes:
    """Of one step: ids to forget once its tokens are counted, branches born in it, positions computed."""

    computed: int = 0
    recomputed: int = 0
    ended: list[str] = field(default_factory=list)
    born: list[SequenceState] = field(default_factory=list)


RequestFold = Callable[[RunState, StepEvent, Decision, _StepNotes], None]


def _arrived(state: RunState, event: StepEvent, decision: Decision, notes: _StepNotes) -> None:
    _, request_id, num_prompt = decision
    if request_id in notes.ended:  # the id of one that was aborted before this step is used again
        notes.ended.remove(request_id)
    arrival = state.arrivals.get(request_id)
    state.sequences.pop(request_id, None)
    state.sequences[request_id] = SequenceState(
        seq_id=request_id,
        request_id=request_id,
        state="waiting",
        num_prompt=num_prompt,
        max_tokens=arrival.requested_output_tokens if arrival else 0,
        num_tokens=num_prompt,
        t_sched_ns=arrival.t_sched_ns if arrival else event.t_start_ns,
        t_submit_ns=arrival.t_submit_ns if arrival else event.t_start_ns,
    )


def _lookup(state: RunState, event: StepEvent, decision: Decision, notes: _StepNotes) -> None:
    seq = state.sequences.get(decision[1])
    if seq is not None:
        seq.cached_tokens = seq.num_computed = seq.high_water = decision[2]
        seq.miss_reason = decision[3]


def _admitted(state: RunState, event: StepEvent, decision: Decision, notes: _StepNotes) -> None:
    seq = state.sequences.get(decision[1])
    if seq is not None:
        seq.state, seq.wait_reason, seq.wait_blocker = "running", "", ""
        seq.need_blocks, seq.have_blocks = decision[3], decision[4]


def _resumed_sequence(state: RunState, event: StepEvent, decision: Decision, notes: _StepNotes) -> None:
    _admitted(state, event, decision, notes)
    seq = state.sequences.get(decision[1])
    if seq is not None:
        seq.high_water = max(seq.high_water, seq.num_computed)
        _add(state.totals, "restored_tokens", seq.num_computed)


def _skipped(state: RunState, event: StepEvent, decision: Decision, notes: _StepNotes) -> None:
    _, seq_id, reason, other, need, have = decision
    seq = state.sequences.get(seq_id)
    if seq is not None:
        seq.wait_reason, seq.wait_blocker = reason, other or ""
        seq.need_blocks, seq.have_blocks = need, have


def _forked(state: RunState, event: StepEvent, decision: Decision, notes: _StepNotes) -> None:
    """A branch begins with its parent's tokens. The blocks it gets follow; without any, it waits alone."""
    _, seq_id, parent_id = decision
    parent = state.sequences.get(parent_id)
    if parent is None:
        return
    child = SequenceState(
        seq_id=seq_id,
        request_id=parent.request_id,
        state="preempted",
        num_prompt=parent.num_prompt,
        max_tokens=parent.max_tokens,
        num_tokens=parent.num_tokens,
        num_computed=parent.num_computed,
        t_sched_ns=parent.t_sched_ns,
        t_submit_ns=parent.t_submit_ns,
        t_first_token_ns=parent.t_first_token_ns,
        t_last_token_ns=parent.t_last_token_ns,
        miss_reason=parent.miss_reason,
        high_water=parent.high_water,
    )
    state.sequences[seq_id] = child
    notes.born.append(child)


def _chunk(state: RunState, event: StepEvent, decision: Decision, notes: _StepNotes) -> None:
    _, seq_id, count, start = decision
    seq = state.sequences.get(seq_id)
    if seq is None:
        return
    seq.num_computed = end = start + count
    if start >= seq.high_water:
        new = count
    else:
        new = max(0, end - seq.high_water)
        notes.recomputed += count - new
    notes.computed += new
    if new:
        seq.high_water = end
    if state.pool is not None:
        fill(state.pool, seq.table, start, end)


def _first_token(state: RunState, event: StepEvent, decision: Decision, notes: _StepNotes) -> None:
    seq = state.sequences.get(decision[1])
    if seq is not None:
        state.ttft.add(event.t_done_ns, event.t_done_ns - seq.t_sched_ns)


def _preempted(state: RunState, event: StepEvent, decision: Decision, notes: _StepNotes) -> None:
    seq = state.sequences.get(decision[1])
    if seq is not None:
        seq.state = "preempted"
        seq.num_preemptions += 1
        seq.num_computed = 0
        seq.wait_reason = seq.wait_blocker = ""


def _ended(state: RunState, event: StepEvent, decision: Decision, notes: _StepNotes) -> None:
    notes.ended.append(decision[1])


_REQUEST_FOLDS: dict[str, RequestFold] = {
    "arrived": _arrived,
    "lookup": _lookup,
    "admitted": _admitted,
    "resumed": _resumed_sequence,
    "skipped": _skipped,
    "forked": _forked,
    "chunk": _chunk,
    "first_token": _first_token,
    "preempted": _preempted,
    "finished": _ended,
    "aborted": _ended,
}


def _emitted(state: RunState, emitted: list[tuple[str, int]], t_ns: int) -> None:
    """Tokens of one step. ``count`` tokens of a sequence at once are ``count`` gaps of an equal share of the time."""
    sequences, gaps, total = state.sequences, state.itl.points, 0
    for seq_id, count in emitted:
        total += count
        seq = sequences.get(seq_id)
        if seq is None:
            continue
        seq.num_tokens += count
        if seq.t_last_token_ns is not None:
            seq.last_itl_ns = gap = (t_ns - seq.t_last_token_ns) // count
            gaps.append((t_ns, gap))
            if count > 1:
                gaps.extend([(t_ns, gap)] * (count - 1))
        elif seq.t_first_token_ns is None:
            seq.t_first_token_ns = t_ns
        seq.t_last_token_ns = t_ns
    state.itl.expire(t_ns)
    _add(state.totals, "output_tokens", total)


def _add(totals: dict[str, int], name: str, count: int) -> None:
    totals[name] = totals.get(name, 0) + count
