"""Fold the event stream into a ``RunState``: live, from a recording, from the start or from any keyframe."""

from __future__ import annotations

from collections.abc import Callable
from heapq import nsmallest
from itertools import groupby
from operator import itemgetter
from typing import Any

from kvtop.engine.events import (
    Answered,
    ConfigChanged,
    Event,
    Gap,
    Keyframe,
    KvEvents,
    Notice,
    Paused,
    PromptKeys,
    RequestEvent,
    Resumed,
    RunEnded,
    RunStarted,
    Sample,
    SequenceRow,
    Stalled,
    StepEvent,
)
from kvtop.state.attached import EXECUTOR
from kvtop.state.attached_fold import attached_of, fold_kv_events, fold_sample
from kvtop.state.block_runs import settle
from kvtop.state.blocks import BLOCK_FOLDS, pool_of
from kvtop.state.keep import KEEP, end_step
from kvtop.state.model import RunState, SequenceState
from kvtop.state.requests import REQUEST_FOLDS, StepNotes, add, fold_emitted


def reduce(state: RunState, event: Event) -> RunState:
    """``state`` with ``event`` folded in, in place. Complexity: O(decisions of the event); no I/O."""
    _EVENT_FOLDS[type(event)](state, event)
    state.version += 1
    return state


# -- events ------------------------------------------------------------------------------------------------------


def _run_started(state: RunState, event: RunStarted) -> None:
    state.run_id, state.manifest, state.status = event.run_id, event.manifest, "running"
    state.notice, state.progress = "", None
    if event.manifest.get("executor") == EXECUTOR:
        attached_of(state)


_KIND = itemgetter(0)


def _step(state: RunState, event: StepEvent) -> None:
    state.step, state.t_ns, state.last_step = event.step, event.t_done_ns, event
    state.head_of_line = event.head_of_line
    notes = StepNotes()
    pool, sequences, step = state.pool, state.sequences, event.step
    if pool is not None:
        pool.now_ns = event.t_start_ns
    state.last_runs = [(kind, list(run)) for kind, run in groupby(event.decisions, _KIND)]
    for kind, run in state.last_runs:
        if fold := BLOCK_FOLDS.get(kind):
            if pool is not None:
                fold(pool, sequences, run, step)
        elif fold := REQUEST_FOLDS.get(kind):
            fold(state, event, run, notes)
        if keep := KEEP.get(kind):
            keep(state, event, run)
    if event.emitted:
        fold_emitted(state, event.emitted, event.t_done_ns)
        if state.preempted_gaps.away:
            state.preempted_gaps.back(sequences, event.t_done_ns)
    for seq_id in notes.ended:  # only now: their last tokens are in ``emitted``
        seq = sequences.pop(seq_id, None)
        if seq is not None:
            _charge_tenant(state, seq)
    for seq in notes.born:
        if seq.state != "running":  # it got no blocks: nothing of it is computed
            seq.num_computed = 0
    if pool is not None:
        settle(pool, event.in_transfer_blocks)
    end_step(state, event)
    _count(state.totals, event, notes)
    state.history.add(event)


MOST_TENANTS = 1_024


