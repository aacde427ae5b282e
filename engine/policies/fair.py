"""Fair sharing between tenants."""

from __future__ import annotations

from kvtop.engine.policies.registry import QUEUE, PolicyContext
from kvtop.engine.sequence import OrderKey, Sequence


@QUEUE.add("fair", "the tenant that has been served least first (virtual token counter), then by arrival", dynamic=True)
def fair(seq: Sequence, context: PolicyContext) -> tuple[int, OrderKey]:
    return (context.tenants.served.get(seq.request.spec.tenant, 0), seq.order)
