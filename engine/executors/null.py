"""No model at all: the real scheduler and pool run, tokens come from a formula, time is virtual."""

from __future__ import annotations

from collections.abc import Callable

from kvtop.engine.types import ExecuteResult, Plan, Sample

TokenFn = Callable[[str, int, int], int]


def counting_token(request_id: str, branch: int, index: int) -> int:
    """Token ``index`` (from 0) of branch ``branch``: easy to recognise in a test."""
    return 1000 + index + 100_000 * branch


class NullExecutor:
    """Every step costs ``step_time_ns`` of virtual time. ``token_fn(request_id, branch, index)`` names the tokens."""

    name = "null"
    eos_token_ids: tuple[int, ...] = ()

    def __init__(self, step_time_ns: int = 10_000_000, token_fn: TokenFn = counting_token) -> None:
        self.step_time_ns = step_time_ns
        self.token_fn = token_fn

    def execute(self, plan: Plan) -> ExecuteResult:
        samples, token_fn = {}, self.token_fn
        for chunk in plan.chunks:
            n = chunk.num_samples
            if n:
                seq = chunk.sequence
                request_id, index = seq.request.request_id, len(seq.tokens) - seq.num_prompt
                if n == 1:
                    tokens: tuple[int, ...] = (token_fn(request_id, seq.branch, index),)
                else:
                    tokens = tuple([token_fn(request_id, branch, index) for branch in range(n)])
                samples[chunk.request_id] = Sample(tokens)
        return ExecuteResult(samples, self.step_time_ns)

    def close(self) -> None:
        pass
