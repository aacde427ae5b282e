"""Depth-first over the prefix tree, heavier subtrees first: requests that share a cached prefix run together."""

from __future__ import annotations

from collections.abc import Iterable

from kvtop.engine.policies.queue import AGING_STEPS
from kvtop.engine.policies.registry import QUEUE, PolicyContext
from kvtop.engine.sequence import OrderKey, Sequence


def weigh(waiting: Iterable[Sequence], context: PolicyContext) -> None:
    """Count the waiting sequences under each cached block."""
    weight: dict[int, int] = {}
    paths = {seq.seq_id: context.cached_path(seq) for seq in waiting}
    for path in paths.values():
        for block in path:
            weight[block] = weight.get(block, 0) + 1
    context.memo = {seq_id: tuple((-weight[b], b) for b in path) for seq_id, path in paths.items()}


@QUEUE.add(
    "dfs-weight",
    "depth-first over the cached prefixes, those that most of the waiting share first; aging_steps as in lpm",
    dynamic=True,
    prepare=weigh,
    aging_steps=AGING_STEPS,
)
def dfs_weight(seq: Sequence, context: PolicyContext) -> tuple[int, tuple[tuple[int, int], ...], OrderKey]:
    # Sorting by the path of (-weight, block) from the root is the walk. No path is a path to the heaviest side's end.
    if context.aged(seq):
        return (0, (), seq.order)
    path = context.memo.get(seq.seq_id, ())
    return (1 if path else 2, path, seq.order)
