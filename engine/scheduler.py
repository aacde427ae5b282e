"""The scheduler: which tokens of which sequences the next step computes, within one token budget.

    running, decodes            nobody who runs is starved: one token each (seats <= budget)
    running, unfinished chunks  by static order, with what is left of the budget
    waiting                     in the order of the queue policy, while budget, seats and blocks last

(that is the batch policy decode-first; others order the phases differently).

There is no prefill or decode phase: ``num_computed`` chases ``num_tokens``. The scheduler decides and records; it
computes nothing.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from operator import attrgetter

from kvtop.engine.allocators.base import Admission, Allocator
from kvtop.engine.config import EngineConfig
from kvtop.engine.policies.registry import BATCH, QUEUE, VICTIM, PolicyContext
from kvtop.engine.prompts import own_tokens
from kvtop.engine.recorder import AnyRecorder
from kvtop.engine.sequence import Sequence
from kvtop.engine.types import Chunk, Plan, RequestState, Shortage, Stall, WaitReason
from kvtop.engine.waiting import WaitingQueue

by_order = attrgetter("order")
"""Key of the running list."""


class Scheduler:
    """Owns the queue and the running list. One ``schedule`` a step."""

    def __init__(
        self, config: EngineConfig, allocator: Allocator, recorder: AnyRecorder, context: PolicyContext
    ) -> None:
        self.config = config
        self.allocator = allocator
        self.recorder = recorder
        policy, context.params = QUEUE.get(config.policy, config.policy_params)
        self.waiting = WaitingQueue(policy, context)
        self._context = context
        self._victim_key = VICTIM.get(config.victim)[0].rule
        self._phases = BATCH.get(config.batch_policy)[0].rule
        self.running: list[Sequence] = []  # in static order: the last one is the next victim
        self.head_of_line: Sequence | None = None
        self.shortage: Shortage | None = None  # why the head of the line was refused
        self.num_preemptions = 0
        self.preempted: list[Sequence] = []  # in this step
        self.admitted: list[Sequence] = []
        self.starved: list[Sequence] = []  # lone sequences that cannot grow: the engine ends them
        self._blocking: Sequence | None = None
        self._claimed = 0  # blocks in transfer that somebody waits for in this step

    def set_policy(self, name: str) -> None:
        """Another queue policy, with its default parameters, from the next step on.

        Raises:
            UnknownName: it does not exist.
        """
        policy, self._context.params = QUEUE.get(name, {})
        self.waiting.use(policy)
        self.recorder.decide(("config", f"policy={name}"))

    # -- one step ------------------------------------------------------------------------------------------------

    def schedule(self, step: int, now_ns: int) -> Plan:
        """The plan of this step; empty when nothing can run. ``stall()`` then says why."""
        self.preempted, self.admitted, self.starved = [], [], []
        self.head_of_line = self.shortage = None
        self._claimed = 0
        self.allocator.begin_step(step)
        # With every seat taken nobody can start in this step: a preemption admits nobody either.
        self.waiting.begin_step(step, sort=len(self.running) < self.config.seats)
        plan = Plan(step)
        budget = self.config.max_batched_tokens
        for index, phase in enumerate(self._phases):
            decodes_follow = phase == "running" or "decodes" in self._phases[index + 1 :]
            self.allocator.hold = self._growth() if decodes_follow else 0
            if phase == "admit":
                budget = self._admit(plan, budget, now_ns)
            else:
                budget = self._schedule_running(self._in_phase(phase), plan, budget, now_ns)
        if not plan.chunks and self.running and not self.preempted:
            self._let_go(plan, now_ns)
        self.allocator.fill(plan)
        return plan

    def _in_phase(self, phase: str) -> list[Sequence]:
        """Running sequences of a phase, in static order. Whoever starts in this step is planned by its admission."""
        started = set(self.admitted)
        running = [seq for seq in self.running if seq not in started] if started else list(self.running)
        if phase == "running":
            return running
        if phase == "decodes":
            return [seq for seq in running if len(seq.tokens) - seq.num_computed == 1]
        return [seq for seq in running if len(seq.tokens) - seq.num_computed != 1]

    def _growth(self) -> int:
        """Blocks that running decodes need in this step."""
        return sum(self.allocator.growth(seq, seq.num_tokens) for seq in self._in_phase("decodes"))

    def _schedule_running(self, sequences: list[Sequence], plan: Plan, budget: int, now_ns: int) -> int:
        ready, chunked, append = self.allocator.ready, self.config.chunked_prefill, plan.chunks.append
        running = RequestState.RUNNING  # looked up once: an enum's member costs as much as a call
        for seq in sequences:
            if seq.state is not running:  # preempted by somebody before it in this very step
                continue
            start = seq.num_computed
            count = left = len(seq.tokens) - start
            if left > budget:
                if not chunked:
                    continue
                count = budget
            if count == 0:
                continue
            if not ready(seq, start + count):
                count, given_back = self._make_room(seq, count, plan, now_ns)
                budget += given_back
                if not count:
                    continue
            budget -= count
            append(Chunk(seq.seq_id, start, count, seq.request.num_samples if count == left else 0, seq))
        return budget

    def _admit(self, plan: Plan, budget: int, now_ns: int) -> int:
        while (seq := self.waiting.head()) is not None:
            refusal = self._refusal(seq, budget)
            if refusal is None:
                seq.tokens = own_tokens(seq.tokens)
                answer = self.allocator.try_admit(seq, budget, self.running)
                if isinstance(answer, Admission):
                    self._start(seq, answer, now_ns)
                    start, count = answer.cached, answer.count
                    samples = seq.request.num_samples if start + count == len(seq.tokens) else 0
                    plan.chunks.append(Chunk(seq.seq_id, start, count, samples, seq))
                    budget -= count
                    continue
                refusal = answer
            self._skip(seq, refusal)
            break
        return budget

    def _refusal(self, seq: Sequence, budget: int) -> Shortage | None:
        """Reasons not to try ``seq`` that have nothing to do with blocks."""
        seats = self.config.seats
        if self.preempted:
            return Shortage(WaitReason.PREEMPTING, 0, 0)
        if len(self.running) >= seats:
            by_budget = seats < self.config.max_num_seqs
            return Shortage(WaitReason.BUDGET if by_budget else WaitReason.SEATS, len(self.running) + 1, seats)
        if budget == 0:
            return Shortage(WaitReason.BUDGET, 1, 0)
        if not self.config.chunked_prefill:
            left = seq.num_tokens - (self.allocator.cached_tokens(seq) if budget < seq.num_tokens else 0)
            if left > budget:
                return Shortage(WaitReason.BUDGET, left, budget)
        return None

    def _start(self, seq: Sequence, admission: Admission, now_ns: int) -> None:
        self.waiting.remove(seq)
        insort(self.running, seq, key=by_order)
        seq.state = RequestState.RUNNING
        seq.wait_reason = seq.wait_blocker = None
        seq.num_computed = admission.cached
        request, lookup = seq.request, admission.lookup
        first = request.cached_tokens is None
        if first:
            request.cached_tokens = seq.cached_tokens = admission.cached
            request.host_hit_tokens = admission.host
            request.miss_reason = lookup.reason
            seq.high_water = admission.cached
        else:
            seq.restored_tokens += admission.cached
            if seq.t_preempted_ns is not None:
                seq.preempted_ns += now_ns - seq.t_preempted_ns
                seq.t_preempted_ns = None
            seq.high_water = max(seq.high_water, admission.cached)
        age = None if lookup.evicted_step is None else self.allocator.step - lookup.evicted_step
        decide = self.recorder.decide
        if first:
            decide(
                ("lookup", seq.seq_id, admission.cached, lookup.reason.value, lookup.evicted_by, lookup.missed_key, age)
            )
        kind = "admitted" if first else "resumed"
        decide((kind, seq.seq_id, seq.num_tokens, admission.need_blocks, admission.have_blocks))
        self.admitted.append(seq)

    def _skip(self, seq: Sequence, shortage: Shortage) -> None:
        self.head_of_line, self.shortage = seq, shortage
        blocker = self._blocker(shortage)
        name = blocker.seq_id if blocker else None
        if (seq.wait_reason, seq.wait_blocker) != (shortage.reason, name):
            seq.wait_reason, seq.wait_blocker = shortage.reason, name
            self.recorder.decide(("skipped", seq.seq_id, shortage.reason.value, name, shortage.need, shortage.have))

    def _blocker(self, shortage: Shortage) -> Sequence | None:
        """Whose end would help most: the running sequence with the most blocks, until it stops running."""
        if shortage.reason not in (WaitReason.NO_BLOCKS, WaitReason.NO_HOLE) or not self.running:
            return None
        if self._blocking is None or self._blocking.state is not RequestState.RUNNING:
            self._blocking = max(self.running, key=lambda s: (s.num_held, s.order))
        return self._blocking

    # -- room ----------------------------------------------------------------------------------------------------

    def _make_room(self, seq: Sequence, count: int, plan: Plan, now_ns: int) -> tuple[int, int]:
        """Blocks for up to ``count`` more tokens of ``seq``, preempting behind it only when not one token fits.

        Returns the tokens that fit (0: not in this step) and the budget given back by victims already planned.
        """
        given_back = 0
        while True:
            fits = min(count, self.allocator.room(seq))
            if fits == count or (fits and self.config.chunked_prefill):
                shortage = self.allocator.grow(seq, seq.num_computed + fits)
                if shortage is None:
                    return fits, given_back
                if shortage.reason is WaitReason.FAULT:
                    return 0, given_back
            if self._claimed < self.allocator.pool.num_in_transfer:
                self._claimed += 1  # a victim's block is on its way: wait for it instead of taking another victim
                return 0, given_back
            victim = self._victim(seq)
            if victim is seq and len(self.running) == 1:
                self.starved.append(seq)
                return 0, given_back
            in_transfer = self.allocator.pool.num_in_transfer
            given_back += self._preempt(victim, seq, plan, now_ns)
            if victim is seq:
                return 0, given_back
            if self.allocator.pool.num_in_transfer > in_transfer:  # its blocks are on their way, not here yet
                self._claimed += 1
                return 0, given_back

    def _victim(self, needy: Sequence) -> Sequence:
        """Of those that rank behind ``needy``, the one with the largest key; itself when nobody does."""
        behind = self.running[bisect_right(self.running, needy.order, key=by_order) :]
        return max(behind, key=lambda s: self._victim_key(s, self._context), default=needy)

    def _let_go(self, plan: Plan, now_ns: int) -> None:
        """Nobody can go on: a beam that only waits for its group makes room, and keeps its candidates.

        A group whose beams do not fit together goes on one beam after the other this way.
        """
        short = self.shortage
        if short is None or short.reason is WaitReason.FAULT or self.allocator.pool.num_in_transfer:
            return
        idle = [seq for seq in self.running if seq.candidates]
        if idle:
            victim = idle[-1]
            awaited = next(seq for seq in victim.request.sequences if not seq.candidates)
            self._preempt(victim, awaited, plan, now_ns, WaitReason.BEAMS)

    def _preempt(
        self, victim: Sequence, needy: Sequence, plan: Plan, now_ns: int, reason: WaitReason = WaitReason.NO_BLOCKS
    ) -> int:
        """Take the victim's blocks away (recompute or swap). Returns the budget of a chunk it had in this plan."""
        given_back = 0
        for index, chunk in enumerate(plan.chunks):
            if chunk.sequence is victim:
                given_back = plan.chunks.pop(index).count
                break
        blocks = victim.num_held
        lost = 0 if self.allocator.swap_out(victim) else victim.num_computed
        self.allocator.drop_moves(victim)
        self.recorder.decide(("preempted", victim.seq_id, reason.value, needy.seq_id, lost, blocks))
        self.allocator.release(victim)
        self.running.remove(victim)
        victim.num_preemptions += 1
        self.num_preemptions += 1
        self.preempted.append(victim)
        self.park(victim, now_ns)
        return given_back

    def park(self, seq: Sequence, now_ns: int) -> None:
        """Put a sequence without blocks back into the queue, at the place its own order gives it."""
        seq.state = RequestState.PREEMPTED
        seq.t_preempted_ns = now_ns
        seq.wait_since_step = self.allocator.step
        seq.wait_reason = seq.wait_blocker = None
        if seq.candidates:
            seq.wait_reason = WaitReason.BEAMS
            self.recorder.decide(("skipped", seq.seq_id, WaitReason.BEAMS.value, None, 0, 0))
        self.waiting.push(seq)

    def stall(self) -> Stall | None:
        """Who is stuck on what, when the plan is empty and time alone will not help."""
        if self.allocator.pool.num_in_transfer or self.starved or self.preempted:
            return None
        if self.head_of_line is not None and self.shortage is not None and not self.running:
            short = self.shortage
            return Stall(self.head_of_line.seq_id, short.reason, short.need, short.have)
        if self.running:
            return Stall(self.running[0].seq_id, WaitReason.FAULT, 1, self.allocator.pool.num_fresh)
        return None
