"""The oracle: paged attention in plain NumPy, fp64 inside, one query row at a time. Slow on purpose, and obvious.

Every other implementation is tested against it: error <= 2 x the error of plain torch in the same precision.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating]


class Partial(NamedTuple):
    """Attention over some of the keys: ``value`` (T, H, D) and its log-sum-exp ``lse`` (T, H); no keys: 0 and -inf."""

    value: NDArray[np.float64]
    lse: NDArray[np.float64]


def slot_of(block_table: Sequence[int], position: int, block_size: int) -> int:
    """Slot of a position: ``block_table[position // B] * B + position % B``."""
    return block_table[position // block_size] * block_size + position % block_size


def num_pages(num_tokens: int, block_size: int) -> tuple[int, int]:
    """(pages, tokens in the last page) that hold ``num_tokens``; the last page is never empty unless there is none."""
    pages = -(-num_tokens // block_size)
    return pages, num_tokens - (pages - 1) * block_size if pages else 0


def gather(pool: Array, block_table: Sequence[int], first: int, stop: int) -> NDArray[np.float64]:
    """Rows of positions ``first .. stop-1`` as (stop - first, KVH, D), read slot by slot.

    ``pool`` is (num_blocks, KVH, B, D). Entries of the table beyond ``stop`` are never looked at.
    """
    _, heads, block_size, dim = pool.shape
    rows = np.empty((stop - first, heads, dim), dtype=np.float64)
    for i, position in enumerate(range(first, stop)):
        slot = slot_of(block_table, position, block_size)
        rows[i] = pool[slot // block_size, :, slot % block_size]
    return rows


def attention_row(
    q: Array, keys: Array, values: Array, *, scaling: float, softcap: float | None = None
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """One query row (H, D) over keys (L, KVH, D), all of them visible: value (H, Dv) and lse (H,)."""
    num_heads, num_kv_heads = q.shape[0], keys.shape[1]
    group = num_heads // num_kv_heads
    value = np.zeros((num_heads, values.shape[2]))
    lse = np.full(num_heads, -np.inf)
    if len(keys) == 0:
        return value, lse
    for head in range(num_heads):
        scores = keys[:, head // group].astype(np.float64) @ q[head].astype(np.float64) * scaling
        if softcap is not None:
            scores = softcap * np.tanh(scores / softcap)
        top = scores.max()
        weights = np.exp(scores - top)
        value[head] = weights @ values[:, head // group].astype(np.float64) / weights.sum()
        lse[head] = top + np.log(weights.sum())
    return value, lse


def paged_attention(
    q: Array,
    k_pool: Array,
    v_pool: Array,
    block_table: Sequence[int],
    start: int,
    *,
    scaling: float,
    window: int | None = None,
    softcap: float | None = None,
    first_key: int = 0,
    stop_key: int | None = None,
) -> Partial:
    """Causal attention of queries at positions ``start ..`` over the keys that ``block_table`` names.

    ``q`` is (T, H, D), the pools (num_blocks, KVH, B, D), H a multiple of KVH. The query at position p sees keys
    ``max(0, p - window + 1) .. p``, cut to ``first_key .. stop_key - 1`` (a part of the keys, to be merged).
    Only slots of visible keys are read, so NaN in any other slot does not matter.
    """
    rows = [np.zeros((0,))] * len(q)
    lses = [np.zeros((0,))] * len(q)
    for i, row in enumerate(q):
        position = start + i
        first = max(first_key, 0 if window is None else position - window + 1)
        stop = min(position + 1, position + 1 if stop_key is None else stop_key)
        stop = max(first, stop)
        keys, values = gather(k_pool, block_table, first, stop), gather(v_pool, block_table, first, stop)
        rows[i], lses[i] = attention_row(row, keys, values, scaling=scaling, softcap=softcap)
    return Partial(np.stack(rows), np.stack(lses))


def merge(partials: Sequence[Partial]) -> Partial:
    """Combine attention over disjoint sets of keys into attention over their union.

    An empty part (lse -inf) changes nothing; if all are empty the result is empty too, without NaN.
    """
    lses = np.stack([p.lse for p in partials])
    top = lses.max(axis=0)
    safe = np.where(np.isneginf(top), 0.0, top)
    weights = np.exp(lses - safe)
    total = weights.sum(axis=0)
    value = sum(w[..., None] * p.value for w, p in zip(weights, partials, strict=True))
    with np.errstate(divide="ignore"):
        lse = np.where(total > 0, safe + np.log(total), -np.inf)
    return Partial(np.asarray(value) / np.where(total > 0, total, 1.0)[..., None], lse)
