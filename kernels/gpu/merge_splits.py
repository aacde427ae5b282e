"""Attention over disjoint shares of the keys, merged into attention over all of them by value and log-sum-exp."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from kvtop.kernels.gpu.config import next_power
from kvtop.kernels.gpu.launch import bf16_by_hand, on_device_of, on_grid
from kvtop.kernels.gpu.tile import rounded


@triton.jit
def _merge_kernel(
    partial_ptr,
    lse_ptr,
    out_ptr,
    partial_stride_seq,
    partial_stride_head,
    partial_stride_split,
    lse_stride_seq,
    lse_stride_head,
    out_stride_seq,
    out_stride_head,
    NUM_SPLITS: tl.constexpr,
    SPLITS_PADDED: tl.constexpr,
    DIM: tl.constexpr,
    PADDED: tl.constexpr,
    BF16_BY_HAND: tl.constexpr,
):
    """Program (sequence, query head)."""
    seq = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1).to(tl.int64)
    split = tl.arange(0, SPLITS_PADDED)
    dim = tl.arange(0, PADDED)
    lse_ptrs = lse_ptr + seq * lse_stride_seq + head * lse_stride_head + split
    lse = tl.load(lse_ptrs, mask=split < NUM_SPLITS, other=float("-inf"))
    top = tl.max(lse, 0)
    weights = tl.math.exp2(lse - tl.where(top == float("-inf"), 0.0, top))
    total = tl.sum(weights, 0)
    # The values of an empty share were never written: they are not read either.
    empty = lse == float("-inf")
    rows = partial_ptr + seq * partial_stride_seq + head * partial_stride_head + split * partial_stride_split
    mask = (split < NUM_SPLITS)[:, None] & (~empty)[:, None] & (dim < DIM)[None, :]
    values = tl.load(rows[:, None] + dim[None, :], mask=mask, other=0.0)
    merged = tl.sum(values * weights[:, None], 0) / tl.where(total == 0.0, 1.0, total)
    out_row = out_ptr + seq * out_stride_seq + head * out_stride_head
    tl.store(out_row + dim, rounded(merged, out_ptr.dtype.element_ty, BF16_BY_HAND), mask=dim < DIM)


def merge_splits(partial: Tensor, lse: Tensor, out: Tensor) -> None:
    """``partial`` (num_seqs, H, splits, Dv) fp32 and its ``lse`` (num_seqs, H, splits) fp32, in log2, to ``out``.

    A share without keys has lse -inf, and its values are not read. If all are empty the result is 0.
    """
    num_seqs, num_heads, splits, dim = partial.shape
    with on_device_of(partial):
        on_grid(_merge_kernel, num_seqs, num_heads)(
            partial,
            lse,
            out,
            partial.stride(0),
            partial.stride(1),
            partial.stride(2),
            lse.stride(0),
            lse.stride(1),
            out.stride(0),
            out.stride(1),
            NUM_SPLITS=splits,
            SPLITS_PADDED=next_power(splits),
            DIM=dim,
            PADDED=next_power(dim),
            BF16_BY_HAND=bf16_by_hand(out.dtype),
        )
