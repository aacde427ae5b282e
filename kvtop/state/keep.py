"""Fold decisions into the log of the request they are about, and of others who have to tell of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import wraps
from itertools import groupby
from operator import itemgetter

from kvtop.engine.events import Decision, StepEvent
from kvtop.state.model import RunState
from kvtop.state.request_logs import Entry, RequestLog, known

Keep = Callable[[RunState, StepEvent, list[Decision]], None]
"""(state, the step, its decisions of one kind in a row)"""


def _log_of(state: RunState, seq_id: str) -> RequestLog | None:
    seq = state.sequences.get(seq_id)
    return None if seq is None else state.logs.live.get(seq.request_id)


def _arrived(state: RunState, event: StepEvent, decision: Decision) -> None:
    log = state.logs.arrived(decision[1], state.arrivals.get(decision[1]))
    log.add(Entry(event.step, decision))


def _rejected(state: RunState, event: StepEvent, decision: Decision) -> None:
    log = state.logs.arrived(decision[1], state.arrivals.get(decision[1]), num_live=0)
    log.add(Entry(event.step, decision))
    log.last_step = event.step


def _own(state: RunState, event: StepEvent, decision: Decision) -> None:
    log = _log_of(state, decision[1])
    if log is not None:
        log.add(Entry(event.step, decision))


def _lookup(state: RunState, event: StepEvent, decision: Decision) -> None:
    """Also told by the one who evicted the block it missed."""
    _own(state, event, decision)
    if (seq := state.sequences.get(decision[1])) is not None:
        state.cache.looked_up(seq, state.pool, decision, event.step)
    if decision[3] == "evicted" and decision[4]:
        _beside(state, event, decision, decision[4])


def _admitted(state: RunState, event: StepEvent, decision: Decision) -> None:
    _own(state, event, decision)
    if state.pool is not None:
        state.cache.admitted(decision[1], decision[2], state.pool.block_size)


def _preempted(state: RunState, event: StepEvent, decision: Decision) -> None:
    """Also told by the one it was preempted for."""
    _own(state, event, decision)
    if decision[3]:
        _beside(state, event, decision, decision[3])


def _beside(state: RunState, event: StepEvent, decision: Decision, other: str) -> None:
    seq = state.sequences.get(other)
    log = state.logs.live.get(seq.request_id) if seq is not None else state.logs.find(other)
    if log is not None and log is not _log_of(state, decision[1]):
        log.add_beside(Entry(event.step, decision))


def _skipped(state: RunState, event: StepEvent, decision: Decision) -> None:
    other = state.sequences.get(decision[3]) if decision[3] else None
    entry = Entry(event.step, decision, held_blocks=other.num_held if other is not None else None)
    state.logs.refusals.append(entry)
    log = _log_of(state, decision[1])
    if log is not None:
        log.add(entry)


def _forked(state: RunState, event: StepEvent, decision: Decision) -> None:
    log = _log_of(state, decision[1])
    if log is None:
        return
    log.num_live += 1
    log.add(Entry(event.step, decision))
    if count := _given(state, event)[decision[1]]:
        log.add(Entry(event.step, ("alloc", decision[1]), count=count))


def _restarted(state: RunState, event: StepEvent, decision: Decision) -> None:
    log = _log_of(state, decision[1])
    if log is not None:
        log.add(Entry(event.step, decision))
        since = event.decisions[event.decisions.index(decision) :]  # blocks before that are those it had to give back
        if count := sum(d[1] == decision[1] for d in since if d[0] in ("alloc", "share")):
            log.add(Entry(event.step, ("alloc", decision[1]), count=count))


def _chosen(state: RunState, event: StepEvent, decision: Decision) -> None:
    """That it is a beam, and how a wait for its group ended. The others say only what a chunk says."""
    seq, log = state.sequences.get(decision[1]), _log_of(state, decision[1])
    if seq is not None and log is not None and (seq.state != "running" or decision[2] == seq.num_prompt + 1):
        log.add_beside(Entry(event.step, decision))


def _given(state: RunState, event: StepEvent) -> Counter[str]:
    """Blocks that each sequence was given in this step; counted once for all that are born in it."""
    cached = state.logs.given
    if cached is None or cached[0] is not event:
        given = Counter(decision[1] for decision in event.decisions if decision[0] in ("alloc", "share"))
        cached = state.logs.given = (event, given)
    return cached[1]


def _ended(state: RunState, event: StepEvent, decision: Decision) -> None:
    state.cache.ended(decision[1])
    log = _log_of(state, decision[1])
    if log is not None:
        log.num_live -= 1
        log.last_step = event.step
        log.add(Entry(event.step, decision))


def _share(state: RunState, event: StepEvent, decision: Decision) -> None:
    if decision[5] != "fork" and (log := _log_of(state, decision[1])) is not None:
        log.add_share(decision, event.step)


def _beside_own(state: RunState, event: StepEvent, decision: Decision) -> None:
    log = _log_of(state, decision[1])
    if log is not None:
        log.add_beside(Entry(event.step, decision))


def _publish(state: RunState, event: StepEvent, run: list[Decision]) -> None:
    if state.pool is not None:
        state.cache.published(state.sequences, state.pool, run, event.step)


def _host_load(state: RunState, event: StepEvent, decision: Decision) -> None:
    state.cache.loaded[decision[3]] = event.step


def _cleared(state: RunState, event: StepEvent, decision: Decision) -> None:
    state.cache.ghosts.clear()  # the reset would have dropped them, too


_FOR_WHOM = itemgetter(1)


def _evict(state: RunState, event: StepEvent, run: list[Decision]) -> None:
    publisher = state.pool.publisher if state.pool is not None else None
    for seq_id, evicted in groupby(run, _FOR_WHOM):
        own = list(evicted)
        state.cache.evicted([decision[4] for decision in own if not decision[2]], event.step, seq_id)
        log = _log_of(state, seq_id)
        if log is not None:
            log.add_evictions(own, event.step, publisher)


def _one_by_one(keep: Callable[[RunState, StepEvent, Decision], None]) -> Keep:
    @wraps(keep)
    def keep_run(state: RunState, event: StepEvent, run: list[Decision]) -> None:
        for decision in run:
            keep(state, event, decision)

    return keep_run


KEEP: dict[str, Keep] = {
    "arrived": _one_by_one(_arrived),
    "rejected": _one_by_one(_rejected),
    "host_hit": _one_by_one(_beside_own),
    "lookup": _one_by_one(_lookup),
    "admitted": _one_by_one(_admitted),
    "resumed": _one_by_one(_admitted),
    "skipped": _one_by_one(_skipped),
    "forked": _one_by_one(_forked),
    "restarted": _one_by_one(_restarted),
    "chosen": _one_by_one(_chosen),
    "first_token": _one_by_one(_own),
    "preempted": _one_by_one(_preempted),
    "finished": _one_by_one(_ended),
    "aborted": _one_by_one(_ended),
    "share": _one_by_one(_share),
    "copy": _one_by_one(_beside_own),
    "publish": _publish,
    "evict": _evict,
    "host_load": _one_by_one(_host_load),
    "cleared": _one_by_one(_cleared),
}
"""Each is called after the decisions have been folded into the pool and the sequences."""


def end_step(state: RunState, event: StepEvent) -> None:
    """Remember when the step was; requests whose generation of entries is full begin another."""
    logs = state.logs
    logs.end_step(event)
    if not logs.full:
        return
    for log in {id(log): log for log in logs.full}.values():
        if not log.num_live:
            continue
        live = [seq for seq in state.sequences.values() if seq.request_id == log.request_id]
        rows = [known(seq.seq_id, seq.state, seq.num_tokens, seq.num_computed) for seq in live]
        log.begin_generation(rows, event.step + 1)
    logs.full.clear()
