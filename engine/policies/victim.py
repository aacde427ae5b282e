"""Victim policies: who loses its blocks when a running sequence needs one. The largest key of those that rank no
further ahead than the needy one is taken; the sequence that ranks first is therefore never a victim of another."""

from __future__ import annotations

from kvtop.engine.policies.registry import VICTIM, PolicyContext
from kvtop.engine.sequence import OrderKey, Sequence


@VICTIM.add("last-arrived", "the last in the order of (priority, arrival, submission)")
def last_arrived(seq: Sequence, context: PolicyContext) -> OrderKey:
    return seq.order


@VICTIM.add("cheapest", "the fewest computed tokens that would be lost (published blocks are likely to be found again)")
def cheapest(seq: Sequence, context: PolicyContext) -> tuple[int, OrderKey]:
    return (-(seq.num_computed - seq.num_published * context.block_size), seq.order)


@VICTIM.add("most-blocks", "the longest block table: the most room from one preemption")
def most_blocks(seq: Sequence, context: PolicyContext) -> tuple[int, OrderKey]:
    return (len(seq.block_table), seq.order)
