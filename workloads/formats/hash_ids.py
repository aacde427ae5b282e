"""Checks of block ids: how many a prompt must have, what they may be, and whether they stand for whole prefixes."""

from __future__ import annotations

from collections.abc import Iterable

from kvtop.engine.errors import WorkloadError
from kvtop.workloads.formats.base import MAX_INT
from kvtop.workloads.rows import Row
from kvtop.workloads.words import counted, shorten

CEIL, FLOOR = "ceil", "floor"
COMMON_BLOCKS = (16, 32, 64, 128, 256, 512, 1024)
_RULE = {CEIL: "the last partial block included", FLOOR: "full blocks only"}


def num_ids(prompt_tokens: int, block: int, rounding: str) -> int:
    """How many ids a prompt has: one for each block of tokens, a partial last one included (ceil) or not (floor)."""
    return prompt_tokens // block if rounding == FLOOR else -(-prompt_tokens // block)


def check_ids(
    ids: tuple[int, ...], prompt_tokens: int, block: int, rounding: str, key: str, path: str, line: int | None
) -> None:
    """Refuse ids that do not fit their prompt, and ids that are no ids.

    Raises:
        WorkloadError: names both numbers, the block, and block sizes that would fit.
    """
    need = num_ids(prompt_tokens, block, rounding)
    if len(ids) != need:
        raise WorkloadError(
            f"hash_ids has {len(ids):,} ids, but {key} {prompt_tokens:,} needs {need:,} "
            f"(one for each {block} tokens, {_RULE[rounding]}){_hint(len(ids), prompt_tokens, rounding)}",
            path=path,
            row=line,
        )
    if ids and (min(ids) < 0 or max(ids) > MAX_INT):
        bad = next(i for i in ids if not 0 <= i <= MAX_INT)
        raise WorkloadError(f"hash_ids holds {shorten(bad)}, expected 0 to 2^63 - 1", path=path, row=line)


class SharedIds:
    """Ids as one object each, however often they occur: a trace of millions of them takes a fifth of the memory."""

    def __init__(self) -> None:
        self._known: dict[int, int] = {}

    def of(self, ids: tuple[int, ...]) -> tuple[int, ...]:
        """The same ids."""
        known = self._known
        return tuple([known.setdefault(hash_id, hash_id) for hash_id in ids])


def prefix_notices(rows: Iterable[Row]) -> list[str]:
    """Ids of prefix hashes have one predecessor each; others share tokens, but not the whole prefix."""
    before: dict[int, int] = {}
    broken: set[int] = set()
    for row in rows:
        previous = -1
        for hash_id in row.hash_ids:
            if before.setdefault(hash_id, previous) != previous:
                broken.add(hash_id)
            previous = hash_id
    if not broken:
        return []
    return [f"{counted(len(broken), 'hash id')} with more than one predecessor: they are not hashes of whole prefixes"]


def _hint(found: int, prompt_tokens: int, rounding: str) -> str:
    fits = [block for block in COMMON_BLOCKS if num_ids(prompt_tokens, block, rounding) == found]
    return f"; blocks of {' or '.join(map(str, fits))} would fit (hash_block_tokens)" if fits and found > 1 else ""
