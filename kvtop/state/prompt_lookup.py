"""How much of a prompt is cached now, where that ends, and what became of the rest: from its keys alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

from kvtop.state.cache_log import CacheLog
from kvtop.state.prefix_tree import TOP, PrefixTree

CACHED, CUT_OFF, EVICTED, UNKNOWN = "cached", "cut off", "evicted", "unknown"
"""Of a block: found; there, but behind one that is not; driven out and not come back; neither."""


class Fate(NamedTuple):
    """What became of blocks ``first .. last`` of the prompt. ``step``, ``cause``: of their eviction."""

    what: str
    first: int
    last: int
    step: int | None = None
    cause: str = ""


@dataclass(slots=True)
class PromptLookup:
    """``found``: leading whole blocks that are cached; ``usable``: of them, those that a request would be given.

    ``others``: blocks that follow the last one found (or begin a prefix, where none is) instead of the prompt's next.
    """

    num_tokens: int
    block_size: int
    num_blocks: int
    found: int
    usable: int
    others: int
    fates: list[Fate]

    @property
    def tail(self) -> int:
        """Tokens behind the last whole block: never cached."""
        return self.num_tokens - self.num_blocks * self.block_size

    @property
    def end(self) -> Fate | None:
        """What became of the block at which the match ends; None: it ends with the whole blocks."""
        return next((fate for fate in self.fates if fate.first == self.found), None)


def look_up_prompt(
    keys: Sequence[Sequence[int]], num_tokens: int, block_size: int, tree: PrefixTree, log: CacheLog
) -> PromptLookup:
    """``keys``: of each whole block, those it may be cached under. Complexity: O(keys), and the blocks at the top."""
    found, ends = 0, []
    for own in keys:
        block = next((block for key in own if (block := _follows(key, ends, tree)) is not None), None)
        if block is None:
            break
        ends = [standing for key in own if (standing := _follows(key, ends, tree)) is not None]
        found += 1
    if ends:
        others = sum(tree.num_children[block] for block in ends)
    else:
        others = int((tree.parent == TOP).sum()) if tree.pool is not None else 0
    fates: list[Fate] = []
    told = (_fate(own, index < found, tree, log) for index, own in enumerate(keys))
    for (what, step, cause), run in groupby(enumerate(told), key=lambda pair: pair[1]):
        places = [index for index, _ in run]
        fates.append(Fate(what, places[0], places[-1], step, cause))
    usable = max(0, min(found, (num_tokens - 1) // block_size))
    return PromptLookup(num_tokens, block_size, len(keys), found, usable, others, fates)


def _follows(key: int, ends: list[int], tree: PrefixTree) -> int | None:
    """The block cached under ``key``, where it hangs under one of ``ends`` (at first: anywhere)."""
    block = tree.block_of.get(key)
    if block is None or tree.pool is None:
        return None
    if not ends:
        return block
    parent = tree.pool.parent_key[block]
    return block if any(parent == tree.pool.key[end] for end in ends) else None


def _fate(own: Sequence[int], is_found: bool, tree: PrefixTree, log: CacheLog) -> tuple[str, int | None, str]:
    if is_found:
        return CACHED, None, ""
    if any(key in tree.block_of for key in own):
        return CUT_OFF, None, ""
    gone = [end for key in own for end in log.ends_of(key)]
    return (EVICTED, *max(gone, key=lambda end: (end[0] or 0, end[1]))) if gone else (UNKNOWN, None, "")
