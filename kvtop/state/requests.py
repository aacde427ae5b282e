"""Fold decisions about requests, and the tokens of a step, into the live sequences."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from kvtop.engine.events import Decision, StepEvent
from kvtop.state.blocks import fill, one_by_one
from kvtop.state.model import RunState, SequenceState


@dataclass(slots=True)
class StepNotes:
    """Of one step: ids to forget once its tokens are counted, branches born in it, positions computed."""

    computed: int = 0
    recomputed: int = 0
    ended: list[str] = field(default_factory=list)
    born: list[SequenceState] = field(default_factory=list)


RequestFold = Callable[[RunState, StepEvent, Iterable[Decision], StepNotes], None]
"""(state, the step, its decisions of one kind in a row, notes)"""


def _arrived(state: RunState, event: StepEvent, decision: Decision, notes: StepNotes) -> None:
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
        tenant=arrival.tenant if arrival else "",
        held_since_ns=event.t_start_ns,
    )


def _lookup(state: RunState, event: StepEvent, decision: Decision, notes: StepNotes) -> None:
    seq = state.sequences.get(decision[1])
    if seq is not None:
        seq.cached_tokens = seq.num_computed = seq.high_water = decision[2]
        seq.miss_reason = decision[3]
        state.lookups.add(event.t_start_ns, seq.num_prompt, decision[2], decision[3], seq.request_id)


def _admitted(state: RunState, event: StepEvent, decision: Decision, notes: StepNotes) -> None:
    seq = state.sequences.get(decision[1])
    if seq is not None:
        seq.state, seq.wait_reason, seq.wait_blocker = "running", "", ""
        seq.need_blocks, seq.have_blocks = decision[3], decision[4]
        if decision[0] == "admitted":
            state.queue.add(event.t_start_ns, max(0, event.t_start_ns - seq.t_submit_ns))


def _resumed_sequence(state: RunState, event: StepEvent, decision: Decision, notes: StepNotes) -> None:
    _admitted(state, event, decision, notes)
    seq = state.sequences.get(decision[1])
    if seq is not None:
        seq.num_swapped = 0
        seq.high_water = max(seq.high_water, seq.num_computed)
        add(state.totals, "restored_tokens", seq.num_computed)


def _skipped(state: RunState, event: StepEvent, decision: Decision, notes: StepNotes) -> None:
    _, seq_id, reason, other, need, have = decision
    seq = state.sequences.get(seq_id)
    if seq is not None:
        seq.wait_reason, seq.wait_blocker = reason, other or ""
        seq.need_blocks, seq.have_blocks = need, have


def _forked(state: RunState, event: StepEvent, decision: Decision, notes: StepNotes) -> None:
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
        tenant=parent.tenant,
        high_water=parent.high_water,
        held_since_ns=event.t_start_ns,
    )
    state.sequences[seq_id] = child
    notes.born.append(child)


def _restarted(state: RunState, event: StepEvent, decision: Decision, notes: StepNotes) -> None:
    """A beam that was not chosen, its blocks freed before, begins again as a branch. What it counted it keeps."""
    old = state.sequences.get(decision[1])
    _forked(state, event, decision, notes)
    new = state.sequences.get(decision[1])
    if old is not None and new is not None:
        new.cached_tokens, new.num_preemptions, new.run = old.cached_tokens, old.num_preemptions, old.run
        new.held_ns, new.held_since_ns = old.block_ns(event.t_start_ns), event.t_start_ns
        new.recomputed = old.recomputed


def _chosen(state: RunState, event: StepEvent, decision: Decision, notes: StepNotes) -> None:
    seq = state.sequences.get(decision[1])
    if seq is not None:
        seq.num_tokens = decision[2]
        if seq.wait_reason == "beams":
            seq.wait_reason = ""


def fold_chunks(state: RunState, event: StepEvent, run: Iterable[Decision], notes: StepNotes) -> None:
    """Chunks in a row: half of all decisions, most of them one token of a sequence that decodes."""
    sequences, pool, step = state.sequences, state.pool, event.step
    computed = 0
    size, filled, mark = (
        (pool.block_size, pool.filled, pool.dirty.add) if pool is not None else (0, array("q"), set[int]().add)
    )
    for decision in run:
        _, seq_id, count, start = decision
        seq = sequences.get(seq_id)
        if seq is None:
            continue
        seq.num_computed = end = start + count
        entry = seq.run
        if (
            entry is not None
            and entry.grows
            and count == 1
            and step - entry.step == entry.count == start - entry.decision[3]
        ):
            entry.count += 1
        elif (log := state.logs.live.get(seq.request_id)) is not None:
            seq.run = log.add_chunk(decision, step, event.t_start_ns)
        if start >= seq.high_water:
            computed += count
            seq.high_water = end
        else:
            computed += _computed_again(seq, count, end, notes)
        if pool is None:
            continue
        if count == 1 and not seq.other_tables and (index := start // size) < len(table := seq.table):
            block, want = table[index], end - index * size
            if filled[block] < want:
                filled[block] = want
                mark(block)
            continue
        for table in seq.tables:
            fill(pool, table, start, end)
    notes.computed += computed


def _computed_again(seq: SequenceState, count: int, end: int, notes: StepNotes) -> int:
    """A chunk that begins below the highest position so far. Returns how many of its positions are new."""
    new = max(0, end - seq.high_water)
    notes.recomputed += count - new
    seq.recomputed += count - new
    if new:
        seq.high_water = end
    return new


def _first_token(state: RunState, event: StepEvent, decision: Decision, notes: StepNotes) -> None:
    seq = state.sequences.get(decision[1])
    if seq is not None:
        state.ttft.add(event.t_done_ns, event.t_done_ns - seq.t_sched_ns)


def _preempted(state: RunState, event: StepEvent, decision: Decision, notes: StepNotes) -> None:
    seq = state.sequences.get(decision[1])
    if seq is not None:
        seq.state = "preempted"
        seq.num_preemptions += 1
        seq.num_swapped = 0 if decision[4] else seq.num_computed  # nothing lost: it waits in host memory
        seq.num_computed = 0
        seq.wait_reason = seq.wait_blocker = ""
        if seq.t_last_token_ns is not None:
            state.preempted_gaps.away.setdefault(seq.seq_id, seq.t_last_token_ns)


def _ended(state: RunState, event: StepEvent, decision: Decision, notes: StepNotes) -> None:
    notes.ended.append(decision[1])


REQUEST_FOLDS: dict[str, RequestFold] = {
    "chunk": fold_chunks,
    "arrived": one_by_one(_arrived),
    "lookup": one_by_one(_lookup),
    "admitted": one_by_one(_admitted),
    "resumed": one_by_one(_resumed_sequence),
    "skipped": one_by_one(_skipped),
    "forked": one_by_one(_forked),
    "restarted": one_by_one(_restarted),
    "chosen": one_by_one(_chosen),
    "first_token": one_by_one(_first_token),
    "preempted": one_by_one(_preempted),
    "finished": one_by_one(_ended),
    "aborted": one_by_one(_ended),
}


def fold_emitted(state: RunState, emitted: list[tuple[str, int]], t_ns: int) -> None:
    """Tokens of one step. ``count`` tokens of a sequence at once are ``count`` gaps of an equal share of the time."""
    sequences, total = state.sequences, 0
    gaps: dict[int, int] = {}  # gap -> how many
    for seq_id, count in emitted:
        total += count
        seq = sequences.get(seq_id)
        if seq is None:
            continue
        seq.num_tokens += count
        if seq.t_last_token_ns is not None:
            seq.last_itl_ns = gap = (t_ns - seq.t_last_token_ns) // count
            gaps[gap] = gaps.get(gap, 0) + count
        elif seq.t_first_token_ns is None:
            seq.t_first_token_ns = t_ns
        seq.t_last_token_ns = t_ns
    for gap, count in gaps.items():
        state.itl.add(t_ns, gap, count)
    state.itl.expire(t_ns)
    add(state.totals, "output_tokens", total)


def add(totals: dict[str, int], name: str, count: int) -> None:
    totals[name] = totals.get(name, 0) + count
