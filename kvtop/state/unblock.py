"""What a waiting request needs, what there is, and when it should get it if things go on as they are."""

from __future__ import annotations

from dataclasses import dataclass

from kvtop.state.model import FRESH, IDLE, PoolState, RunState, SequenceState
from kvtop.state.request_rows import LiveRow
from kvtop.state.windows import is_decoding

FOR_BLOCKS, FOR_SEATS = ("no_blocks",), ("seats",)


@dataclass(frozen=True, slots=True)
class Estimate:
    """``ns`` from now, once those named in ``after`` have ended; each is taken to run to its token limit."""

    ns: float
    after: list[str]


def available_blocks(state: RunState) -> int | None:
    """Blocks that an admission could have now: fresh + idle, less what is promised to those who were admitted.

    None without a pool, and where blocks are not paged in one KV group: then other rules hold.
    """
    pool = state.pool
    if pool is None or not _is_paged(state):
        return None
    promised = sum(_promised(pool, seq) for seq in state.sequences.values())
    return max(0, pool.counts[FRESH] + pool.counts[IDLE] - promised)


def _is_paged(state: RunState) -> bool:
    one_group = not any(seq.other_tables for seq in state.sequences.values())
    return one_group and state.manifest.get("allocator") in (None, "paged")


def _promised(pool: PoolState, seq: SequenceState) -> int:
    """Blocks that an admitted sequence lacks for the tokens it knows; decoding, it asks when it gets there."""
    if seq.state != "running" or is_decoding(seq):
        return 0
    return max(0, -(-seq.num_tokens // pool.block_size) - seq.num_held)


def unblocks(state: RunState, seq: SequenceState) -> Estimate | None:
    """When the head of the queue should be admitted; None for those behind it, and where nothing tells."""
    reason, _ = state.wait_reason(seq)
    if reason in FOR_SEATS:
        ends = _ends(state)
        return Estimate(ends[0][0], [ends[0][1].seq_id]) if ends else None
    if reason in FOR_BLOCKS and seq.need_blocks is not None:
        return _blocks(state, seq.need_blocks)
    return None


def _blocks(state: RunState, need: int) -> Estimate | None:
    """Walk along the ends of those who run, until what they give back, less what the others grow by, is enough."""
    have, pool = available_blocks(state), state.pool
    if have is None or pool is None:
        return None
    running, freed, after = _ends(state), 0, []
    for place, (ns, seq) in enumerate(running):
        freed += sum(pool.refcount[block] == 1 for block in seq.held)
        after.append(seq.seq_id)
        grown = sum(_growth(pool, other, ns) for _, other in running[place + 1 :])
        if have + freed - grown >= need:
            return Estimate(ns, after)
    return None


def _growth(pool: PoolState, seq: SequenceState, ns: float) -> int:
    """Blocks that a decoding sequence takes within ``ns``."""
    tokens = int(ns / seq.last_itl_ns) if seq.last_itl_ns else 0
    return max(0, -(-(seq.num_tokens + tokens) // pool.block_size) - seq.num_held)


def _ends(state: RunState) -> list[tuple[float, SequenceState]]:
    """Decoding sequences by when they reach their token limit."""
    rows = [(LiveRow(state, seq).eta_ns, seq) for seq in state.sequences.values()]
    known = [(ns, seq) for ns, seq in rows if ns is not None]
    return sorted(known, key=lambda row: (row[0], row[1].seq_id))
