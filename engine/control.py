"""What may be done to a running engine between steps: abort, fork, pin, forget, and inject faults."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from kvtop.engine import views
from kvtop.engine.accounting import Accountant
from kvtop.engine.allocators.base import Allocator
from kvtop.engine.allocators.caching import CachingAllocator
from kvtop.engine.clock import Clock
from kvtop.engine.config import EngineConfig
from kvtop.engine.errors import InvalidRequest, KvtopError
from kvtop.engine.recorder import AnyRecorder
from kvtop.engine.sequence import Request, Sequence
from kvtop.engine.types import MAX_BRANCHES, FinishReason, RequestState, RequestView, ResetResult, StepOutput


class Control:
    """The part of an ``Engine`` that changes it from outside; the engine makes what is named here."""

    config: EngineConfig
    clock: Clock
    recorder: AnyRecorder
    allocator: Allocator
    accountant: Accountant
    num_steps: int
    _requests: dict[str, Request]
    _sequences: dict[str, Sequence]
    _finished: OrderedDict[str, RequestView]
    _in_flight: bool
    _unfinished: bool

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
        self._register_forks()
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

    def set_pool_size(self, num_blocks: int) -> None:
        """Let at most ``num_blocks`` of the pool's blocks be used, from now on.

        Fresh and idle blocks above it are withheld at once, others as sequences give them back; raised again, it gives
        blocks back at once. The memory stays as it is.

        Raises:
            KvtopError: not the paged allocator; the others give away whole runs.
            InvalidRequest: more blocks than there are, or fewer than a block for each KV group.
        """
        allocator = self._paged("changing the pool size")
        low, high = len(self.config.kv_groups), self.config.num_blocks
        if type(num_blocks) is not int or not low <= num_blocks <= high:
            raise InvalidRequest(f"num_blocks = {num_blocks!r}, expected an integer from {low} to {high}")
        allocator.set_limit(num_blocks)
        self.recorder.decide(("config", f"num_blocks={num_blocks}"))

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

    def _register_forks(self) -> None:
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
