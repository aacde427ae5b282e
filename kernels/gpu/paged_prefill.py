"""Attention of chunks of new tokens over cached prefixes: causal, with or without a sliding window."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from kvtop.kernels.gpu.config import PrefillConfig, next_power, prefill_config
from kvtop.kernels.gpu.launch import (
    Pool,
    bf16_by_hand,
    check_dims,
    check_group,
    check_rows,
    on_device_of,
    on_grid,
    pool_arguments,
    score_scales,
)
from kvtop.kernels.gpu.tables import PagedTables
from kvtop.kernels.gpu.tile import fold, load_rows, load_scales, rounded


@triton.jit
def _sequence_of(tile, starts_ptr, num_seqs, QUERIES: tl.constexpr):
    """Sequence whose tile number ``tile`` is: those of sequence i begin at ``starts[i] // QUERIES + i``."""
    low = 0
    high = num_seqs
    while low < high:
        middle = (low + high) // 2
        begins = tl.load(starts_ptr + middle) // QUERIES + middle
        low = tl.where(begins <= tile, middle + 1, low)
        high = tl.where(begins <= tile, high, middle)
    return low - 1


@triton.jit
def _prefill_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    k_scale_ptr,
    v_scale_ptr,
    out_ptr,
    tables_ptr,
    lengths_ptr,
    starts_ptr,
    q_stride_token,
    q_stride_head,
    k_scale_stride_block,
    k_scale_stride_head,
    k_scale_stride_slot,
    v_scale_stride_block,
    v_scale_stride_head,
    v_scale_stride_slot,
    out_stride_token,
    out_stride_head,
    tables_stride,
    num_seqs,
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
    QUERIES: tl.constexpr,
    K_DIM: tl.constexpr,
    K_PADDED: tl.constexpr,
    V_DIM: tl.constexpr,
    V_PADDED: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TILE: tl.constexpr,
    FORMAT: tl.constexpr,
    HAS_CAP: tl.constexpr,
    BF16_BY_HAND: tl.constexpr,
):
    """Program (tile of QUERIES queries of one sequence, KV head): row r is query r // GROUP, head r % GROUP of it."""
    tile = tl.program_id(0)
    head = tl.program_id(1).to(tl.int64)
    seq = tl.cast(_sequence_of(tile, starts_ptr, num_seqs, QUERIES), tl.int64)
    first_query = tl.load(starts_ptr + seq)
    count = tl.load(starts_ptr + seq + 1) - first_query
    offset = (tile - (first_query // QUERIES + seq).to(tl.int32)) * QUERIES
    if offset >= count:
        return

    row = tl.arange(0, ROWS)
    token = offset + row // GROUP
    live_row = (token < count) & (row < QUERIES * GROUP)
    prefix = tl.load(lengths_ptr + seq) - count
    position = prefix + token
    query = (first_query + token).to(tl.int64)
    query_head = head * GROUP + row % GROUP
    q = load_rows(q_ptr + query * q_stride_token + query_head * q_stride_head, live_row, K_DIM, K_PADDED)

    top = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    value = tl.zeros((ROWS, V_PADDED), tl.float32)
    begin = tl.maximum(prefix + offset - window + 1, 0)
    end = prefix + tl.minimum(offset + QUERIES, count)
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
        # Keys past ``end`` are past every query of the tile: causality hides them too.
        visible = (key[None, :] <= position[:, None]) & (key[None, :] > (position - window)[:, None])
        visible = visible & live[None, :]
        top, total, value = fold(
            q, k, v, k_scale, v_scale, visible, top, total, value, score_scale, cap_scale, FORMAT, HAS_CAP, BF16_BY_HAND
        )

    value = value / tl.where(total == 0.0, 1.0, total)[:, None]
    dim = tl.arange(0, V_PADDED)
    out_rows = out_ptr + query * out_stride_token + query_head * out_stride_head
    mask = live_row[:, None] & (dim < V_DIM)[None, :]
    tl.store(out_rows[:, None] + dim[None, :], rounded(value, out_ptr.dtype.element_ty, BF16_BY_HAND), mask=mask)


def paged_prefill(
    q: Tensor,
    k_pool: Pool,
    v_pool: Pool,
    tables: PagedTables,
    *,
    scaling: float,
    softcap: float | None = None,
    out: Tensor | None = None,
    config: PrefillConfig | None = None,
) -> Tensor:
    """Attention of all chunks of a launch: ``q`` (T, H, D), of any strides, to (T, H, Dv).

    Rows ``tables.starts[i] .. tables.starts[i + 1] - 1`` are the last tokens of sequence i, whose K and V are in the
    pools already. Rows past ``starts[num_seqs]`` are padding and stay as they are in ``out``. A launch depends on
    shapes only.

    Raises:
        ValueError: shapes, strides or precisions that do not go together, or no ``starts``.
    """
    tables.check()
    check_rows(q, "q", 3)
    check_dims(q, k_pool, v_pool)
    num_tokens, num_heads, dim = q.shape
    _, kv_heads, block_size, v_dim = v_pool.shape
    group = check_group(num_heads, kv_heads)
    if tables.starts is None:
        raise ValueError("starts: expected the first row of every sequence, found None")
    k, v = pool_arguments(k_pool, "k_pool", q.dtype), pool_arguments(v_pool, "v_pool", q.dtype)
    if out is None:
        out = q.new_empty(num_tokens, num_heads, v_dim)
    check_rows(out, "out", 3)
    config = config or prefill_config(group, max(dim, v_dim), q.element_size())
    if num_tokens == 0:
        return out
    queries = config.rows // group
    with on_device_of(q):
        on_grid(_prefill_kernel, num_tokens // queries + tables.num_seqs, kv_heads)(
            q,
            k.values,
            v.values,
            k.scales,
            v.scales,
            out,
            tables.block_tables,
            tables.lengths,
            tables.starts,
            q.stride(0),
            q.stride(1),
            *k.scale_strides,
            *v.scale_strides,
            out.stride(0),
            out.stride(1),
            tables.block_tables.stride(0),
            tables.num_seqs,
            *score_scales(scaling, softcap),
            tables.window_or_all,
            *k.strides,
            *v.strides,
            GROUP=group,
            ROWS=config.rows,
            QUERIES=queries,
            K_DIM=dim,
            K_PADDED=next_power(dim, 16),
            V_DIM=v_dim,
            V_PADDED=next_power(v_dim, 16),
            BLOCK_SIZE=block_size,
            TILE=config.tile,
            FORMAT=k.kv_format,
            HAS_CAP=softcap is not None,
            BF16_BY_HAND=bf16_by_hand(q.dtype),
            num_warps=config.num_warps,
            num_stages=config.num_stages,
        )
    return out