def _charge_tenant(state: RunState, seq: SequenceState) -> None:
    arrival = state.arrivals.get(seq.request_id)
    costs = state.tenant_block_ns
    add(costs, arrival.tenant if arrival else "", seq.block_ns(state.t_ns))
    if len(costs) > MOST_TENANTS:  # clients choose their names: who has cost least is forgotten
        for name in nsmallest(len(costs) // 2, costs, key=lambda name: (costs[name], name)):
            del costs[name]


_ADDED_UP = (
    "query_tokens", "hit_tokens", "host_hit_tokens", "evictions", "preemptions", "copies", "prefill_tokens",
    "decode_tokens",
)  # fmt: skip


def _count(totals: dict[str, int], event: StepEvent, notes: StepNotes) -> None:
    for name in _ADDED_UP:
        totals[name] = totals.get(name, 0) + getattr(event, name)
    add(totals, "computed_tokens", notes.computed)
    add(totals, "recomputed_tokens", notes.recomputed)
    totals["used"], totals["idle"] = event.used_blocks, event.idle_blocks
    totals["fresh"], totals["in_transfer"] = event.fresh_blocks, event.in_transfer_blocks
    totals["withheld"] = event.withheld_blocks
    totals["host_used"], totals["host_cached"] = event.host_blocks, event.host_cached_blocks


def _request(state: RunState, event: RequestEvent) -> None:
    state.t_ns = max(state.t_ns, event.t_ns)
    if event.phase == "arrived":
        state.arrivals[event.request_id] = event
        return
    state.arrivals.pop(event.request_id, None)
    state.finished.append(event)
    state.logs.has_ended(event)
    if event.finish_reason == "rejected":
        state.num_rejected += 1
    else:
        state.num_finished += 1


def _keyframe(state: RunState, event: Keyframe) -> None:
    state.t_ns, state.step = max(state.t_ns, event.t_ns), max(state.step, event.step)
    state.pool = pool_of(event, state.pool)
    rows = sorted(event.sequences, key=lambda row: row.t_submit_ns)
    state.sequences = {row.seq_id: _sequence(row, state.sequences.get(row.seq_id), state.t_ns) for row in rows}
    waiting = [row for row in event.sequences if row.state != "running"]
    state.head_of_line = next((row.wait_blocker for row in waiting if row.wait_reason == "head_of_line"), "")
    if not state.head_of_line:
        state.head_of_line = next((row.seq_id for row in waiting if row.wait_reason not in ("", "beams")), "")
    state.totals.update(event.totals)
    state.logs.resync(event.sequences, event.step, state.arrivals)


def _sequence(row: SequenceRow, known: SequenceState | None, now_ns: int) -> SequenceState:
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
    seq.high_water, seq.num_swapped = row.high_water, row.num_swapped
    seq.other_tables = [list(table) for table in row.other_tables]
    seq.num_held, seq.held_since_ns = len(seq.held), now_ns
    if known is not None:
        seq.miss_reason, seq.last_itl_ns = known.miss_reason, known.last_itl_ns
        seq.held_ns, seq.recomputed = known.block_ns(now_ns), known.recomputed
        seq.tenant = known.tenant
        seq.need_blocks, seq.have_blocks = known.need_blocks, known.have_blocks
        if row.wait_reason == "head_of_line":  # its own reason, if it ever was the head
            seq.wait_reason, seq.wait_blocker = known.wait_reason, known.wait_blocker
    return seq


def _paused(state: RunState, event: Paused) -> None:
    state.status, state.t_ns = "paused", max(state.t_ns, event.t_ns)
    state.paused_by = event.reason


def _resumed(state: RunState, event: Resumed) -> None:
    state.status, state.t_ns = "running", max(state.t_ns, event.t_ns)
    state.paused_by = ""


def _config_changed(state: RunState, event: ConfigChanged) -> None:
    # The manifest's num_blocks is what was allocated, and stays so.
    changes = {"usable_blocks" if name == "num_blocks" else name: value for name, value in event.changes.items()}
    state.manifest = {**state.manifest, **changes}


def _stalled(state: RunState, event: Stalled) -> None:
    who = event.request_id or "the run"
    state.stalled = f"{who}: {event.reason} (needs {event.need_blocks}, has {event.have_blocks})"


def _gap(state: RunState, event: Gap) -> None:
    state.events_dropped += event.dropped
    state.logs.break_off()
    state.cache.break_off()


def _notice(state: RunState, event: Notice) -> None:
    if event.level == "info" and state.manifest and state.notice_level != "info":
        return  # once the run goes on, what is being done is no reason to forget a warning
    state.notice, state.notice_level, state.progress = event.text, event.level, event.progress


def _for_who_asked(state: RunState, event: Answered | PromptKeys) -> None:
    """An answer to whoever asked: nothing has changed by it that the steps do not tell."""


def _run_ended(state: RunState, event: RunEnded) -> None:
    state.status, state.error, state.traceback = event.status, event.error, event.traceback
    state.t_ns, state.progress = max(state.t_ns, event.t_ns), None
    if state.notice_level == "info":  # nothing is being done any more
        state.notice = ""


_EVENT_FOLDS: dict[type[Event], Callable[[RunState, Any], None]] = {
    RunStarted: _run_started,
    StepEvent: _step,
    Sample: fold_sample,
    KvEvents: fold_kv_events,
    RequestEvent: _request,
    Keyframe: _keyframe,
    Paused: _paused,
    Resumed: _resumed,
    ConfigChanged: _config_changed,
    Stalled: _stalled,
    Gap: _gap,
    Notice: _notice,
    Answered: _for_who_asked,
    PromptKeys: _for_who_asked,
    RunEnded: _run_ended,
}
