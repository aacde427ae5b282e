"""What a cost model says of steps that were made: the column ``predicted_ns`` of steps.parquet."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from kvtop.engine.events import StepEvent
from kvtop.engine.executors.sim_cost import CostModel

Predictor = Callable[[StepEvent], int | None]


def predictor(manifest: Mapping[str, Any]) -> Predictor:
    """By what run.json says: the clock of a simulated run, the cost model given beside a real one, or nothing."""
    if manifest.get("executor") == "sim":
        return lambda event: event.device_ns or None
    if manifest.get("predicted_by") is None:
        return lambda event: None
    cost = msgspec.convert(manifest["predicted_by"], CostModel)
    return lambda event: _predicted(cost, event)


def _predicted(cost: CostModel, event: StepEvent) -> int | None:
    """Copies and moves of blocks are not in it."""
    spans = [(decision[3], decision[2]) for decision in event.decisions if decision[0] == "chunk"]
    num_new = sum(decision[0] == "admitted" for decision in event.decisions)
    return cost.step_ns(spans, num_new=num_new) if spans else None
