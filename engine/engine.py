"""The engine: schedule, execute, account. One ``step`` is those three calls; everything else is at its edges."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq

from kvtop.engine import views
from kvtop.engine.accounting import Accountant
from kvtop.engine.allocators.caching import CachingAllocator
from kvtop.engine.allocators.registry import make_allocator
from kvtop.engine.beam_groups import check_beams
from kvtop.engine.clock import Clock, RealClock, VirtualClock
from kvtop.engine.config import EngineConfig
from kvtop.engine.errors import ConfigError, EngineStalled, InvalidRequest, KvtopError, QueueFull, RequestTooLong
from kvtop.engine.events import Keyframe
from kvtop.engine.executors.null import NullExecutor
from kvtop.engine.policies.future import FutureUses
from kvtop.engine.policies.registry import PolicyContext
from kvtop.engine.prefix_cache import KeyFn
from kvtop.engine.prompts import as_tokens, check_types, check_vocabulary
from kvtop.engine.recorder import AnyRecorder, NullRecorder
from kvtop.engine.scheduler import Scheduler
from kvtop.engine.sequence import Request, Sequence
from kvtop.engine.types import (
    MAX_BRANCHES,
    BlockView,
    Executor,
    ExtraKey,
    FinishReason,
    KVCounters,
    RequestSpec,
    RequestState,
    RequestView,
    ResetResult,
    SamplingParams,
    StepOutput,
)


class Engine:
    """A paged engine over any executor.

    ``clock`` defaults to virtual time under a NullExecutor and to real time otherwise; ``recorder`` to none.
    ``key_fn(parent_key, tokens, extra)`` replaces the prefix keys (fault injection). ``future`` is what the whole
    workload will ask for, needed by the eviction policy belady alone.

    Raises:
        UnknownName: a policy that does not exist.
        ConfigError: belady without a future.
    """

    def __init__(
        self,
        config: EngineConfig,
        executor: Executor,
        *,
        clock: Clock | None = None,
        recorder: AnyRecorder | None = None,
        key_fn: KeyFn | None = None,
        future: FutureUses | None = None,
    ) -> None:
        self.config = config
        self.executor = executor
        self.clock = clock or (VirtualClock() if isinstance(executor, NullExecutor) else RealClock())
        self.recorder = recorder or NullRecorder()
        self.allocator = make_allocator(config, self.recorder, key_fn)
        if config.eviction == "belady":
            if future is None:
                raise ConfigError("eviction policy belady needs the whole workload beforehand")
            self._paged("belady").cache.future = future
        self._future = future
        self._context = PolicyContext(
            step=0,
            cached_tokens=self.allocator.cached_tokens,
            cached_path=self.allocator.cached_path,
            block_size=config.block_size,
        )
        self.scheduler = Scheduler(config, self.allocator, self.recorder, self._context)
        self.accountant = Accountant(
            config, self.allocator, self.scheduler, self.recorder, executor, self._context.tenants
        )
        self.num_steps = 0
        self._requests: dict[str, Request] = {}  # live ones
        self._sequences: dict[str, Sequence] = {}  # live ones
        self._finished: OrderedDict[str, RequestView] = OrderedDict()
        self._num_submitted = 0
        self._in_flight = False
        self._unfinished = False  # the last plan was not executed: its copies and moves are still to be made

    # -- requests in ---------------------------------------------------------------------------------------------

    def submit(
        self,
        prompt: Seq[int],
        params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        arrival_ns: int | None = None,
        priority: int = 0,
        extra_key: ExtraKey | None = None,
        block_keys: Mapping[int, str | int] | None = None,
    ) -> str:
        """Queue one request and return its id. ``arrival_ns`` is its intended time (now, if None).

        Raises:
            RequestTooLong: the prompt reaches the effective length.
            QueueFull: ``max_queue`` sequences wait already.
            InvalidRequest: an empty prompt, a token that is none, an id in use, a value of another type.
        """
        return self.submit_spec(
            RequestSpec(
                prompt=prompt,
                params=SamplingParams() if params is None else params,
                request_id=request_id,
                arrival_ns=arrival_ns,
                priority=priority,
                extra_key=extra_key,
                block_keys=block_keys,
            )
        )

    def submit_spec(self, spec: RequestSpec) -> str:
        """As ``submit``, for a request as workloads hand it over.

        A refused one is recorded as rejected; not one of another type, or whose id is in use.
        """
        now = self.clock.now_ns()
        check_types(spec)
        tokens = as_tokens(spec.prompt, may_wait=spec.params.num_beams == 1)
        if spec.request_id in self._requests or spec.request_id in self._sequences:
            # Not recorded: the stream already has a live request of this name.
            raise InvalidRequest(f"request id {spec.request_id!r} is in use")
        request_id = spec.request_id if spec.request_id is not None else self._own_id()
        sched = now if spec.arrival_ns is None else spec.arrival_ns
        request = Request(request_id, spec, self._num_submitted, sched, now)
        self._num_submitted += 1
        self.recorder.request(views.arrived_event(request))
        try:
            self._validate(request, tokens)
            seq = self._enqueue(request, tokens)
        except BaseException as error:  # whatever it was: what has arrived must have an end in the log
            self.recorder.decide(("rejected", request_id, len(tokens), type(error).__name__))
            if self.recorder.enabled:
                request.sequences.clear()
                self.accountant.sealer.pending.append(views.rejected_event(request, now, str(error)))
            raise
        self._requests[request_id] = request
        self._sequences[request_id] = seq
        self.recorder.decide(("arrived", request_id, seq.num_prompt))
        return request_id

    def _enqueue(self, request: Request, tokens: list[int]) -> Sequence:
        """The first sequence of ``request``, in the queue."""
        spec = request.spec
        seq = Sequence(
            seq_id=request.request_id,
            branch=0,
            request=request,
            order=(spec.priority, request.t_sched_ns, request.submission, 0),
            tokens=tokens,
            num_prompt=len(tokens),
            wait_since_step=self.num_steps,
        )
        request.sequences.append(seq)
        self.accountant.endings.prepare(seq)
        request.num_live = 1
        self._context.tenants.arrived(spec.tenant)
        try:
            self.scheduler.waiting.push(seq)
        except BaseException:  # a user's own policy may raise anything; then nothing has happened
            self._context.tenants.ended(spec.tenant)
            raise
        return seq

    def _own_id(self) -> str:
        """The submission number as a name, or the next one that no user has taken."""
        number = self._num_submitted
        while f"r{number}" in self._requests:
            number += 1
        return f"r{number}"

    def _validate(self, request: Request, tokens: list[int]) -> None:
        spec, request_id, limit = request.spec, request.request_id, self.config.effective_len
        if request_id.rpartition("#")[2].isdigit() and "#" in request_id:
            raise InvalidRequest(f"request id {request_id!r}: names that end in '#' and a number are those of branches")
        if not len(spec.prompt):
            raise InvalidRequest(f"request {request_id!r}: empty prompt, expected at least one token")
        if len(spec.prompt) >= limit:
            raise RequestTooLong(len(spec.prompt), limit, request_id)
        vocab, params = getattr(self.executor, "vocab_size", None), spec.params
        stops = self.accountant.endings.stops(params)
        check_vocabulary(request_id, tokens, params, stops, vocab)
        if params.stop and self.accountant.endings.decode is None:
            raise InvalidRequest(f"request {request_id!r}: stop strings need a tokenizer; use stop_token_ids")
        if params.prompt_logprobs and not getattr(self.executor, "scores_prompts", False):
            raise InvalidRequest(f"request {request_id!r}: executor {self.executor.name} gives no prompt_logprobs")
        if params.num_beams > 1:
            check_beams(request_id, params, stops, self.config, vocab)
        request.extra = views.normalise_extra(spec.extra_key, request_id)
        if self.config.max_queue is not None and len(self.scheduler.waiting) >= self.config.max_queue:
            raise QueueFull(f"request {request_id!r}: {len(self.scheduler.waiting)} wait, max_queue is reached")

    # -- the step ------------------------------------------------------------------------------------------------

    def step(self) -> StepOutput:
        """Schedule, execute, account. With nothing to do the output is empty and no counter moves.

        An exception of the executor leaves every table as planned: the same step can be tried again.
        """
        if not self.has_requests:
            return self._settle()
        start = self.clock.now_ns()
        plan = self.scheduler.schedule(self.num_steps, start)
        planned = self.clock.now_ns()
        if self._future is not None:
            for seq in self.scheduler.admitted:
                self._future.now = max(self._future.now, seq.request.submission)
        out = self.accountant.begin(plan, start, planned)
        if plan:
            self._in_flight = self._unfinished = True
            try:
                result = self.executor.execute(plan)
            except BaseException:
                if plan.moved:  # blocks may have been written since: from them nothing can be moved once more
                    self.allocator.executed()
                self.flush()  # what was decided belongs in the log, most of all when it failed
                raise
            finally:
                self._in_flight = False
            self.allocator.executed()
            self._unfinished = False
            if self.clock.virtual:
                self.clock.advance(result.device_ns)
            self.accountant.account(plan, result, out, self.clock.now_ns())
        else:
            out.stalled = self.scheduler.stall()
        self._register_forks(out)
        self.accountant.seal(out, start, planned, self.clock.now_ns(), self.num_steps)
        self._forget_finished(out)
        self.num_steps += 1
        return out

    def run(self) -> None:
        """Step until idle.

        Raises:
            EngineStalled: nothing can advance; names the request and what it needs.
        """
        while self.has_requests:
            out = self.step()
            if out.stalled is not None:
                stall = out.stalled
                raise EngineStalled(
                    f"nothing can advance: {stall.request_id} waits ({stall.reason.value}), "
                    f"needs {stall.need}, has {stall.have}"
                )

    @property
    def has_requests(self) -> bool:
        return bool(self._sequences)

    @property
    def has_work(self) -> bool:
        """A ``step`` would do something: requests live, or decisions wait to be sealed into an event."""
        return bool(
            self._sequences
            or self.accountant.sealer.pending
            or self.recorder.has_decisions
            or self.allocator.pool.num_in_transfer
        )

    def flush(self) -> None:
        """Seal what happened since the last step (an abort, a rejection, a reset) into an event of its own."""
        self.allocator.num_settled = 0
        self._seal_now(self.accountant.begin_empty(self.num_steps))

    def _settle(self) -> StepOutput:
        """A step without requests: deferred frees fall due, and nothing that was decided stays untold."""
        out = self.accountant.begin_empty(self.num_steps)
        if self.allocator.pool.num_in_transfer:
            self.allocator.begin_step(self.num_steps)
            self.num_steps += 1
        else:
            self.allocator.num_settled = 0
        self._seal_now(out)
        return out

    def _seal_now(self, out: StepOutput) -> None:
        now = self.clock.now_ns()
        self.accountant.seal(out, now, now, now, out.step)

    def _register_forks(self, out: StepOutput) -> None:
        for seq in self.accountant.forked:
            self._sequences[seq.seq_id] = seq
        self.accountant.forked = []

    def _forget_finished(self, out: StepOutput) -> None:
        """Finished sequences leave every dict; a bounded number of views stays readable."""
        for seq_id in out.finished:
            seq = self._sequences.pop(seq_id)
            self._finished[seq_id] = views.request_view(seq, None)
            while len(self._finished) > self.config.keep_finished:
                self._finished.popitem(last=False)
        for request_id in out.ended:
            request = self._requests.pop(request_id)
            request.sequences.clear()  # no cycle is left for the garbage collector
            request.ranking.clear()

    # -- control -------------------------------------------------------------------------------------------------

    def abort(self, request_id: str) -> bool:
        """End a request (all branches) or one branch; its blocks are free when this returns. False: not alive.

        A beam is no answer of its own: its id ends the whole request.

        While a step is in flight its blocks may still be written: then they are freed when it is accounted, and no
        token of it is emitted any more.
        """
        if request_id in self._requests:
            targets = self._requests[request_id].live
        elif request_id in self._sequences:
            seq = self._sequences[request_id]
            targets = [seq] if seq.request.beams is None else seq.request.live
        else:
            return False
        out = self.accountant.begin_empty(self.num_steps)
        for seq in targets:
            if seq.abort_requested:
                continue
            if self._in_flight and seq.state is RequestState.RUNNING:
                seq.abort_requested = True
                self.accountant.aborting.append(seq)
            else:
                self.accountant.finish(seq, FinishReason.ABORTED, out, self.clock.now_ns())
        self._forget_finished(out)
        return True

    def fork(self, request_id: str, n: int) -> list[str]:
        """Branch a running sequence whose prompt is computed into ``n`` in total; returns the new ids.

        A branch for which there is no seat (or, without paging, no room) waits alone.

        Raises:
            InvalidRequest: not running, still computing its prompt, n no integer >= 2, more branches than a request may
                have, or the last step failed.
        """
        if self._unfinished:
            # A branch would share blocks whose content is still on its way.
            raise InvalidRequest(f"cannot fork {request_id!r}: the last step failed, repeat it first")
        seq = self._sequences.get(request_id)
        if seq is None or seq.state is not RequestState.RUNNING:
            raise InvalidRequest(f"cannot fork {request_id!r}: it is not running")
        if seq.num_tokens - seq.num_computed != 1 or not seq.num_output:
            raise InvalidRequest(f"cannot fork {request_id!r}: its prompt is not computed yet")
        if seq.request.beams is not None:
            raise InvalidRequest(f"cannot fork {request_id!r}: its beams fork by themselves")
        if type(n) is not int or n < 2:
            raise InvalidRequest(f"cannot fork {request_id!r} into {n!r}: n is the total and at least 2")
        if len(seq.request.sequences) + n - 1 > MAX_BRANCHES:
            raise InvalidRequest(
                f"cannot fork {request_id!r} into {n}: with the {len(seq.request.sequences)} branches there are, that "
                f"makes more than {MAX_BRANCHES}"
            )
        seq.request.num_samples = 1
        children = [self.accountant.fork(seq, self.clock.now_ns()) for _ in range(n - 1)]
        self._register_forks(StepOutput(self.num_steps))
        return [child.seq_id for child in children]

    def pin(self, block: int) -> None:
        """Hold a used or idle block: it is neither reused nor evicted until ``unpin``.

        Raises:
            KvtopError: not the paged allocator; the others give back whole runs.
            InvalidRequest: no such block.
            InvariantError: the block is fresh.
        """
        self._paged("pin").pool.pin(self._known(block))
        self.recorder.decide(("pin", self.allocator.group_of(block), block))

    def unpin(self, block: int) -> None:
        self.allocator.pool.unpin(self._known(block), self.allocator.step)
        self.recorder.decide(("unpin", self.allocator.group_of(block), block))

    def reset_prefix_cache(self) -> ResetResult:
        """Forget every cached prefix. ``partial``: blocks in use were unpublished but stay with their owners."""
        return self._paged("reset_prefix_cache").reset()

    def evict(self, block: int) -> None:
        """Injection: evict one idle block without published children now.

        Raises:
            InvalidRequest: the block is not idle, or a published child hangs under it.
        """
        allocator = self._paged("evict")
        self._known(block)
        if block not in allocator.pool.evictor or allocator.cache.num_children[block]:
            raise InvalidRequest(f"cannot evict block {block}: it is not idle, or has published children")
        allocator.evict(block, "forced")

    def inject_fault(self, fault: Callable[[int], bool] | None) -> None:
        """Injection: an allocation whose ``k``-th block (from 1) has ``fault(k)`` true is refused; None: none is."""
        self.allocator.pool.fault = fault

    def _paged(self, what: str) -> CachingAllocator:
        if not isinstance(self.allocator, CachingAllocator):
            raise KvtopError(f"{what} needs the paged allocator, this engine uses {self.config.allocator}")
        return self.allocator

    def _known(self, block: int) -> int:
        if type(block) is not int or not 0 <= block < self.config.num_blocks:
            raise InvalidRequest(f"no block {block!r}: blocks are 0 to {self.config.num_blocks - 1}")
        return block

    # -- looking in ----------------------------------------------------------------------------------------------

    def counters(self) -> KVCounters:
        return views.counters(self.allocator, self.scheduler, self.accountant)

    def request(self, request_id: str) -> RequestView:
        """A copy of one sequence's state; finished ones stay readable for a while (``keep_finished``).

        Raises:
            InvalidRequest: no such request.
        """
        seq = self._sequences.get(request_id)
        if seq is not None:
            return views.request_view(seq, self.scheduler.head_of_line)
        if request_id in self._finished:
            return self._finished[request_id]
        raise InvalidRequest(f"no request {request_id!r}")

    def block(self, block: int) -> BlockView:
        return views.block_view(self.allocator, self._known(block), self._sequences.values())

    def keyframe(self) -> Keyframe:
        """The whole pool and request table now."""
        return views.keyframe(self.allocator, self.scheduler, self.counters(), self.num_steps, self.clock.now_ns())

    def check(self) -> None:
        """Raises InvariantError on the first broken invariant. Complexity: O(pool + tables)."""
        self.allocator.check(self._sequences.values())
        views.check_queues(self.scheduler, self._sequences)

    def close(self) -> None:
        self.executor.close()
