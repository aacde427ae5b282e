"""The event of a step: what it did in one row, then the endings whose decisions it holds."""

from __future__ import annotations

from kvtop.engine.allocators.base import Allocator
from kvtop.engine.events import RequestEvent
from kvtop.engine.recorder import AnyRecorder
from kvtop.engine.scheduler import Scheduler
from kvtop.engine.types import StepOutput

Lookups = tuple[int, int, int]
"""Totals of the prompt tokens that were looked up, of those that the device had, and of those from the host tier."""


class StepSeal:
    """Seals what was decided since the last event. With no observer nothing is put together."""

    def __init__(self, allocator: Allocator, scheduler: Scheduler, recorder: AnyRecorder) -> None:
        self.allocator = allocator
        self.scheduler = scheduler
        self.recorder = recorder
        self.device_ns = self.num_finished = 0  # in this step
        self.pending: list[RequestEvent] = []  # endings, told after the step event that holds their decisions
        self._before = (0, 0, 0, 0, 0)

    def seal(self, out: StepOutput, lookups: Lookups, start_ns: int, planned_ns: int, done_ns: int, step: int) -> None:
        totals = (*lookups, self.allocator.num_evictions, self.allocator.num_copies)
        if self.recorder.enabled and (out.plan or self.recorder.has_decisions or self.allocator.num_settled):
            self.recorder.seal(
                step=step,
                t_start_ns=start_ns,
                t_planned_ns=planned_ns,
                t_done_ns=done_ns,
                **self._work(out),
                **self._blocks(),
                **self._changes(totals),
            )
        self.device_ns, self.num_finished, self._before = 0, 0, totals
        for event in self.pending:
            self.recorder.request(event)
        self.pending = []

    def _work(self, out: StepOutput) -> dict[str, object]:
        """What was computed and emitted, and who waits for what."""
        scheduler, chunks = self.scheduler, out.plan.chunks
        head = scheduler.head_of_line
        decode = len([1 for c in chunks if c.count == 1 and c.num_samples == 1 and c.start >= c.sequence.num_prompt])
        return {
            "device_ns": self.device_ns,
            "num_running": len(scheduler.running),
            "num_waiting": len(scheduler.waiting),
            "prefill_tokens": out.plan.num_tokens - decode,
            "decode_tokens": decode,
            "preemptions": len(out.preempted),
            "admitted": len(out.admitted),
            "finished": self.num_finished,
            "waiting_reason": head.wait_reason.value if head and head.wait_reason else "",
            "head_of_line": head.seq_id if head else "",
            "emitted": list(zip(out.tokens, map(len, out.tokens.values()), strict=True)),
        }

    def _blocks(self) -> dict[str, int]:
        pool = self.allocator.pool
        return {
            "used_blocks": pool.num_used,
            "idle_blocks": pool.num_idle,
            "fresh_blocks": pool.num_fresh,
            "in_transfer_blocks": pool.num_in_transfer,
            "withheld_blocks": len(pool.limit.withheld),
            "host_blocks": self.allocator.host_used,
            "host_cached_blocks": self.allocator.host_cached,
            "filled_slots": pool.filled_used,
            "reserved_unused_slots": pool.num_used * pool.block_size - pool.filled_used,
        }

    def _changes(self, totals: tuple[int, int, int, int, int]) -> dict[str, int]:
        """What has been added to the totals since the last event."""
        names = ("query_tokens", "hit_tokens", "host_hit_tokens", "evictions", "copies")
        return {name: now - before for name, now, before in zip(names, totals, self._before, strict=True)}
