"""Queue policies: who is tried first for admission. Whoever heads the queue and does not fit holds up those behind."""

from __future__ import annotations

from kvtop.engine.policies.registry import AGING_STEPS, QUEUE, PolicyContext
from kvtop.engine.sequence import OrderKey, Sequence


@QUEUE.add("fcfs", "first come, first served: by arrival; priorities are ignored")
def fcfs(seq: Sequence, context: PolicyContext) -> OrderKey:
    priority, arrival, submission, branch = seq.order
    return (arrival, submission, branch, priority)


@QUEUE.add("priority", "lower priority number first, then by arrival")
def priority(seq: Sequence, context: PolicyContext) -> OrderKey:
    return seq.order


@QUEUE.add("sjf", "shortest prompt first; long ones starve while shorter ones keep coming (hrrn weighs the wait)")
def sjf(seq: Sequence, context: PolicyContext) -> tuple[int, OrderKey]:
    return (seq.num_prompt, seq.order)


@QUEUE.add(
    "sjf-remaining",
    "least work left first: tokens known and not cached + output to come; aging_steps as in lpm",
    dynamic=True,
    aging_steps=AGING_STEPS,
)
def sjf_remaining(seq: Sequence, context: PolicyContext) -> tuple[int, int, OrderKey]:
    if context.aged(seq):
        return (0, 0, fcfs(seq, context))
    stored = max(context.cached_tokens(seq), seq.num_swapped)
    return (1, seq.num_tokens - stored + seq.params.max_tokens - seq.num_output, seq.order)


@QUEUE.add("hrrn", "highest response ratio next: steps waited relative to the tokens asked for", dynamic=True)
def hrrn(seq: Sequence, context: PolicyContext) -> tuple[int, OrderKey]:
    service = seq.num_prompt + seq.params.max_tokens
    # Parts per billion: an integer ratio is the same on every machine.
    return (-(context.step - seq.wait_since_step) * 10**9 // service, seq.order)


@QUEUE.add(
    "lpm",
    "longest cached prefix first; whoever has waited aging_steps steps goes ahead in order of arrival",
    dynamic=True,
    aging_steps=AGING_STEPS,
)
def lpm(seq: Sequence, context: PolicyContext) -> tuple[int, int, OrderKey]:
    # Without the bound a stream of well-matching requests would starve everybody else; with priorities in the order
    # of the aged ones, a stream of more important ones would.
    if context.aged(seq):
        return (0, 0, fcfs(seq, context))
    return (1, -context.cached_tokens(seq), seq.order)
