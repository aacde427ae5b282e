"""After the executor: computed -> publish and de-duplicate -> emit -> finish -> release, in this order."""

from __future__ import annotations

from bisect import bisect_left, insort

from kvtop.engine import views
from kvtop.engine.allocators.base import Allocator
from kvtop.engine.beam_groups import BeamGroups
from kvtop.engine.config import EngineConfig
from kvtop.engine.endings import Endings, show
from kvtop.engine.policies.tenants import TenantCounters
from kvtop.engine.recorder import AnyRecorder
from kvtop.engine.scheduler import Scheduler, by_order
from kvtop.engine.sealing import StepSeal
from kvtop.engine.sequence import Sequence
from kvtop.engine.types import (
    Chunk,
    ExecuteResult,
    Executor,
    FinishReason,
    Plan,
    RequestState,
    Sample,
    Shortage,
    StepOutput,
)

RUNNING, FINISHED, ABORTED = RequestState.RUNNING, RequestState.FINISHED, FinishReason.ABORTED
"""Looked up once: a member of an enum costs as much as a call."""


class Accountant:
    """Applies the results of a step to sequences and counters."""

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
        self.endings = Endings(config, executor)
        self.sealer = StepSeal(allocator, scheduler, recorder)
        self.query_tokens = self.hit_tokens = self.host_hit_tokens = 0
        self.restored_tokens = self.recomputed_tokens = self.computed_tokens = 0
        self.beams = BeamGroups(self)
        self.aborting: list[Sequence] = []  # aborted while a step was in flight
        self.forked: list[Sequence] = []  # branches born since the engine last looked

    def begin_empty(self, step: int) -> StepOutput:
        return StepOutput(step, plan=Plan(step))

    def begin(self, plan: Plan, start_ns: int, planned_ns: int) -> StepOutput:
        """Open the step's output with what scheduling did, and end those who alone cannot grow."""
        scheduler = self.scheduler
        out = StepOutput(plan.step, plan=plan)
        out.preempted = [s.seq_id for s in scheduler.preempted]
        out.admitted = [s.seq_id for s in scheduler.admitted]
        out.evicted_runs = self.allocator.evicted_runs
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
        from_host = min(request.host_hit_tokens, seq.num_computed)  # none at all, where it is preempted already
        self.host_hit_tokens += from_host
        self.hit_tokens += seq.num_computed - from_host

    def account(self, plan: Plan, result: ExecuteResult, out: StepOutput, done_ns: int) -> None:
        """Apply one executed step. Sequences that were aborted meanwhile emit nothing."""
        self.sealer.device_ns = result.device_ns
        self._computed(plan.chunks)
        if result.prompt_logprobs:
            self._scored(plan.chunks, result.prompt_logprobs)
        samples, emit_one = result.samples, self._emit_one
        for chunk in plan.chunks:
            seq = chunk.sequence
            if chunk.num_samples and not seq.abort_requested:
                sample = samples[chunk.request_id]
                tokens = sample.tokens
                if len(tokens) == 1:
                    emit_one(seq, tokens[0], out, done_ns)
                else:
                    self._emit_branches(seq, sample, out, done_ns)
        if self.beams.noted:
            self.beams.choose(out, done_ns)
        for seq in self.aborting:
            self.finish(seq, FinishReason.ABORTED, out, done_ns)
        self.aborting = []

    def _computed(self, chunks: list[Chunk]) -> None:
        """Positions, counters, blocks; and the service each tenant gets, the tokens to be emitted included."""
        decide, commit = self.recorder.decide, self.allocator.commit
        tenant, num_computed, num_emitted = "", 0, 0  # of chunks in a row: one call for all of them
        new_tokens = 0
        for chunk in chunks:
            seq = chunk.sequence
            if seq.abort_requested:
                continue
            start, count = chunk.start, chunk.count
            end = seq.num_computed = start + count
            if start < seq.high_water:  # computed before a preemption
                new = max(0, end - seq.high_water)
                seq.recomputed_tokens += count - new
                self.recomputed_tokens += count - new
                seq.high_water = max(seq.high_water, end)
            else:
                new, seq.high_water = count, end
            seq.computed_tokens += new
            new_tokens += new
            request = seq.request
            if request.spec.tenant != tenant:
                self._serve(tenant, num_computed, num_emitted)
                tenant, num_computed, num_emitted = request.spec.tenant, 0, 0
            num_computed += count
            if not request.num_top:  # beams emit at their end
                num_emitted += chunk.num_samples
            decide(("chunk", seq.seq_id, count, start))
            commit(seq, start)
        self.computed_tokens += new_tokens
        self._serve(tenant, num_computed, num_emitted)

    def _serve(self, tenant: str, num_computed: int, num_emitted: int) -> None:
        if num_computed:
            self.tenants.computed(tenant, num_computed)
            self.tenants.emitted(tenant, num_emitted)

    @staticmethod
    def _scored(chunks: list[Chunk], scores: dict[str, list[float]]) -> None:
        for chunk in chunks:
            known = chunk.sequence.request.prompt_logprobs
            if known is not None and chunk.request_id in scores and not chunk.sequence.abort_requested:
                known += scores[chunk.request_id]

    def _emit_branches(self, seq: Sequence, sample: Sample, out: StepOutput, done_ns: int) -> None:
        """One token a branch. The n first tokens of a parallel request come from one row of logits."""
        tokens = sample.tokens
        if seq.request.beams is not None:
            self.beams.note(seq, sample)
            return
        seq.request.num_samples = 1
        branches = [seq, *(self.fork(seq, done_ns) for _ in range(len(tokens) - 1))]
        for branch, token in zip(branches, tokens, strict=True):
            self._emit_one(branch, token, out, done_ns)

    def _emit_one(self, seq: Sequence, token: int, out: StepOutput, done_ns: int) -> None:
        request, tokens = seq.request, seq.tokens
        forced = request.spec.params.forced_output
        if forced is not None:
            token = forced[len(tokens) - seq.num_prompt]
        tokens.append(token)
        last = seq.t_last_token_ns
        if last is None:
            self._first_token(seq, done_ns)
        else:
            gap, longest = done_ns - last, seq.itl_max_ns
            if longest is None or gap > longest:
                seq.itl_max_ns = gap
        seq.t_last_token_ns = done_ns
        out.tokens[seq.seq_id] = [token]
        if request.may_stop or len(tokens) >= seq.ends_at:
            reason = self.endings.reason(seq, token, out)
            if reason is not None:
                self.finish(seq, reason, out, done_ns)

    def _first_token(self, seq: Sequence, done_ns: int) -> None:
        request = seq.request
        if request.t_first_token_ns is None:
            request.t_first_token_ns = done_ns
            self.recorder.decide(("first_token", request.request_id))
        seq.t_first_token_ns = done_ns

    def deliver(self, seq: Sequence, output: tuple[int, ...], out: StepOutput, done_ns: int) -> None:
        """Emit a whole answer at once."""
        seq.tokens += output
        self._first_token(seq, done_ns)
        seq.t_last_token_ns = done_ns
        out.tokens[seq.seq_id] = list(output)
        self.tenants.emitted(seq.request.spec.tenant, len(output))

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
            insort(self.scheduler.running, child, key=by_order)
        return child

    def finish(self, seq: Sequence, reason: FinishReason, out: StepOutput, now_ns: int) -> None:
        """End one sequence and give its blocks back; the request ends with its last sequence."""
        if seq.state is RUNNING:
            running = self.scheduler.running
            del running[bisect_left(running, seq.order, key=by_order)]
        else:
            self.scheduler.waiting.remove(seq)
            if seq.t_preempted_ns is not None:
                seq.preempted_ns += now_ns - seq.t_preempted_ns
        self.allocator.end(seq)
        if seq.text is not None:
            show(seq, seq.text.flush(), out)
        seq.state, seq.finish_reason, seq.t_done_ns = FINISHED, reason, now_ns
        if reason is ABORTED:
            if seq.request.beams is not None:  # nothing of it has been emitted
                del seq.tokens[seq.num_prompt :]
            self.recorder.decide(("aborted", seq.seq_id, seq.num_output))
        else:
            self.recorder.decide(("finished", seq.seq_id, reason.value, seq.num_output))
        out.finished[seq.seq_id] = reason
        self.sealer.num_finished += 1
        request = seq.request
        request.num_live -= 1
        if request.num_live == 0:
            out.ended.append(request.request_id)
            self.tenants.ended(request.spec.tenant)
            if self.recorder.enabled:
                self.sealer.pending.append(views.ended_event(request, now_ns))

    def seal(self, out: StepOutput, start_ns: int, planned_ns: int, done_ns: int, step: int) -> None:
        """Everything about this step is told."""
        lookups = (self.query_tokens, self.hit_tokens, self.host_hit_tokens)
        self.sealer.seal(out, lookups, start_ns, planned_ns, done_ns, step)
