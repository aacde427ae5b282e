"""After the executor: computed -> publish and de-duplicate -> emit -> finish -> release, in this order."""

from __future__ import annotations

from bisect import bisect_left, insort

from kvtop.engine import views
from kvtop.engine.allocators.base import Allocator
from kvtop.engine.beam import BeamState
from kvtop.engine.beam_groups import BeamGroups
from kvtop.engine.config import EngineConfig
from kvtop.engine.events import RequestEvent
from kvtop.engine.policies.tenants import TenantCounters
from kvtop.engine.recorder import AnyRecorder
from kvtop.engine.scheduler import Scheduler
from kvtop.engine.sequence import Sequence
from kvtop.engine.types import (
    Chunk,
    ExecuteResult,
    Executor,
    FinishReason,
    Plan,
    RequestState,
    Sample,
    SamplingParams,
    Shortage,
    StepOutput,
)


class Accountant:
    """Applies the results of a step to sequences and counters, and seals the step's event."""

    def __init__(
        self,
        config: EngineConfig,
        allocator: Allocator,
        scheduler: Scheduler,
        recorder: AnyRecorder,
        executor: Executor,
        tenants: TenantCounters,
    ) -> None:
        self.config = config
        self.allocator = allocator
        self.scheduler = scheduler
        self.recorder = recorder
        self.tenants = tenants
        self.limit = config.effective_len
        self.eos = frozenset(config.eos_token_ids or executor.eos_token_ids)
        self.query_tokens = self.hit_tokens = 0
        self.restored_tokens = self.recomputed_tokens = self.computed_tokens = 0
        self.beams = BeamGroups(self)
        self.aborting: list[Sequence] = []  # aborted while a step was in flight
        self.forked: list[Sequence] = []  # branches born since the engine last looked
        self.pending: list[RequestEvent] = []  # endings, told after the step event that holds their decisions
        self._emitted: list[tuple[str, int]] = []
        self._device_ns = 0
        self._before = (0, 0, 0, 0)
        self._num_finished = 0

    def begin_empty(self, step: int) -> StepOutput:
        return StepOutput(step, plan=Plan(step))

    def begin(self, plan: Plan, start_ns: int, planned_ns: int) -> StepOutput:
        """Open the step's output with what scheduling did, and end those who alone cannot grow."""
        scheduler = self.scheduler
        out = StepOutput(plan.step, plan=plan)
        out.preempted = [s.seq_id for s in scheduler.preempted]
        out.admitted = [s.seq_id for s in scheduler.admitted]
        out.evicted = self.allocator.evictions
        for seq in scheduler.admitted:
            self._count_lookup(seq)
            if seq.request.t_first_sched_ns is None and seq.state is RequestState.RUNNING:
                seq.request.t_first_sched_ns = start_ns
        for seq in scheduler.starved:
            if seq.request.beams is not None:
                self.beams.cut_off(seq.request, FinishReason.CAPACITY, out, planned_ns)
            else:
                self.finish(seq, FinishReason.CAPACITY, out, planned_ns)
        return out

    def _count_lookup(self, seq: Sequence) -> None:
        """A request's prompt is looked up once, whatever happens to it later; a hit after that is restored work."""
        request = seq.request
        if request.looked_up:
            self.restored_tokens += seq.num_computed
            return
        request.looked_up = True
        self.query_tokens += seq.num_prompt
        self.hit_tokens += seq.num_computed

    def account(self, plan: Plan, result: ExecuteResult, out: StepOutput, done_ns: int) -> None:
        """Apply one executed step. Sequences that were aborted meanwhile emit nothing."""
        self._device_ns = result.device_ns
        self._computed(plan.chunks)
        samples = result.samples
        for chunk in plan.chunks:
            seq = chunk.sequence
            if chunk.num_samples and not seq.abort_requested:
                sample = samples[chunk.request_id]
                if len(sample.tokens) == 1:
                    self._emit_one(seq, sample.tokens[0], out, done_ns)
                else:
                    self._emit_branches(seq, sample, out, done_ns)
        if self.beams.noted:
            self.beams.choose(out, done_ns)
        for seq in self.aborting:
            self.finish(seq, FinishReason.ABORTED, out, done_ns)
        self.aborting = []

    def _computed(self, chunks: list[Chunk]) -> None:
        decide, commit, count_for = self.recorder.decide, self.allocator.commit, self.tenants.computed
        for chunk in chunks:
            seq, start, count = chunk.sequence, chunk.start, chunk.count
            if seq.abort_requested:
                continue
            end = seq.num_computed = start + count
            new = count
            if start < seq.high_water:  # computed before a preemption
                new = max(0, end - seq.high_water)
                seq.recomputed_tokens += count - new
                self.recomputed_tokens += count - new
            if new:
                seq.high_water = end
                seq.computed_tokens += new
                self.computed_tokens += new
            count_for(seq.request.spec.tenant, count)
            decide(("chunk", seq.seq_id, count, start))
            commit(seq, start)

    def _emit_branches(self, seq: Sequence, sample: Sample, out: StepOutput, done_ns: int) -> None:
        """One token a branch. The n first tokens of a parallel request come from one row of logits."""
        tokens = sample.tokens
        if seq.request.beams is not None:
            self.beams.note(seq, sample)
            return
        seq.request.forked = True
        branches = [seq, *(self.fork(seq, done_ns) for _ in range(len(tokens) - 1))]
        for branch, token in zip(branches, tokens, strict=True):
            self._emit_one(branch, token, out, done_ns)

    def _emit_one(self, seq: Sequence, token: int, out: StepOutput, done_ns: int) -> None:
        request = seq.request
        forced = request.spec.params.forced_output
        if forced is not None:
            token = forced[len(seq.tokens) - seq.num_prompt]
        seq.tokens.append(token)
        if request.t_first_token_ns is None:
            request.t_first_token_ns = done_ns
            self.recorder.decide(("first_token", request.request_id))
        if seq.t_first_token_ns is None:
            seq.t_first_token_ns = done_ns
        elif seq.t_last_token_ns is not None:
            gap = done_ns - seq.t_last_token_ns
            if seq.itl_max_ns is None or gap > seq.itl_max_ns:
                seq.itl_max_ns = gap
        seq.t_last_token_ns = done_ns
        out.tokens[seq.seq_id] = [token]
        self.tenants.emitted(request.spec.tenant, 1)
        self._emitted.append((seq.seq_id, 1))
        if request.stops or len(seq.tokens) >= seq.ends_at:
            reason = self._finish_reason(seq, token)
            if reason is not None:
                self.finish(seq, reason, out, done_ns)

    def deliver(self, seq: Sequence, output: tuple[int, ...], out: StepOutput, done_ns: int) -> None:
        """Emit a whole answer at once."""
        request = seq.request
        seq.tokens += output
        if request.t_first_token_ns is None:
            request.t_first_token_ns = done_ns
            self.recorder.decide(("first_token", request.request_id))
        seq.t_first_token_ns = seq.t_last_token_ns = done_ns
        out.tokens[seq.seq_id] = list(output)
        self.tenants.emitted(request.spec.tenant, len(output))
        self._emitted.append((seq.seq_id, len(output)))

    def _finish_reason(self, seq: Sequence, token: int) -> FinishReason | None:
        """Stop before length before capacity; below min_tokens nothing stops, but the lengths still bind."""
        request = seq.request
        if token in request.stops and len(seq.tokens) - seq.num_prompt >= request.spec.params.min_tokens:
            return FinishReason.STOP
        return self.length_reason(seq)

    def length_reason(self, seq: Sequence) -> FinishReason | None:
        """Length before capacity; None: it is not as long as that yet."""
        known = len(seq.tokens)
        if known - seq.num_prompt >= seq.request.spec.params.max_tokens:
            return FinishReason.LENGTH
        if known >= self.limit:
            return FinishReason.LENGTH if self.config.max_model_len == self.limit else FinishReason.CAPACITY
        return None

    def prepare(self, seq: Sequence) -> None:
        """Work out once what ends ``seq``: the tokens that stop it, and the length at which it ends at the latest."""
        request = seq.request
        params = request.spec.params
        request.stops = self.stops(params)
        seq.ends_at = min(seq.num_prompt + params.max_tokens, self.limit)
        if params.num_beams > 1:
            request.beams = BeamState(params, request.stops, seq.ends_at - seq.num_prompt)
            request.num_top = request.beams.num_top
            request.forked = True  # its prompt gives candidates, not n tokens

    def stops(self, params: SamplingParams) -> frozenset[int]:
        """Tokens that end an answer."""
        return frozenset(params.stop_token_ids) | (frozenset() if params.ignore_eos else self.eos)

    def fork(self, parent: Sequence, now_ns: int, old: Sequence | None = None) -> Sequence:
        """A new branch with the parent's tokens; it runs if there is a seat and room, else it waits alone.

        ``old``: a branch without blocks and in no queue, which starts over instead.
        """
        if old is None:
            child = parent.branch_off(self.allocator.step)
            self.forked.append(child)
        else:
            child = old
            child.start_over(parent, now_ns)
        self.recorder.decide(("forked" if old is None else "restarted", child.seq_id, parent.seq_id))
        full = len(self.scheduler.running) >= self.config.seats or parent.state is not RequestState.RUNNING
        if full or isinstance(self.allocator.fork(parent, child), Shortage):
            self.scheduler.park(child, now_ns)
        else:
            child.state = RequestState.RUNNING
            insort(self.scheduler.running, child, key=lambda s: s.order)
        return child

    def finish(self, seq: Sequence, reason: FinishReason, out: StepOutput, now_ns: int) -> None:
        """End one sequence and give its blocks back; the request ends with its last sequence."""
        if seq.state is RequestState.RUNNING:
            running = self.scheduler.running
            del running[bisect_left(running, seq.order, key=lambda s: s.order)]
        else:
            self.scheduler.waiting.remove(seq)
            if seq.t_preempted_ns is not None:
                seq.preempted_ns += now_ns - seq.t_preempted_ns
        self.allocator.end(seq)
        seq.state, seq.finish_reason, seq.t_done_ns = RequestState.FINISHED, reason, now_ns
        if reason is FinishReason.ABORTED:
            if seq.request.beams is not None:  # nothing of it has been emitted
                del seq.tokens[seq.num_prompt :]
            self.recorder.decide(("aborted", seq.seq_id, seq.num_output))
        else:
            self.recorder.decide(("finished", seq.seq_id, reason.value, seq.num_output))
        out.finished[seq.seq_id] = reason
        self._num_finished += 1
        request = seq.request
        request.num_live -= 1
        if request.num_live == 0:
            out.ended.append(request.request_id)
            self.tenants.ended(request.spec.tenant)
            if self.recorder.enabled:
                self.pending.append(views.ended_event(request, now_ns))

    def seal(self, out: StepOutput, start_ns: int, planned_ns: int, done_ns: int, step: int) -> None:
        """The step's event, then the endings whose decisions it holds."""
        if self.recorder.enabled and (out.plan or self.recorder.has_decisions or self.allocator.num_settled):
            self.recorder.seal(**self._fields(out, start_ns, planned_ns, done_ns, step))
        self._emitted, self._device_ns, self._num_finished = [], 0, 0
        self._before = self._totals()
        for event in self.pending:
            self.recorder.request(event)
        self.pending = []

    def _totals(self) -> tuple[int, int, int, int]:
        return (self.query_tokens, self.hit_tokens, self.allocator.num_evictions, self.allocator.num_copies)

    def _fields(self, out: StepOutput, start_ns: int, planned_ns: int, done_ns: int, step: int) -> dict[str, object]:
        scheduler, pool = self.scheduler, self.allocator.pool
        query, hit, evictions, copies = (a - b for a, b in zip(self._totals(), self._before, strict=True))
        head = scheduler.head_of_line
        decode = len([1 for c in out.plan.chunks if c.count == 1 == c.num_samples and c.start >= c.sequence.num_prompt])
        return {
            "step": step,
            "t_start_ns": start_ns,
            "t_planned_ns": planned_ns,
            "t_done_ns": done_ns,
            "device_ns": self._device_ns,
            "num_running": len(scheduler.running),
            "num_waiting": len(scheduler.waiting),
            "prefill_tokens": out.plan.num_tokens - decode,
            "decode_tokens": decode,
            "used_blocks": pool.num_used,
            "idle_blocks": pool.num_idle,
            "fresh_blocks": pool.num_fresh,
            "in_transfer_blocks": pool.num_in_transfer,
            "host_blocks": self.allocator.host_used,
            "filled_slots": pool.filled_used,
            "reserved_unused_slots": pool.num_used * pool.block_size - pool.filled_used,
            "query_tokens": query,
            "hit_tokens": hit,
            "evictions": evictions,
            "preemptions": len(out.preempted),
            "copies": copies,
            "admitted": len(out.admitted),
            "finished": self._num_finished,
            "waiting_reason": head.wait_reason.value if head and head.wait_reason else "",
            "head_of_line": head.seq_id if head else "",
            "emitted": self._emitted,
        }
