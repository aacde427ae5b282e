"""Fold block decisions into the pool: the exact block -> owner map, from the log alone.

No handler costs more than the table entries it touches, and nothing here walks the pool.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import wraps
from typing import TypeVar

from kvtop.engine.events import BlockRow, Decision, Keyframe
from kvtop.engine.types import NULL_BLOCK
from kvtop.state import block_runs
from kvtop.state.block_runs import Sequences
from kvtop.state.model import FRESH, IDLE, IN_TRANSFER, USED, WITHHELD, PoolState, SequenceState

BlockFold = Callable[[PoolState, Sequences, Iterable[Decision], int], None]
"""(pool, live sequences, decisions of one kind in a row, step)"""

First = TypeVar("First")
Second = TypeVar("Second")
Last = TypeVar("Last")
_STATES = {"fresh": FRESH, "idle": IDLE, "used": USED, "in_transfer": IN_TRANSFER, "withheld": WITHHELD}


def _set_state(pool: PoolState, block: int, state: int) -> None:
    pool.counts[pool.state[block]] -= 1
    pool.counts[state] += 1
    pool.state[block] = state


def _ref(pool: PoolState, block: int) -> None:
    if pool.refcount[block] == 0:
        pool.transfer.pop(block, None)
        if pool.state[block] != USED:
            _set_state(pool, block, USED)
    pool.refcount[block] += 1
    pool.dirty.add(block)


def _unref(pool: PoolState, block: int) -> None:
    """The block keeps its state until the step ends: only then it is known whether its free is deferred."""
    pool.refcount[block] -= 1
    pool.dirty.add(block)
    if pool.refcount[block] == 0:
        pool.transfer[block] = None


def _disown(pool: PoolState, block: int, seq_id: str) -> None:
    owners = pool.owners[block]
    if seq_id in owners:
        owners.remove(seq_id)


def _to_fresh(pool: PoolState, block: int) -> None:
    _set_state(pool, block, FRESH)
    pool.filled[block] = 0
    pool.dirty.add(block)


def _forget_key(pool: PoolState, block: int) -> None:
    pool.key[block] = pool.parent_key[block] = None
    pool.published_step[block] = pool.last_use_step[block] = pool.uses[block] = 0
    pool.dirty.add(block)
    pool.rekeyed.add(block)


def _append(pool: PoolState, seq: SequenceState, group: int, block: int, position: int) -> None:
    """Append to the group's table; what lies before ``position`` and was never named fell out of the window."""
    table = seq.table_of(group)
    block_runs.fell_out(table, pool.block_size, position)
    table.append(block)
    seq.hold(1, pool.now_ns)


