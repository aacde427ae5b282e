"""Attention of one new token a sequence over its blocks, long sequences shared out to several programs (split-KV)."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kvtop.kernels.gpu.config import DecodeConfig, decode_config, next_power
from kvtop.kernels.gpu.launch import (
    Pool,
    bf16_by_hand,
    check_dims,
    check_group,
    check_rows,
    num_processors,
    on_device_of,
    on_grid,
    pool_arguments,
    score_scales,
)
from kvtop.kernels.gpu.merge_splits import merge_splits
from kvtop.kernels.gpu.tables import PagedTables
from kvtop.kernels.gpu.tile import fold, load_rows, load_scales, rounded


@triton.jit
def _decode_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    k_scale_ptr,
    v_scale_ptr,
    out_ptr,
    lse_ptr,
    tables_ptr,
    lengths_ptr,
    q_stride_seq,
    q_stride_head,
    k_scale_stride_block,
    k_scale_stride_head,
    k_scale_stride_slot,
    v_scale_stride_block,
    v_scale_stride_head,
    v_scale_stride_slot,
    out_stride_seq,
    out_stride_head,
    out_stride_split,
    lse_stride_seq,
    lse_stride_head,
    tables_stride,
    score_scale,
    cap_scale,
    window,
    K_STRIDE_BLOCK: tl.constexpr,
    K_STRIDE_HEAD: tl.constexpr,
    K_STRIDE_SLOT: tl.constexpr,
    V_STRIDE_BLOCK: tl.constexpr,
    V_STRIDE_HEAD: tl.constexpr,
    V_STRIDE_SLOT: tl.constexpr,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    K_DIM: tl.constexpr,
    K_PADDED: tl.constexpr,
    V_DIM: tl.constexpr,
    V_PADDED: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TILE: tl.constexpr,
    MIN_TILES: tl.constexpr,
    NUM_SPLITS: tl.constexpr,
    FORMAT: tl.constexpr,
    HAS_CAP: tl.constexpr,
    BF16_BY_HAND: tl.constexpr,
):
    """Program (sequence, KV head, split): the split's share of the visible keys, for all heads of the group."""
    seq = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1).to(tl.int64)
    split = tl.program_id(2)
    length = tl.load(lengths_ptr + seq)
    first = tl.maximum(length - window, 0)
    num_tiles = tl.cdiv(length - first, TILE)
    share = tl.maximum(tl.cdiv(num_tiles, NUM_SPLITS), MIN_TILES) * TILE
    begin = first + split * share
    end = tl.minimum(begin + share, length)

    row = tl.arange(0, ROWS)
    query_head = head * GROUP + row
    if NUM_SPLITS > 1:
        lse_ptrs = lse_ptr + seq * lse_stride_seq + query_head * lse_stride_head + split
        if begin >= end:
            # No share: the merge looks at the log-sum-exp alone.
            tl.store(lse_ptrs, tl.full((ROWS,), float("-inf"), tl.float32), mask=row < GROUP)
            return

    q = load_rows(q_ptr + seq * q_stride_seq + query_head * q_stride_head, row < GROUP, K_DIM, K_PADDED)
    top = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    value = tl.zeros((ROWS, V_PADDED), tl.float32)
    for start in range(begin, end, TILE):
        key = start + tl.arange(0, TILE)
        live = key < end
        # 64 bits before multiplying: block x stride passes 2^31 in pools of a few GiB.
        block = tl.load(tables_ptr + seq * tables_stride + key // BLOCK_SIZE, mask=live, other=0).to(tl.int64)
        slot = key % BLOCK_SIZE
        k_ptrs = k_ptr + block * K_STRIDE_BLOCK + head * K_STRIDE_HEAD + slot * K_STRIDE_SLOT
        v_ptrs = v_ptr + block * V_STRIDE_BLOCK + head * V_STRIDE_HEAD + slot * V_STRIDE_SLOT
        k = load_rows(k_ptrs, live, K_DIM, K_PADDED)
        v = load_rows(v_ptrs, live, V_DIM, V_PADDED)
        k_scale, v_scale = score_scale, score_scale  # stand-ins, not used by a plain pool
        if FORMAT != "plain":
            k_scale_ptrs = k_scale_ptr + block * k_scale_stride_block + head * k_scale_stride_head
            v_scale_ptrs = v_scale_ptr + block * v_scale_stride_block + head * v_scale_stride_head
            k_scale = load_scales(k_scale_ptrs + slot * k_scale_stride_slot, live, FORMAT)
            v_scale = load_scales(v_scale_ptrs + slot * v_scale_stride_slot, live, FORMAT)
        top, total, value = fold(
            q,
            k,
            v,
            k_scale,
            v_scale,
            live[None, :],
            top,
            total,
            value,
            score_scale,
            cap_scale,
            FORMAT,
            HAS_CAP,
            BF16_BY_HAND,
        )

    value = value / tl.where(total == 0.0, 1.0, total)[:, None]
    dim = tl.arange(0, V_PADDED)
    out_rows = out_ptr + seq * out_stride_seq + query_head * out_stride_head + split * out_stride_split
    mask = (row < GROUP)[:, None] & (dim < V_DIM)[None, :]
    tl.store(out_rows[:, None] + dim[None, :], rounded(value, out_ptr.dtype.element_ty, BF16_BY_HAND), mask=mask)
    if NUM_SPLITS > 1:
        tl.store(lse_ptrs, top + tl.math.log2(total), mask=row < GROUP)


def paged_decode(
    q: Tensor,
    k_pool: Pool,
    v_pool: Pool,
    tables: PagedTables,
    *,
    scaling: float,
    softcap: float | None = None,
    out: Tensor | None = None,
    config: DecodeConfig | None = None,
) -> Tensor:
    """Attention of the last token of every sequence: ``q`` (num_seqs, H, D), of any strides, to (num_seqs, H, Dv).

    Pools are (num_blocks, KVH, B, D) and (num_blocks, KVH, B, Dv); the last token's K and V are in them already. A
    sequence of length 0 gets zeros. Nothing is copied to the host, and the launch depends on shapes only.

    Raises:
        ValueError: shapes, strides or precisions that do not go together.
    """
    tables.check()
    check_rows(q, "q", 3)
    check_dims(q, k_pool, v_pool)
    num_seqs, num_heads, dim = q.shape
    _, kv_heads, block_size, v_dim = v_pool.shape
    group = check_group(num_heads, kv_heads)
    if num_seqs != tables.num_seqs:
        raise ValueError(f"{num_seqs} queries for {tables.num_seqs} block tables")
    k, v = pool_arguments(k_pool, "k_pool", q.dtype), pool_arguments(v_pool, "v_pool", q.dtype)
    if out is None:
        out = q.new_empty(num_seqs, num_heads, v_dim)
    check_rows(out, "out", 3)
    if config is None:
        max_keys = min(tables.block_tables.shape[1] * block_size, tables.window_or_all)
        processors = num_processors(q.device)
        config = decode_config(num_seqs, kv_heads, max_keys, max(dim, v_dim), k.values.element_size(), processors)
    if num_seqs == 0:
        return out
    splits = config.num_splits
    partial, lse = out, out  # stand-ins where there is nothing to merge
    if splits > 1:
        partial = torch.empty(num_seqs, num_heads, splits, v_dim, dtype=torch.float32, device=q.device)
        lse = torch.empty(num_seqs, num_heads, splits, dtype=torch.float32, device=q.device)
    with on_device_of(q):
        on_grid(_decode_kernel, num_seqs, kv_heads, splits)(
            q,
            k.values,
            v.values,
            k.scales,
            v.scales,
            partial,
            lse,
            tables.block_tables,
            tables.lengths,
            q.stride(0),
            q.stride(1),
            *k.scale_strides,
            *v.scale_strides,
            partial.stride(0),
            partial.stride(1),
            partial.stride(2) if splits > 1 else 0,
            lse.stride(0),
            lse.stride(1),
            tables.block_tables.stride(0),
            *score_scales(scaling, softcap),
            tables.window_or_all,
            *k.strides,
            *v.strides,
            GROUP=group,
            ROWS=next_power(group, 16),
            K_DIM=dim,
            K_PADDED=next_power(dim, 16),
            V_DIM=v_dim,
            V_PADDED=next_power(v_dim, 16),
            BLOCK_SIZE=block_size,
            TILE=config.tile,
            MIN_TILES=config.min_tiles,
            NUM_SPLITS=splits,
            FORMAT=k.kv_format,
            HAS_CAP=softcap is not None,
            BF16_BY_HAND=bf16_by_hand(q.dtype),
            num_warps=config.num_warps,
            num_stages=config.num_stages,
        )
    if splits > 1:
        merge_splits(partial, lse, out)
    return out
