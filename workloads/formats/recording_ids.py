"""Which prompts of a recorded run began alike: block keys, read from the decision log.

A key stands for a block and everything before it. It is logged when a block is published; a later request that takes
the block from the cache is logged with the block alone, so the log is followed from its start.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count, takewhile
from pathlib import Path
from typing import Any

KINDS = ("alloc", "share", "publish", "evict")
COLUMNS = ("kind", "request_id", "group", "block", "num_tokens", "block_key")


def block_ids(events: Path, block_size: int) -> dict[str, tuple[int, ...]]:
    """By request: one id for each block from the prompt's start on, up to the first whose content was never published.

    An id is the same for the same content. Answers count as well: cut the ids to the prompt. {} without a log.
    """
    if not events.is_file():
        return {}
    import polars as pl

    log = pl.scan_parquet(events).filter(pl.col("kind").is_in(KINDS) & (pl.col("group").fill_null(0) == 0))
    keys = _keys_by_position(log.select(COLUMNS).collect().iter_rows(), block_size)
    dense: dict[int, int] = {}
    found = {}
    for request, by_position in keys.items():
        chain = takewhile(lambda key: key is not None, (by_position.get(place) for place in count()))
        found[request] = tuple(dense.setdefault(key, len(dense)) for key in chain if key is not None)
    return found


def _keys_by_position(log: Iterable[tuple[Any, ...]], block_size: int) -> dict[str, dict[int, int]]:
    key_of: dict[int, int] = {}  # published blocks
    position: dict[tuple[str, int], int] = {}  # of a block in a request's table, in blocks
    keys: dict[str, dict[int, int]] = {}
    for kind, request, _, block, num_tokens, key in log:
        if kind == "evict":
            key_of.pop(block, None)
        elif kind == "publish":
            key_of[block] = key
            if (request, block) in position:
                keys.setdefault(request, {})[position[request, block]] = key
        else:
            place = num_tokens // block_size
            position[request, block] = place
            if kind == "share" and block in key_of:
                keys.setdefault(request, {})[place] = key_of[block]
    return keys
