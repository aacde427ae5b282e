"""The block decisions that come by the thousand a second, folded a run at a time: decisions of one kind in a row.

A block costs no call here: what it changes is written out, with the columns of the pool at hand for the whole run.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from kvtop.engine.events import Decision
from kvtop.engine.types import NULL_BLOCK
from kvtop.state.model import FRESH, IDLE, IN_TRANSFER, USED, PoolState, SequenceState

Sequences = dict[str, SequenceState]


def alloc(pool: PoolState, sequences: Sequences, run: Iterable[Decision], step: int) -> None:
    """Blocks are given to sequences, at the end of their tables."""
    states, counts, refcount, filled = pool.state, pool.counts, pool.refcount, pool.filled
    owners, since, transfer, size, now_ns = pool.owners, pool.since_step, pool.transfer, pool.block_size, pool.now_ns
    mark, last, seq = pool.dirty.add, None, None
    for _, seq_id, group, block, position in run:
        if not refcount[block]:
            if transfer:
                transfer.pop(block, None)
            if (state := states[block]) != USED:
                counts[state] -= 1
                counts[USED] += 1
                states[block] = USED
        refcount[block] += 1
        mark(block)
        filled[block] = 0
        owners[block] = [seq_id]
        since[block] = step
        if seq_id != last:
            last, seq = seq_id, sequences.get(seq_id)
        if seq is None:
            continue
        if seq.state != "running":  # neither shared with its parent nor found: a branch that waited has nothing yet
            seq.num_computed = 0
            seq.state = "running"
        table = seq.table_of(group) if group else seq.table
        if len(table) * size < position:
            fell_out(table, size, position)
        table.append(block)
        if seq.held_since_ns != now_ns:
            seq.hold(0, now_ns)
        seq.num_held += 1


def fell_out(table: list[int], size: int, position: int) -> None:
    """What lies before ``position`` and was never named fell out of the window."""
    while len(table) * size < position:
        table.append(NULL_BLOCK)


def free(pool: PoolState, sequences: Sequences, run: Iterable[Decision], step: int) -> None:
    """Sequences let go of blocks. These keep their state until the step ends: only then it is known whether the free
    is deferred."""
    refcount, owners, keys, last_use = pool.refcount, pool.owners, pool.key, pool.last_use_step
    transfer, mark, now_ns = pool.transfer, pool.dirty.add, pool.now_ns
    last, seq = None, None
    for _, seq_id, group, block, reason in run:
        owned = owners[block]
        if seq_id in owned:
            owned.remove(seq_id)
        refcount[block] -= 1
        mark(block)
        if not refcount[block]:
            transfer[block] = None
        if reason == "dedup":  # its place in the table was taken by the published block
            continue
        if keys[block] is not None:
            last_use[block] = step
        if seq_id != last:
            last, seq = seq_id, sequences.get(seq_id)
        if seq is None or not (table := seq.table_of(group) if group else seq.table):
            continue
        if seq.held_since_ns != now_ns:
            seq.hold(0, now_ns)
        seq.num_held -= 1
        if reason == "window":
            table[table.index(block)] = NULL_BLOCK
            continue
        table.pop()  # tail first
        while table and table[-1] == NULL_BLOCK:
            table.pop()


def publish(pool: PoolState, sequences: Sequences, run: Iterable[Decision], step: int) -> None:
    """Blocks get keys under which they can be found."""
    keys, filled, mark, rekeyed = pool.key, pool.filled, pool.dirty.add, pool.rekeyed.add
    last, tenant = None, ""
    for _, seq_id, _, block, key, parent_key in run:
        if seq_id != last:
            last, seq = seq_id, sequences.get(seq_id)
            tenant = "" if seq is None else seq.tenant
        pool.publisher[block], pool.tenant[block] = seq_id, tenant
        filled[block] = pool.block_size  # a key names a block that is full
        rekeyed(block)
        if keys[block] == key:  # a branch meets a block that its sibling published
            continue
        keys[block], pool.parent_key[block] = key, parent_key
        pool.published_step[block] = pool.last_use_step[block] = step
        pool.uses[block] = 0
        mark(block)


def evict(pool: PoolState, sequences: Sequences, run: Iterable[Decision], step: int) -> None:
    """Idle blocks lose what is in them."""
    states, counts, transfer = pool.state, pool.counts, pool.transfer
    keys, parent_keys, filled = pool.key, pool.parent_key, pool.filled
    published, last_use, uses = pool.published_step, pool.last_use_step, pool.uses
    mark, rekeyed = pool.dirty.add, pool.rekeyed.add
    for decision in run:
        block = decision[3]
        keys[block] = parent_keys[block] = None
        published[block] = last_use[block] = uses[block] = filled[block] = 0
        if transfer:
            transfer.pop(block, None)
        counts[states[block]] -= 1
        counts[FRESH] += 1
        states[block] = FRESH
        mark(block)
        rekeyed(block)


def settle(pool: PoolState, num_in_transfer: int) -> None:
    """End of a step: of the blocks without references, the last ``num_in_transfer`` released are in transfer still."""
    transfer = pool.transfer
    if not transfer:
        return
    states, counts, keys, filled, released = pool.state, pool.counts, pool.key, pool.filled, pool.released
    mark, number = pool.dirty.add, pool.num_released
    gone = list(
        islice(transfer, max(0, len(transfer) - num_in_transfer))
    )  # from the front of a dict one by one is slow
    for block in gone:
        counts[states[block]] -= 1
        if keys[block] is None:
            states[block] = FRESH
            filled[block] = 0
        else:
            states[block] = IDLE
            number += 1
            released[block] = number
        counts[states[block]] += 1
        mark(block)
        del transfer[block]
    pool.num_released = number
    for block in transfer:
        if states[block] != IN_TRANSFER:
            counts[states[block]] -= 1
            counts[IN_TRANSFER] += 1
            states[block] = IN_TRANSFER
            mark(block)
