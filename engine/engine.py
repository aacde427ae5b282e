"""The engine: schedule, execute, account. One ``step`` is those three calls; everything else is at its edges."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from collections.abc import Sequence as Seq

from kvtop.engine import views
from kvtop.engine.accounting import Accountant
from kvtop.engine.allocators.registry import make_allocator
from kvtop.engine.clock import Clock, RealClock, VirtualClock
from kvtop.engine.config import EngineConfig
from kvtop.engine.control import Control
from kvtop.engine.errors import ConfigError, EngineStalled, InvalidRequest
from kvtop.engine.events import Keyframe
from kvtop.engine.executors.null import NullExecutor
from kvtop.engine.intake import Intake
from kvtop.engine.policies.future import FutureUses
from kvtop.engine.policies.registry import PolicyContext
from kvtop.engine.prefix_cache import KeyFn
from kvtop.engine.prompts import as_tokens, check_types
from kvtop.engine.recorder import AnyRecorder, NullRecorder
from kvtop.engine.scheduler import Scheduler
from kvtop.engine.sequence import Request, Sequence
from kvtop.engine.types import (
    BlockView,
    Executor,
    ExtraKey,
    KVCounters,
    RequestSpec,
    RequestView,
    SamplingParams,
    StepOutput,
)


class Engine(Control):
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
        self._intake = Intake(config, executor, self.scheduler.waiting, self.accountant.endings, self._context.tenants)
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
            self._intake.check(request, tokens)
            seq = self._intake.enqueue(request, tokens, self.num_steps)
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

    def _own_id(self) -> str:
        """The submission number as a name, or the next one that no user has taken."""
        number = self._num_submitted
        while f"r{number}" in self._requests:
            number += 1
        return f"r{number}"

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
        self._register_forks()
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
            self._sequences or self.accountant.sealer.pending or self.recorder.has_decisions or self.allocator.unsettled
        )

    def flush(self) -> None:
        """Seal what happened since the last step (an abort, a rejection, a reset) into an event of its own."""
        self.allocator.num_settled = 0
        self._seal_now(self.accountant.begin_empty(self.num_steps))

    def _settle(self) -> StepOutput:
        """A step without requests: deferred frees fall due, and nothing that was decided stays untold."""
        out = self.accountant.begin_empty(self.num_steps)
        if self.allocator.unsettled:
            self.allocator.begin_step(self.num_steps)
            self.num_steps += 1
        else:
            self.allocator.num_settled = 0
        self._seal_now(out)
        return out

    def _seal_now(self, out: StepOutput) -> None:
        now = self.clock.now_ns()
        self.accountant.seal(out, now, now, now, out.step)

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
