"""How much of each prompt an infinite cache would have held: the bound that a run's hits are measured against."""

from __future__ import annotations

from collections.abc import Iterable

from kvtop.workloads.oracle.prefixes import PrefixTree
from kvtop.workloads.rows import Row


def ideal_hits(rows: Iterable[Row], block_size: int, *, max_prompt_tokens: int | None = None) -> list[int | None]:
    """Tokens of each prompt that an infinite cache serves when every earlier request is already in it.

    Rows are taken in the order given (arrival). A hit is whole blocks of ``block_size`` tokens (the engine's, whatever
    the trace's hash blocks are) from position 0 on, and at most the prompt less one token: that one is always
    computed. Answers count where they are known, which is in conversations whose next turn repeats them. The figure is
    exact for the tokens that kvtop makes of rows (``kvtop.workloads.tokens``): an engine with room for everything
    serves just that from its cache when each request has ended before the next begins.

    Prompts longer than ``max_prompt_tokens`` are rejected by the engine: they leave nothing behind, and get None.
    """
    tree = PrefixTree()
    hits: list[int | None] = []
    for row in rows:
        if max_prompt_tokens is not None and row.prompt_tokens > max_prompt_tokens:
            hits.append(None)
            continue
        hits.append(min(tree.add(row).common_tokens, row.prompt_tokens - 1) // block_size * block_size)
    return hits
