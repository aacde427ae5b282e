"""Queue policies: who is tried first for admission. Whoever heads the queue and does not fit holds up those behind."""

from __future__ import annotations

from kvtop.engine.policies.registry import PolicyContext, queue_policy
from kvtop.engine.sequence import OrderKey, Sequence


@queue_policy("fcfs", "first come, first served: by arrival; priorities are ignored")
def fcfs(seq: Sequence, context: PolicyContext) -> OrderKey:
    priority, arrival, submission, branch = seq.order
    return (arrival, submission, branch, priority)


@queue_policy("priority", "lower priority number first, then by arrival")
def priority(seq: Sequence, context: PolicyContext) -> OrderKey:
    return seq.order


@queue_policy(
    "lpm",
    "longest cached prefix first; whoever has waited aging_steps steps goes ahead in order of arrival",
    dynamic=True,
    aging_steps=256,
)
def lpm(seq: Sequence, context: PolicyContext) -> tuple[int, int, OrderKey]:
    # Without the bound a stream of well-matching requests would starve everybody else.
    if context.step - seq.wait_since_step >= context.params["aging_steps"]:
        return (0, 0, seq.order)
    return (1, -context.cached_tokens(seq), seq.order)
