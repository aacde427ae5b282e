"""Copies of the engine's state for whoever looks in: views, keyframes, the row of a finished request."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import msgspec

from kvtop.engine.allocators.base import Allocator
from kvtop.engine.allocators.caching import CachingAllocator
from kvtop.engine.errors import InvalidRequest, InvariantError
from kvtop.engine.events import BlockRow, Keyframe, RequestEvent, SequenceRow
from kvtop.engine.scheduler import Scheduler
from kvtop.engine.sequence import Request, Sequence
from kvtop.engine.types import (
    BlockState,
    BlockView,
    ExtraKey,
    FinishReason,
    KVCounters,
    RequestState,
    RequestTimes,
    RequestView,
    WaitReason,
)

if TYPE_CHECKING:
    from kvtop.engine.accounting import Accountant


QUEUED = (RequestState.WAITING, RequestState.PREEMPTED)
SUMMED = attrgetter(
    "num_output", "restored_tokens", "recomputed_tokens", "num_preemptions", "preempted_ns", "peak_blocks", "peak_saved"
)
"""What the row of a request adds up over its branches."""


def normalise_extra(extra: ExtraKey | None, request_id: str) -> tuple[tuple[str, str | int], ...]:
    """Sorted (tag, value) pairs. Raises InvalidRequest for anything but a mapping of tags to strings or integers."""
    if not extra:
        return ()
    if not isinstance(extra, Mapping):
        raise InvalidRequest(
            f"request {request_id!r}: extra_key is {extra!r}, expected tags such as {{'adapter': 'x'}}"
        )
    for tag, value in extra.items():
        if not isinstance(tag, str) or not isinstance(value, str | int):
            raise InvalidRequest(
                f"request {request_id!r}: extra_key {tag!r} is {value!r}, expected a string or integer"
            )
    return tuple(sorted(extra.items()))


def _waits_for(seq: Sequence, head_of_line: Sequence | None) -> tuple[WaitReason | None, str | None]:
    """Why ``seq`` waits, and for whom; None where it does not."""
    if seq.state not in QUEUED:
        return None, None
    if head_of_line is not None and head_of_line is not seq and not seq.candidates:
        return WaitReason.HEAD_OF_LINE, head_of_line.seq_id
    return seq.wait_reason, seq.wait_blocker


def request_view(seq: Sequence, head_of_line: Sequence | None) -> RequestView:
    reason, blocker = _waits_for(seq, head_of_line)
    return RequestView(
        request_id=seq.seq_id,
        state=seq.state,
        # Of a sequence that has ended nobody changes them any more.
        tokens=seq.tokens if seq.state is RequestState.FINISHED else tuple(seq.tokens),
        num_prompt=seq.num_prompt,
        block_table=tuple(seq.block_table),
        num_computed=seq.num_computed,
        cached_tokens=seq.cached_tokens,
        host_hit_tokens=seq.request.host_hit_tokens if seq.branch == 0 else 0,
        computed_tokens=seq.computed_tokens,
        restored_tokens=seq.restored_tokens,
        recomputed_tokens=seq.recomputed_tokens,
        preemptions=seq.num_preemptions,
        times=RequestTimes(
            t_sched_ns=seq.request.t_sched_ns,
            t_submit_ns=seq.request.t_submit_ns,
            t_first_sched_ns=seq.request.t_first_sched_ns,
            t_first_token_ns=seq.t_first_token_ns,
            t_last_token_ns=seq.t_last_token_ns,
            t_done_ns=seq.t_done_ns,
        ),
        finish_reason=seq.finish_reason,
        wait_reason=reason,
        wait_blocker=blocker,
        miss_reason=seq.request.miss_reason,
        block_tables=tuple(map(tuple, seq.block_tables)),
        text=None if seq.text is None else seq.text.text,
        prompt_logprobs=None if seq.request.prompt_logprobs is None else tuple(seq.request.prompt_logprobs),
    )


def block_view(allocator: Allocator, block: int, sequences: Iterable[Sequence]) -> BlockView:
    """Complexity: O(tables); for one block at a time, on request."""
    pool = allocator.pool
    cache = allocator.cache if isinstance(allocator, CachingAllocator) else None
    published = cache is not None and cache.is_published(block)
    return BlockView(
        block=block,
        state=pool.state(block),
        refcount=pool.refcount[block],
        owners=tuple(s.seq_id for s in sequences for table in s.block_tables for b in table if b == block),
        pins=pool.pins[block],
        tokens_filled=pool.filled[block],
        published_key=cache.key[block] if cache else None,
        last_use_step=cache.last_use_step[block] if cache and published else 0,
        uses=cache.uses[block] if cache and published else 0,
    )


def counters(allocator: Allocator, scheduler: Scheduler, accountant: Accountant) -> KVCounters:
    pool = allocator.pool
    return KVCounters(
        used=pool.num_used,
        idle=pool.num_idle,
        fresh=pool.num_fresh,
        in_transfer=pool.num_in_transfer,
        query_tokens=accountant.query_tokens,
        hit_tokens=accountant.hit_tokens,
        restored_tokens=accountant.restored_tokens,
        recomputed_tokens=accountant.recomputed_tokens,
        computed_tokens=accountant.computed_tokens,
        preemptions=scheduler.num_preemptions,
        evictions=allocator.num_evictions,
        copies=allocator.num_copies,
        host_used=allocator.host_used,
        host_cached=allocator.host_cached,
        host_hit_tokens=accountant.host_hit_tokens,
        withheld=len(pool.limit.withheld),
    )


def _asked(request: Request) -> dict[str, Any]:
    """What was asked for: the fields that are known when a request arrives."""
    spec, params = request.spec, request.params
    return {
        "request_id": request.request_id,
        "req_index": request.submission,
        "prompt_tokens": len(spec.prompt),
        "requested_output_tokens": params.max_tokens,
        "n": params.n,
        "priority": spec.priority,
        "tenant": spec.tenant,
        "klass": spec.klass,
        "session_id": spec.session_id,
        "turn": spec.turn,
        "parent_request_id": spec.parent_request_id,
        "t_sched_ns": request.t_sched_ns,
        "t_submit_ns": request.t_submit_ns,
    }


def arrived_event(request: Request) -> RequestEvent:
    return RequestEvent(phase="arrived", t_ns=request.t_submit_ns, **_asked(request))


def ended_event(request: Request, now_ns: int) -> RequestEvent:
    """The row of a request that has ended."""
    params, seqs = request.params, request.sequences
    gaps = [
        (s.t_last_token_ns - s.t_first_token_ns) // (s.num_output - 1)
        for s in seqs
        if s.num_output > 1 and s.t_last_token_ns is not None and s.t_first_token_ns is not None
        if params.num_beams == 1  # beams emit an answer at once: there is no time between its tokens
    ]
    itl = [s.itl_max_ns for s in seqs if s.itl_max_ns is not None]
    last = [s.t_last_token_ns for s in seqs if s.t_last_token_ns is not None]
    each = [SUMMED(s) for s in seqs] or [(0,) * 7]  # none: it was rejected
    output, restored, recomputed, preemptions, parked, peak, saved = map(sum, zip(*each, strict=True))
    until = request.t_first_sched_ns if request.t_first_sched_ns is not None else now_ns
    return RequestEvent(
        phase="finished",
        t_ns=now_ns,
        **_asked(request),
        output_tokens=output,
        t_first_sched_ns=request.t_first_sched_ns,
        t_first_token_ns=request.t_first_token_ns,
        t_last_token_ns=max(last, default=None),
        t_done_ns=now_ns,
        tpot_ns=sum(gaps) // len(gaps) if gaps else None,
        itl_max_ns=max(itl, default=None),
        hit_tokens=None if request.cached_tokens is None else request.cached_tokens - request.host_hit_tokens,
        host_hit_tokens=request.host_hit_tokens,
        miss_reason=request.miss_reason.value if request.miss_reason else None,
        restored_tokens=restored,
        recomputed_tokens=recomputed,
        num_preemptions=preemptions,
        preempted_ns=parked,
        queue_total_ns=max(0, until - request.t_submit_ns) + parked,
        peak_blocks=peak,
        shared_blocks_saved=saved,
        finish_reason=seqs[0].finish_reason.value if seqs and seqs[0].finish_reason else None,
    )


def rejected_event(request: Request, now_ns: int, error: str) -> RequestEvent:
    """The row of a request that never entered the queue, and the one line that says why."""
    event = ended_event(request, now_ns)
    return msgspec.structs.replace(event, finish_reason=FinishReason.REJECTED.value, error=error)


def keyframe(allocator: Allocator, scheduler: Scheduler, totals: KVCounters, step: int, now_ns: int) -> Keyframe:
    pool = allocator.pool
    cache = allocator.cache if isinstance(allocator, CachingAllocator) else None
    blocks = []
    settled = [b for b in range(pool.num_blocks) if pool.state(b) in (BlockState.IDLE, BlockState.USED)]
    for block in [*settled, *pool.limit.withheld, *pool.in_transfer()]:
        state = pool.state(block)
        published = cache is not None and cache.is_published(block)
        blocks.append(
            BlockRow(
                block=block,
                state=state.value,
                refcount=pool.refcount[block],
                filled=pool.filled[block],
                key=cache.key[block] if cache else None,
                parent_key=cache.parent_key(block) if cache and published else None,
                published_step=cache.published_step[block] if cache and published else 0,
                last_use_step=cache.last_use_step[block] if cache and published else 0,
                uses=cache.uses[block] if cache and published else 0,
                pins=pool.pins[block],
            )
        )
    rows = [_sequence_row(s, scheduler) for s in [*scheduler.running, *scheduler.waiting]]
    return Keyframe(
        step=step,
        t_ns=now_ns,
        num_blocks=pool.num_blocks,
        block_size=pool.block_size,
        blocks=blocks,
        sequences=rows,
        totals=asdict(totals),
        limit=None if pool.limit.size == pool.num_blocks else pool.limit.size,
    )


def _sequence_row(seq: Sequence, scheduler: Scheduler) -> SequenceRow:
    # No view: that copies the tokens, and an overloaded engine has a hundred million of them waiting.
    reason, blocker = _waits_for(seq, scheduler.head_of_line)
    return SequenceRow(
        seq_id=seq.seq_id,
        request_id=seq.request.request_id,
        state=seq.state.value,
        num_prompt=seq.num_prompt,
        num_tokens=seq.num_tokens,
        num_computed=seq.num_computed,
        max_tokens=seq.params.max_tokens,
        cached_tokens=seq.cached_tokens,
        num_preemptions=seq.num_preemptions,
        block_table=list(seq.block_table),
        wait_reason=reason.value if reason else "",
        wait_blocker=blocker or "",
        t_sched_ns=seq.request.t_sched_ns,
        t_submit_ns=seq.request.t_submit_ns,
        t_first_token_ns=seq.t_first_token_ns,
        t_last_token_ns=seq.t_last_token_ns,
        high_water=seq.high_water,
        num_swapped=seq.num_swapped,
        other_tables=[list(table) for table in seq.block_tables[1:]],
    )


def check_queues(scheduler: Scheduler, sequences: Mapping[str, Sequence]) -> None:
    """Raises InvariantError when a live sequence is not in exactly one queue, or the running list is out of order."""
    running, waiting = list(scheduler.running), list(scheduler.waiting)
    if sorted(s.seq_id for s in [*running, *waiting]) != sorted(sequences):
        raise InvariantError("the running and waiting lists are not exactly the live sequences")
    if any(s.state is not RequestState.RUNNING for s in running) or any(any(s.block_tables) for s in waiting):
        raise InvariantError("a running sequence is in another state, or a waiting one holds blocks")
    if [s.order for s in running] != sorted(s.order for s in running):
        raise InvariantError("the running list is not in static order")
