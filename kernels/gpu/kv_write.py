"""New K or V rows into the slots of their tokens, quantised on the way where the pool is."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from kvtop.kernels.gpu.config import next_power
from kvtop.kernels.gpu.launch import PLAIN, Pool, check_rows, on_device_of, on_grid, pool_arguments
from kvtop.kernels.quant import LARGEST, QuantisedPool

TILE_ELEMENTS = 2048  # a program: 16 a thread, 16-byte stores from fp16 on


@triton.jit
def _round_to_even(x):
    """Nearest whole number of |x| < 2^22, ties to even: adding 1.5 * 2^23 leaves fp32 no bits below 1."""
    return (x + 12582912.0) - 12582912.0


@triton.jit
def _e4m3_bits(x):
    """Bits of the nearest e4m3 number, ties to even, as int32 0 .. 255; |x| is at most 448 before rounding.

    By hand: the hardware's conversion exists on newer devices only.
    """
    negative = x.to(tl.int32, bitcast=True) < 0  # -0 too
    size = tl.abs(x)
    bits = size.to(tl.int32, bitcast=True)
    # Three mantissa bits are kept of 23; exponents are biased by 7 instead of 127.
    normal = ((bits + 0x7FFFF + ((bits >> 20) & 1)) >> 20) - 960
    subnormal = _round_to_even(size * 512.0).to(tl.int32)
    code = tl.minimum(tl.where(size < 0.015625, subnormal, normal), 126)
    return tl.where(negative, code | 128, code)


@triton.jit
def _write_kernel(
    new_ptr,
    values_ptr,
    scales_ptr,
    rows_ptr,
    new_stride_token,
    new_stride_head,
    scale_stride_block,
    scale_stride_head,
    scale_stride_slot,
    num_rows,
    STRIDE_BLOCK: tl.constexpr,
    STRIDE_HEAD: tl.constexpr,
    STRIDE_SLOT: tl.constexpr,
    KV_HEADS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    DIM: tl.constexpr,
    PADDED: tl.constexpr,
    TILE: tl.constexpr,
    FORMAT: tl.constexpr,
    LARGEST: tl.constexpr,
):
    """Program: TILE (token, KV head) rows."""
    index = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    row = tl.load(rows_ptr + index, mask=index < num_rows, other=-1).to(tl.int64)
    live = row >= 0
    block = row // (KV_HEADS * BLOCK_SIZE)
    head = (row // BLOCK_SIZE) % KV_HEADS
    slot = row % BLOCK_SIZE
    dim = tl.arange(0, PADDED)
    mask = live[:, None] & (dim < DIM)[None, :]
    source = new_ptr + (index // KV_HEADS) * new_stride_token + (index % KV_HEADS) * new_stride_head
    new = tl.load(source[:, None] + dim[None, :], mask=mask, other=0)
    target = values_ptr + block * STRIDE_BLOCK + head * STRIDE_HEAD + slot * STRIDE_SLOT
    if FORMAT == "plain":
        tl.store(target[:, None] + dim[None, :], new, mask=mask)
    else:
        new = new.to(tl.float32)
        size = tl.abs(new)
        # A row with infinity or NaN, which compares false, has the largest size infinity: it is stored with scale NaN.
        most = tl.max(tl.where(size < float("inf"), size, float("inf")), 1)
        scale = tl.maximum(tl.div_rn(most, LARGEST), 1.1754943508222875e-38)
        # Rounded as torch does, not the faster way: a block holds the same bits on every device.
        scaled = tl.div_rn(tl.where(size < float("inf"), new, 0.0), tl.broadcast_to(scale[:, None], (TILE, PADDED)))
        if FORMAT == "fp8":  # noqa: SIM108 - of two branches only one is compiled
            stored = _e4m3_bits(scaled)
        else:
            stored = _round_to_even(scaled).to(tl.int32)
        tl.store(target[:, None] + dim[None, :], stored.to(tl.int8), mask=mask)
        scale_ptrs = scales_ptr + block * scale_stride_block + head * scale_stride_head + slot * scale_stride_slot
        tl.store(scale_ptrs, tl.where(scale < float("inf"), scale, float("nan")), mask=live)


def kv_write(pool: Pool, rows: Tensor, new: Tensor) -> None:
    """Write ``new`` (T, KVH, D) into ``pool``; ``rows`` (T * KVH,) indexes it seen as (num_blocks * KVH * B, D).

    The pool itself may have any strides. A negative row is padding: nothing is written.

    Raises:
        ValueError: shapes or strides that do not go together.
    """
    dtype = new.dtype if isinstance(pool, QuantisedPool) else pool.dtype
    new = new.to(dtype)
    check_rows(new, "new", 3)
    num_tokens, kv_heads, dim = new.shape
    arguments = pool_arguments(pool, "pool", dtype)
    if (kv_heads, dim) != (pool.shape[1], pool.shape[3]):
        raise ValueError(f"new: expected (T, {pool.shape[1]}, {pool.shape[3]}), found {tuple(new.shape)}")
    if rows.shape != (num_tokens * kv_heads,) or not rows.is_contiguous():
        raise ValueError(f"rows: expected contiguous ({num_tokens * kv_heads},), found {tuple(rows.shape)}")
    if rows.numel() == 0:
        return
    padded = next_power(dim)
    tile = max(1, TILE_ELEMENTS // padded)
    with on_device_of(arguments.values):
        on_grid(_write_kernel, triton.cdiv(rows.numel(), tile))(
            new,
            arguments.values,
            arguments.scales,
            rows,
            new.stride(0),
            new.stride(1),
            *arguments.scale_strides,
            rows.numel(),
            *arguments.strides,
            KV_HEADS=kv_heads,
            BLOCK_SIZE=pool.shape[2],
            DIM=dim,
            PADDED=padded,
            TILE=tile,
            FORMAT=arguments.kv_format,
            LARGEST=1.0 if arguments.kv_format == PLAIN else LARGEST[arguments.kv_format],
        )
