"""What the requests of a workload ask a cache for: whole blocks of an engine's size, or the ids as recorded."""

from __future__ import annotations

from collections.abc import Sequence

from kvtop.engine.errors import WorkloadError
from kvtop.workloads.oracle.prefixes import PrefixTree
from kvtop.workloads.oracle.runs import Chains, End, cut_into_runs
from kvtop.workloads.rows import Row


def whole_blocks(rows: Sequence[Row], block_size: int, *, with_output: bool = False) -> Chains:
    """Chains of the whole blocks of ``block_size`` tokens, the engine's: any size, whatever the hash blocks are.

    Two prompts share block k if their first (k + 1) * ``block_size`` tokens are equal. A prompt's last token is
    computed in any case, so the block that holds it is no hit; it is cached all the same. What later turns of a
    conversation repeat of an answer is cached, too. ``with_output``: so are the other answers, which nobody else asks
    for. (The last token of an answer is never stored.)

    Raises:
        WorkloadError: a block size below 1.
    """
    if block_size < 1:
        raise WorkloadError(f"block size is {block_size}, expected at least 1 token")
    tree = PrefixTree()
    ends: list[End] = []
    for row in rows:
        placed = tree.add(row)
        answered = with_output or row.conversation is not None
        stored = (row.prompt_tokens + (row.output_tokens - 1 if answered else 0)) // block_size
        in_tree = placed.end_tokens // block_size
        ends.append(End(placed.node, in_tree, stored - in_tree, (row.prompt_tokens - 1) // block_size))
    return cut_into_runs(tree, ends, block_size, sum(row.prompt_tokens // block_size for row in rows))


def recorded_ids(rows: Sequence[Row]) -> Chains:
    """Chains of the hash ids as they were recorded: one block an id, the last partial one included, every one eligible.

    Raises:
        WorkloadError: rows without ids, with ids for blocks of several sizes, or with tokens before the first one.
    """
    sizes = sorted({row.hash_block_tokens for row in rows if row.hash_ids})
    if len(sizes) != 1 or any(row.shared_tokens for row in rows):
        found = " and ".join(f"{size:,}" for size in sizes) or "no"
        raise WorkloadError(f"the hash ids stand for blocks of {found} tokens, expected one size from position 0 on")
    tree = PrefixTree()
    ends = [End(tree.add_ids(row).node, len(row.hash_ids), 0, len(row.hash_ids)) for row in rows]
    return cut_into_runs(tree, ends, sizes[0], sum(len(row.hash_ids) for row in rows))
