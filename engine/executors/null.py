"""No model at all: the real scheduler and pool run, tokens come from a formula, time is virtual."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable
from collections.abc import Sequence as Seq

from kvtop.engine.beam import Candidates
from kvtop.engine.sequence import Sequence
from kvtop.engine.types import ExecuteResult, Plan, Sample

TokenFn = Callable[[str, int, int], int]
TopFn = Callable[[str, Seq[int], int, int], Candidates]


def counting_token(request_id: str, branch: int, index: int) -> int:
    """Token ``index`` (from 0) of branch ``branch``: easy to recognise in a test."""
    return 1000 + index + 100_000 * branch


def hashed_candidates(request_id: str, tokens: Seq[int], num_prompt: int, count: int) -> Candidates:
    """Candidate j of output token ``index`` is ``1000 + index + 100_000 * j``: which beam won is easy to see.

    Its log-probability is about ``-(j + 1) ln 2``, varied by a checksum of the request's id, the index and the last
    known token, so that beams are dropped and forked as a model would have it. Equal for equal known tokens.
    """
    index = len(tokens) - num_prompt
    stretch = 0.5 + zlib.crc32(f"{request_id} {index} {tokens[-1]}".encode()) / (1 << 32)
    return [(1000 + index + 100_000 * j, -(j + 1) * math.log(2) * stretch) for j in range(count)]


def hashed_logprob(position: int, token: int) -> float:
    """Of prompt token ``position``: between -1 and -0, no two alike by chance."""
    return -zlib.crc32(f"{position} {token}".encode()) / (1 << 32)


class NullExecutor:
    """Every step costs ``step_time_ns`` of virtual time. ``token_fn(request_id, branch, index)`` names the tokens.

    ``top_fn(request_id, known tokens, prompt tokens, count)`` gives beams ``count`` candidates, best first.
    Log-probabilities of a prompt are ``hashed_logprob(position, token)``: deterministic, and different for each place.
    """

    name = "null"
    scores_prompts = True
    eos_token_ids: tuple[int, ...] = ()

    def __init__(
        self,
        step_time_ns: int = 10_000_000,
        token_fn: TokenFn = counting_token,
        top_fn: TopFn = hashed_candidates,
    ) -> None:
        self.step_time_ns = step_time_ns
        self.token_fn = token_fn
        self.top_fn = top_fn

    def execute(self, plan: Plan) -> ExecuteResult:
        samples, token_fn = {}, self.token_fn
        scores: dict[str, list[float]] = {}
        for chunk in plan.chunks:
            n, seq = chunk.num_samples, chunk.sequence
            request = seq.request
            if request.prompt_logprobs is not None:
                scores[chunk.request_id] = [hashed_logprob(p + 1, seq.tokens[p + 1]) for p in chunk.scored]
            if n:
                request_id, index = request.request_id, len(seq.tokens) - seq.num_prompt
                if request.num_top:
                    samples[chunk.request_id] = Sample((), self._candidates(seq))
                    continue
                if n == 1:
                    tokens: tuple[int, ...] = (token_fn(request_id, seq.branch, index),)
                else:
                    tokens = tuple([token_fn(request_id, branch, index) for branch in range(n)])
                samples[chunk.request_id] = Sample(tokens)
        return ExecuteResult(samples, self.step_time_ns, scores)

    def _candidates(self, seq: Sequence) -> tuple[tuple[int, float], ...]:
        """As a model would: of ``min_tokens`` the stop tokens are left out."""
        request = seq.request
        forbidden = request.stops if seq.num_output < request.params.min_tokens else ()
        wanted = self.top_fn(request.request_id, seq.tokens, seq.num_prompt, request.num_top + len(forbidden))
        return tuple([pair for pair in wanted if pair[0] not in forbidden][: request.num_top])

    def close(self) -> None:
        pass
