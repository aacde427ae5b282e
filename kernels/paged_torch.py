"""Paged attention in plain torch operations: the path of every device that has no kernel of its own.

Pools are (num_blocks, kv_heads, block_size, head_dim), K and V apart, one pair a layer. With heads outside the block a
gather of (block, head) pieces gives contiguous (kv_heads, keys, head_dim) matrices, and decode is two batched matrix
products without a copy of K or V for the query heads that share it: 16 sequences x 300 keys (9 heads, 3 KV heads,
head size 64, 2 threads) take 0.34 ms against 0.66 ms for scaled_dot_product_attention over a (block, slot, head) pool.

Pools may be quantised (see ``kernels.quant``): what is gathered is read in the precision of the queries.

All indices are made once a step (see ``DecodeGroup`` and ``PrefillSpan``) and shared by the layers.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from kvtop.kernels.quant import QuantisedPool, gather_quantised, write_quantised

Pool = Tensor | QuantisedPool


@dataclass(frozen=True, slots=True)
class DecodeGroup:
    """Sequences with one new token each, padded to the same number of blocks.

    Rows ``first_row .. first_row + num_seqs - 1`` of the pack. ``pieces`` (num_seqs * KVH * blocks,) indexes the pool
    seen as (num_blocks * KVH, B, D). ``mask`` (num_seqs, 1, L) is added to the scores: 0 or -inf; None when every
    gathered slot is visible. ``hidden`` indexes the gathered (num_seqs * KVH * L, D) rows that must not be read.
    """

    first_row: int
    num_seqs: int
    pieces: Tensor
    mask: Tensor | None
    hidden: Tensor | None


@dataclass(frozen=True, slots=True)
class PrefillSpan:
    """``count`` new tokens of one sequence, rows ``first_row ..`` of the pack.

    ``pieces`` (KVH * blocks,) as in ``DecodeGroup``; None when the chunk starts at position 0, where its own K and V
    are all there is. ``mask`` (count, L) is added to the scores; None: plain causal from position 0. ``hidden`` indexes
    the gathered (KVH * L, D) rows that must not be read.
    """

    first_row: int
    count: int
    pieces: Tensor | None
    mask: Tensor | None
    hidden: Tensor | None


def kv_write(pool: Pool, rows: Tensor, new: Tensor) -> None:
    """Write ``new`` (T, KVH, D) into ``pool``; ``rows`` (T * KVH,) indexes it seen as (num_blocks * KVH * B, D)."""
    if isinstance(pool, QuantisedPool):
        write_quantised(pool, rows, new)
        return
    dim = pool.shape[-1]
    pool.view(-1, dim).index_copy_(0, rows, new.reshape(-1, dim).to(pool.dtype))


def copy_blocks(pool: Tensor, sources: Tensor, destinations: Tensor) -> None:
    """Copy whole blocks; no destination may appear twice or also be a source (reads happen before all writes)."""
    pool.index_copy_(0, destinations, pool.index_select(0, sources))


def swap_blocks(source: Tensor, source_ids: Tensor, destination: Tensor, destination_ids: Tensor) -> None:
    """Copy whole blocks between two pools of one layer, which may lie on different devices."""
    blocks = source.index_select(0, source_ids.to(source.device))
    destination.index_copy_(0, destination_ids.to(destination.device), blocks.to(destination.device))


def gather_pieces(pool: Pool, pieces: Tensor, hidden: Tensor | None, batch: int) -> Tensor:
    """(batch, L, D) contiguous copy of the named (block, head) pieces, hidden rows zeroed.

    Slots that were never written may hold NaN, and 0 x NaN is NaN: a mask on the scores alone would let it through.
    """
    num_blocks, heads, block_size, dim = pool.shape
    if isinstance(pool, QuantisedPool):
        rows = gather_quantised(pool, pieces)
    else:
        rows = pool.view(num_blocks * heads, block_size, dim).index_select(0, pieces)
    if hidden is not None:
        rows.view(-1, dim).index_fill_(0, hidden, 0.0)
    return rows.view(batch, -1, dim)


def paged_decode(
    q: Tensor, k_pool: Pool, v_pool: Pool, group: DecodeGroup, *, scaling: float, softcap: float | None = None
) -> Tensor:
    """Attention of one token a sequence: ``q`` (num_seqs, H, D) to (num_seqs, H, Dv)."""
    seqs, heads, dim = q.shape
    kv_heads = k_pool.shape[1]
    batch = seqs * kv_heads
    keys = gather_pieces(k_pool, group.pieces, group.hidden, batch)
    values = gather_pieces(v_pool, group.pieces, group.hidden, batch)
    queries = q.reshape(batch, heads // kv_heads, dim)
    mask = group.mask
    if mask is not None:
        mask = mask.expand(seqs, kv_heads, mask.shape[-1]).reshape(batch, 1, -1)
    weights = _weights(queries, keys, mask, scaling, softcap)
    return torch.bmm(weights, values).view(seqs, heads, -1)


def paged_prefill(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    k_pool: Pool,
    v_pool: Pool,
    span: PrefillSpan,
    *,
    scaling: float,
    softcap: float | None = None,
) -> Tensor:
    """Attention of one chunk: ``q`` (H, T, D), its own ``k``, ``v`` (KVH, T, D), to (H, T, Dv)."""
    kv_heads = k.shape[0]
    keys, values = k, v
    if span.pieces is not None:
        keys = gather_pieces(k_pool, span.pieces, span.hidden, kv_heads)
        values = gather_pieces(v_pool, span.pieces, span.hidden, kv_heads)
    if softcap is None:
        return functional.scaled_dot_product_attention(
            q[None],
            keys[None],
            values[None],
            attn_mask=span.mask,
            is_causal=span.mask is None,
            scale=scaling,
            enable_gqa=q.shape[0] != kv_heads,
        )[0]
    heads, count, dim = q.shape
    queries = q.reshape(kv_heads, heads // kv_heads * count, dim)
    mask = span.mask
    if mask is None:
        mask = torch.full((count, count), float("-inf"), dtype=q.dtype, device=q.device).triu(1)
    weights = _weights(queries, keys, mask.repeat(heads // kv_heads, 1), scaling, softcap)
    return torch.bmm(weights, values).view(heads, count, -1)


def _weights(q: Tensor, keys: Tensor, mask: Tensor | None, scaling: float, softcap: float | None) -> Tensor:
    """Softmax of the scaled, capped and masked scores, computed in fp32 or better, returned in q's dtype."""
    if softcap is None and mask is not None:
        scores = torch.baddbmm(mask, q, keys.transpose(1, 2), alpha=scaling)
    else:
        scores = torch.bmm(q, keys.transpose(1, 2)).mul_(scaling)
        if softcap is not None:
            scores = scores.div_(softcap).tanh_().mul_(softcap)
        if mask is not None:
            scores = scores + mask
    if q.dtype in (torch.float16, torch.bfloat16):
        return scores.softmax(-1, dtype=torch.float32).to(q.dtype)
    return scores.softmax(-1)
