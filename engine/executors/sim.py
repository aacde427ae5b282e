"""A model that is not there: the null executor's tokens, and steps that cost what a cost model says. Virtual time."""

from __future__ import annotations

from kvtop.engine.executors.null import NullExecutor
from kvtop.engine.executors.sim_cost import CostModel
from kvtop.engine.types import ExecuteResult, Plan


class SimExecutor(NullExecutor):
    """``block_size`` (tokens) gives copies and moves of blocks their bytes."""

    name = "sim"

    def __init__(self, cost: CostModel, block_size: int) -> None:
        super().__init__()
        self.cost = cost
        self._block_bytes = cost.work.pool_bytes_per_token * block_size

    def execute(self, plan: Plan) -> ExecuteResult:
        result = super().execute(plan)
        spans, num_new = [], 0
        for chunk in plan.chunks:
            spans.append((chunk.start, chunk.count))
            seq = chunk.sequence
            if not seq.computed_tokens and not seq.branch:  # nothing of this request has been computed before
                num_new += 1
        result.device_ns = self.cost.step_ns(
            spans,
            num_new=num_new,
            copied_bytes=len(plan.copies) * self._block_bytes,
            host_bytes=(len(plan.swap_out) + len(plan.swap_in)) * self._block_bytes,
        )
        return result
