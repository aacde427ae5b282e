"""Fair sharing between tenants (virtual token counters, ``policies/tenants.py``)."""

from __future__ import annotations

from collections.abc import Iterable

from kvtop.engine.policies.registry import QUEUE, PolicyContext
from kvtop.engine.policies.tenants import INPUT_WEIGHT
from kvtop.engine.sequence import OrderKey, Sequence


def take_turns(waiting: Iterable[Sequence], context: PolicyContext) -> None:
    """Each tenant's counter as it will be when the sequences ahead of this one, of the same tenant, have started.

    So one step that admits many takes turns between the tenants, as if it had admitted them one by one.
    """
    waiting = sorted(waiting, key=lambda s: s.order)
    context.tenants.queued((seq.seq_id, seq.request.spec.tenant) for seq in waiting)
    counters = dict(context.tenants.served)
    context.memo = {}
    for seq in waiting:
        tenant = seq.request.spec.tenant
        context.memo[seq.seq_id] = counters[tenant]
        counters[tenant] += INPUT_WEIGHT * seq.num_tokens


@QUEUE.add(
    "fair",
    "the tenant that has been served least first (virtual token counter), then by arrival",
    dynamic=True,
    prepare=take_turns,
)
def fair(seq: Sequence, context: PolicyContext) -> tuple[int, OrderKey]:
    counter = context.memo.get(seq.seq_id)  # None: it came after this step's ordering
    return (context.tenants.served[seq.request.spec.tenant] if counter is None else counter, seq.order)