def _share(pool: PoolState, sequences: Sequences, decision: Decision, step: int) -> None:
    _, seq_id, group, block, position, reason = decision
    _ref(pool, block)
    pool.owners[block].append(seq_id)
    if reason != "fork":
        pool.last_use_step[block] = step
    seq = sequences.get(seq_id)
    if reason == "hit":
        pool.uses[block] += 1
    if seq is None:
        return
    if reason == "dedup":
        seq.table_of(group)[position // pool.block_size] = block
        return
    _append(pool, seq, group, block, position)
    seq.state = "running"
    if reason == "hit":
        seq.num_computed = position + pool.block_size


def _copy(pool: PoolState, sequences: Sequences, decision: Decision, step: int) -> None:
    """Copy-on-write replaces the source in the table; a copying fork has its own block there already."""
    _, seq_id, group, block, other, position = decision
    filled = pool.filled[other]
    seq, index = sequences.get(seq_id), position // pool.block_size
    if seq is None or seq.table_of(group)[index] != block:
        _ref(pool, block)
        pool.owners[block] = [seq_id]
        pool.since_step[block] = step
        _disown(pool, other, seq_id)
        _unref(pool, other)
        if seq is not None:
            seq.table_of(group)[index] = block
    else:
        seq.num_computed = position + filled
    pool.filled[block] = filled
    pool.dirty.add(block)


def _unpublish(pool: PoolState, sequences: Sequences, decision: Decision, step: int) -> None:
    block = decision[2]
    _forget_key(pool, block)
    if pool.refcount[block] == 0 and block not in pool.transfer:
        _to_fresh(pool, block)


def _withhold(pool: PoolState, sequences: Sequences, decision: Decision, step: int) -> None:
    """A block without content leaves circulation; its release may be as recent as this very step."""
    block = decision[1]
    pool.transfer.pop(block, None)
    _to_fresh(pool, block)
    _set_state(pool, block, WITHHELD)


def _give_back(pool: PoolState, sequences: Sequences, decision: Decision, step: int) -> None:
    _to_fresh(pool, decision[1])


def _config(pool: PoolState, sequences: Sequences, decision: Decision, step: int) -> None:
    name, _, value = decision[1].partition("=")
    if name == "num_blocks":
        pool.limit = int(value)


def _pin(pool: PoolState, sequences: Sequences, decision: Decision, step: int) -> None:
    block = decision[2]
    pool.pins[block] += 1
    _ref(pool, block)


def _unpin(pool: PoolState, sequences: Sequences, decision: Decision, step: int) -> None:
    block = decision[2]
    pool.pins[block] -= 1
    _unref(pool, block)


def _swap_in(pool: PoolState, sequences: Sequences, decision: Decision, step: int) -> None:
    """The next block of a swapped-out sequence is back, in a block that it has just been given."""
    _, seq_id, group, block, _ = decision
    seq = sequences.get(seq_id)
    if seq is not None:
        table = seq.table_of(group)
        index = seq.num_computed // pool.block_size  # of the first group they come one after the other
        if index >= len(table) or table[index] != block:
            index = table.index(block)
        start = index * pool.block_size
        end = min(start + pool.block_size, seq.num_swapped)
        seq.num_computed = max(seq.num_computed, end)
        fill(pool, table, start, end)


def _host_load(pool: PoolState, sequences: Sequences, decision: Decision, step: int) -> None:
    """A block that the sequence has just been given is filled from the host tier: it follows what was found before."""
    _, seq_id, _, block, _ = decision
    pool.filled[block] = pool.block_size
    pool.dirty.add(block)
    seq = sequences.get(seq_id)
    if seq is not None:
        seq.num_computed += pool.block_size


def fill(pool: PoolState, table: list[int], start: int, end: int) -> None:
    """Positions ``start .. end - 1`` of the sequence with this table are written."""
    size, filled = pool.block_size, pool.filled
    for index in range(start // size, min(-(-end // size), len(table))):
        block, want = table[index], end - index * size
        if want > size:
            want = size
        if filled[block] < want:
            filled[block] = want
            pool.dirty.add(block)


def one_by_one(
    fold: Callable[[First, Second, Decision, Last], None],
) -> Callable[[First, Second, Iterable[Decision], Last], None]:
    """A fold of decisions in a row from the fold of one."""

    @wraps(fold)
    def fold_run(first: First, second: Second, run: Iterable[Decision], last: Last) -> None:
        for decision in run:
            fold(first, second, decision, last)

    return fold_run


BLOCK_FOLDS: dict[str, BlockFold] = {
    "alloc": block_runs.alloc,
    "free": block_runs.free,
    "publish": block_runs.publish,
    "evict": block_runs.evict,
    "share": one_by_one(_share),
    "copy": one_by_one(_copy),
    "unpublish": one_by_one(_unpublish),
    "pin": one_by_one(_pin),
    "unpin": one_by_one(_unpin),
    "withhold": one_by_one(_withhold),
    "give_back": one_by_one(_give_back),
    "config": one_by_one(_config),
    "swap_in": one_by_one(_swap_in),
    "host_load": one_by_one(_host_load),
}


def pool_of(keyframe: Keyframe, known: PoolState | None = None) -> PoolState:
    """The pool as a keyframe describes it; every block is dirty. What a keyframe does not carry is kept from ``known``
    for blocks that hold what they held there."""
    pool = PoolState.empty(keyframe.num_blocks, keyframe.block_size)
    pool.limit = keyframe.num_blocks if keyframe.limit is None else keyframe.limit
    for row in keyframe.blocks:
        _place(pool, row)
    for seq in keyframe.sequences:
        for table in (seq.block_table, *seq.other_tables):
            for block in table:
                if block != NULL_BLOCK:
                    pool.owners[block].append(seq.seq_id)
    if known is not None and (known.num_blocks, known.block_size) == (pool.num_blocks, pool.block_size):
        for row in keyframe.blocks:
            if _is_same(pool, known, row.block):
                block = row.block
                pool.publisher[block], pool.tenant[block] = known.publisher[block], known.tenant[block]
                pool.since_step[block] = known.since_step[block]
    return pool


def _is_same(pool: PoolState, known: PoolState, block: int) -> bool:
    """Whether a block holds in ``pool`` what it held in ``known``."""
    if pool.key[block] != known.key[block]:
        return False
    owners = pool.owners[block]
    return pool.key[block] is not None or (bool(owners) and sorted(owners) == sorted(known.owners[block]))


def _place(pool: PoolState, row: BlockRow) -> None:
    block = row.block
    _set_state(pool, block, _STATES[row.state])
    pool.refcount[block], pool.filled[block], pool.pins[block] = row.refcount, row.filled, row.pins
    pool.key[block], pool.parent_key[block] = row.key, row.parent_key
    pool.published_step[block], pool.last_use_step[block] = row.published_step, row.last_use_step
    pool.uses[block] = row.uses
    if pool.state[block] == IN_TRANSFER:
        pool.transfer[block] = None
