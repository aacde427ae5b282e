"""What an infinite prefix cache would have served of each request: the bound beside the hits that a run had."""

from __future__ import annotations

from collections.abc import Iterable

from kvtop.results.tables import Ideal
from kvtop.workloads.oracle.ideal import ideal_hits
from kvtop.workloads.rows import Row


def ideal_of(rows: Iterable[Row], block_size: int, max_prompt_tokens: int) -> Ideal:
    """By request id (``kvtop.workloads.replay`` calls them r0, r1, ...): tokens in whole blocks, and exactly.

    Both None for a prompt above ``max_prompt_tokens``: it is rejected.
    """
    exact = ideal_hits(rows, 1, max_prompt_tokens=max_prompt_tokens)
    return {
        f"r{index}": (None, None) if tokens is None else (tokens // block_size * block_size, tokens)
        for index, tokens in enumerate(exact)
    }
