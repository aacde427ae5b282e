"""Rows as formats without sessions know them: block ids of one size for every row, whatever the rows share by."""

from __future__ import annotations

from collections.abc import Hashable

from kvtop.engine.errors import WorkloadError
from kvtop.workloads.rows import Row
from kvtop.workloads.words import counted


def block_of(rows: list[Row], usual: int) -> int:
    """The hash block of all rows; ``usual`` where none has ids.

    Raises:
        WorkloadError: rows of more than one hash block.
    """
    found = sorted({row.hash_block_tokens for row in rows if row.hash_ids})
    if len(found) > 1:
        raise WorkloadError(f"rows have hash blocks of {found} tokens, expected one size for all")
    return found[0] if found else usual


def ceil_ids(rows: list[Row], block: int) -> list[tuple[int, ...]]:
    """One id for every block of every prompt, the partial last one included.

    Ids that rows have are kept. What they do not cover gets new ones: the same for the same content (whole blocks of
    a shared head or of a conversation), one of its own for everything else.

    Raises:
        WorkloadError: a row that shares in two ways at once.
    """
    fresh = 1 + max((max(row.hash_ids) for row in rows if row.hash_ids), default=-1)
    known: dict[Hashable, int] = {}
    out = []
    for index, row in enumerate(rows):
        if row.hash_ids and (row.shared_tokens or row.conversation is not None):
            raise WorkloadError(f"request {index} has hash ids and another way to share, which this format cannot hold")
        ids = list(row.hash_ids)
        for place in range(len(ids), -(-row.prompt_tokens // block)):
            key = _content(row, index, place, block)
            ids.append(known.setdefault(key, fresh + len(known)))
        out.append(tuple(ids))
    return out


def lost(rows: list[Row]) -> list[str]:
    """What these rows say that a list of arrivals, lengths and ids does not hold."""
    turns = sum(row.think_ns is not None for row in rows)
    sampled = sum(row.n > 1 or row.num_beams > 1 or row.temperature > 0 for row in rows)
    notices = []
    if turns:
        notices.append(
            f"sessions are not written: {counted(turns, 'turn')} will arrive at the recorded time (open loop)"
        )
    if sampled:
        notices.append(f"sampling is not written, of {counted(sampled, 'request')}")
    if any(row.priority or row.tenant or row.klass for row in rows):
        notices.append("priorities, tenants and classes are not written")
    return notices


def _content(row: Row, index: int, place: int, block: int) -> Hashable:
    end = (place + 1) * block
    if end <= row.shared_tokens:
        return "shared", row.shared_id, place
    if row.conversation is not None and end <= row.prompt_tokens:
        return "conversation", row.conversation, row.shared_id, row.shared_tokens, place
    return "own", index, place
