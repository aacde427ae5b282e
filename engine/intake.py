"""The door: a request is checked against this engine, then its first sequence is queued."""

from __future__ import annotations

from kvtop.engine import views
from kvtop.engine.beam_groups import check_beams
from kvtop.engine.config import EngineConfig
from kvtop.engine.endings import Endings
from kvtop.engine.errors import InvalidRequest, QueueFull, RequestTooLong
from kvtop.engine.policies.tenants import TenantCounters
from kvtop.engine.prompts import check_vocabulary
from kvtop.engine.sequence import Request, Sequence
from kvtop.engine.types import Executor
from kvtop.engine.waiting import WaitingQueue


class Intake:
    """Checks what depends on the configuration and the executor; types are checked before (``prompts.py``)."""

    def __init__(
        self,
        config: EngineConfig,
        executor: Executor,
        waiting: WaitingQueue,
        endings: Endings,
        tenants: TenantCounters,
    ) -> None:
        self._config = config
        self._executor = executor
        self._waiting = waiting
        self._endings = endings
        self._tenants = tenants

    def check(self, request: Request, tokens: list[int]) -> None:
        """Raises RequestTooLong, QueueFull or InvalidRequest: what is wrong with ``request``."""
        spec, request_id, limit = request.spec, request.request_id, self._config.effective_len
        if request_id.rpartition("#")[2].isdigit() and "#" in request_id:
            raise InvalidRequest(f"request id {request_id!r}: names that end in '#' and a number are those of branches")
        if not len(spec.prompt):
            raise InvalidRequest(f"request {request_id!r}: empty prompt, expected at least one token")
        if len(spec.prompt) >= limit:
            raise RequestTooLong(len(spec.prompt), limit, request_id)
        vocab, params = getattr(self._executor, "vocab_size", None), spec.params
        stops = self._endings.stops(params)
        check_vocabulary(request_id, tokens, params, stops, vocab)
        if params.stop and self._endings.decode is None:
            raise InvalidRequest(f"request {request_id!r}: stop strings need a tokenizer; use stop_token_ids")
        if params.prompt_logprobs and not getattr(self._executor, "scores_prompts", False):
            raise InvalidRequest(f"request {request_id!r}: executor {self._executor.name} gives no prompt_logprobs")
        if params.num_beams > 1:
            check_beams(request_id, params, stops, self._config, vocab)
        request.extra = views.normalise_extra(spec.extra_key, request_id)
        if self._config.max_queue is not None and len(self._waiting) >= self._config.max_queue:
            raise QueueFull(f"request {request_id!r}: {len(self._waiting)} wait, max_queue is reached")

    def enqueue(self, request: Request, tokens: list[int], step: int) -> Sequence:
        """The first sequence of ``request``, in the queue."""
        spec = request.spec
        seq = Sequence(
            seq_id=request.request_id,
            branch=0,
            request=request,
            order=(spec.priority, request.t_sched_ns, request.submission, 0),
            tokens=tokens,
            num_prompt=len(tokens),
            wait_since_step=step,
        )
        request.sequences.append(seq)
        self._endings.prepare(seq)
        request.num_live = 1
        self._tenants.arrived(spec.tenant)
        try:
            self._waiting.push(seq)
        except BaseException:  # a user's own policy may raise anything; then nothing has happened
            self._tenants.ended(spec.tenant)
            raise
        return seq
