"""Depth-first over the prefix tree, heavier subtrees first: requests that share a cached prefix run together."""

from __future__ import annotations

from collections.abc import Iterable

from kvtop.engine.policies.queue import fcfs
from kvtop.engine.policies.registry import AGING_STEPS, QUEUE, PolicyContext
from kvtop.engine.sequence import OrderKey, Sequence


def weigh(waiting: Iterable[Sequence], context: PolicyContext) -> None:
    """Count the waiting sequences under each cached block, and who of them comes first.

    A subtree keeps the weight it had until nobody waits under it: otherwise the walk would leave it half done as soon
    as those that were served made it lighter than the next one.
    """
    before = context.memo.get("weight", {})
    weight: dict[int, int] = {}
    first: dict[int, int] = {}
    paths: dict[str, list[int]] = {}
    for place, seq in enumerate(sorted(waiting, key=lambda s: s.order)):
        path = paths[seq.seq_id] = context.cached_path(seq)
        for block in path:
            weight[block] = weight.get(block, 0) + 1
            first.setdefault(block, place)
    weight = {block: max(count, before.get(block, 0)) for block, count in weight.items()}
    tags = {block: (-count, first[block]) for block, count in weight.items()}
    context.memo["weight"] = weight
    context.memo["path"] = {seq_id: tuple([tags[block] for block in path]) for seq_id, path in paths.items()}


@QUEUE.add(
    "dfs-weight",
    "depth-first over cached prefixes, those that most of the waiting share first; aging_steps as in lpm",
    dynamic=True,
    prepare=weigh,
    aging_steps=AGING_STEPS,
)
def dfs_weight(seq: Sequence, context: PolicyContext) -> tuple[int, tuple[tuple[int, int], ...], OrderKey]:
    # Sorting by the path of (-weight, first sequence) from the root is the walk.
    if context.aged(seq):
        return (0, (), fcfs(seq, context))
    path = context.memo.get("path", {}).get(seq.seq_id, ())
    return (1 if path else 2, path, seq.order)
