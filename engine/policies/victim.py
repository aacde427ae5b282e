"""Victim policies: who loses its blocks when a running sequence needs one.

Of those that rank behind the needy one in the static order, the one with the largest key is taken; the needy one gives
way itself only when nobody ranks behind it. So whoever ranks first keeps its blocks and goes on, under every policy.
"""

from __future__ import annotations

from kvtop.engine.policies.registry import VICTIM, PolicyContext
from kvtop.engine.sequence import OrderKey, Sequence


@VICTIM.add("last-arrived", "the last in the order of (priority, arrival, submission)")
def last_arrived(seq: Sequence, context: PolicyContext) -> OrderKey:
    return seq.order


@VICTIM.add("cheapest", "the fewest computed tokens that would be lost (published blocks are likely to be found again)")
def cheapest(seq: Sequence, context: PolicyContext) -> tuple[int, OrderKey]:
    return (-(seq.num_computed - seq.num_published * context.block_size), seq.order)


@VICTIM.add("most-blocks", "who holds the most blocks: the most room from one preemption")
def most_blocks(seq: Sequence, context: PolicyContext) -> tuple[int, OrderKey]:
    return (seq.num_held, seq.order)
