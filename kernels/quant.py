"""K and V at one byte an element: int8 or fp8 e4m3, with one fp32 scale for each token and KV head.

A row (head_dim elements of one token and head) is stored as ``values * scale`` with ``scale = max|row| / largest``, the
largest number of the format being 127 or 448. No calibration, and a token written later never changes an earlier one.

- int8: the round trip is off by at most scale / 2 in every element (up to fp32 rounding).
- fp8: by at most 1/16 of an element, or 2^-10 scales where that is more.
- A row of zeros gets the smallest normal scale, and comes back as zeros: nothing is ever divided by zero.
- A row with NaN or infinity gets the scale NaN, and comes back as NaN in every element: it is never hidden.

The scale is fp32 on every device, so that the first line holds for every finite row (as fp16 it would underflow for
rows below 1e-5) and a block has the same size everywhere: 4 bytes, 6 % of a row of 64.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

LARGEST = {"int8": 127.0, "fp8": 448.0}
SCALE_DTYPE = torch.float32
SMALLEST_SCALE = torch.finfo(SCALE_DTYPE).tiny


@dataclass(frozen=True, slots=True)
class QuantisedPool:
    """K or V of one layer: ``values`` (num_blocks, KVH, B, D) and, in the same layout, ``scales`` (num_blocks, KVH, B).

    ``values`` is int8 for fp8 too, and holds its bits: torch moves int8 on every device, fp8 not. ``dtype`` is what
    is read: the precision attention computes in.
    """

    values: Tensor
    scales: Tensor
    kv_dtype: str
    dtype: torch.dtype

    @property
    def shape(self) -> torch.Size:
        return self.values.shape


def quantise(rows: Tensor, kv_dtype: str) -> tuple[Tensor, Tensor]:
    """Values (..., D) int8 and scales (...) fp32 of ``rows`` (..., D)."""
    rows = rows.to(SCALE_DTYPE)
    most = rows.abs().amax(-1)
    scales = (most / LARGEST[kv_dtype]).clamp_min_(SMALLEST_SCALE)
    scales.masked_fill_(~most.isfinite(), float("nan"))
    scaled = rows / scales[..., None]
    if kv_dtype == "int8":
        return scaled.round_().to(torch.int8), scales
    return scaled.to(torch.float8_e4m3fn).view(torch.int8), scales


def dequantise(values: Tensor, scales: Tensor, kv_dtype: str, dtype: torch.dtype) -> Tensor:
    """``values * scales`` (..., D) in ``dtype``."""
    if kv_dtype == "int8":
        return values.to(SCALE_DTYPE).mul_(scales[..., None]).to(dtype)
    # e4m3 has the bits of an fp16 of 1/256 its size, three below the top one missing and seven at the end. Torch's own
    # conversion takes 10 to 20 times as long on a CPU. NaN bits read as 480; a row with NaN has the scale NaN anyway.
    bits = values.to(torch.int16).bitwise_left_shift_(7).bitwise_and_(~0x4000)
    return bits.view(torch.float16).to(SCALE_DTYPE).mul_((scales * 256)[..., None]).to(dtype)


def write_quantised(pool: QuantisedPool, rows: Tensor, new: Tensor) -> None:
    """Quantise ``new`` (T, KVH, D) into ``rows`` (T * KVH,) of the pool seen as (num_blocks * KVH * B, D)."""
    values, scales = quantise(new.reshape(-1, new.shape[-1]), pool.kv_dtype)
    _put(pool, rows, values, scales)


def load_quantised(pool: QuantisedPool, rows: Tensor, values: Tensor, scales: Tensor) -> None:
    """Put rows that were quantised elsewhere: ``values`` (R, D) int8, ``scales`` (R,).

    Raises:
        ValueError: a scale that is not a positive finite number; nothing is written.
    """
    wrong = ~(scales.isfinite() & (scales > 0))
    if wrong.any():
        row = int(wrong.nonzero()[0])
        raise ValueError(f"scale of row {row} is {float(scales[row])}, expected a positive finite number")
    _put(pool, rows, values, scales.to(SCALE_DTYPE))


def _put(pool: QuantisedPool, rows: Tensor, values: Tensor, scales: Tensor) -> None:
    pool.values.view(-1, values.shape[-1]).index_copy_(0, rows, values)
    pool.scales.view(-1).index_copy_(0, rows, scales)


def gather_quantised(pool: QuantisedPool, pieces: Tensor) -> Tensor:
    """(len(pieces), B, D) in ``pool.dtype``: the named pieces of the pool seen as (num_blocks * KVH, B, D)."""
    values = pool.values.flatten(0, 1).index_select(0, pieces)
    scales = pool.scales.flatten(0, 1).index_select(0, pieces)
    return dequantise(values, scales, pool.kv_dtype, pool.dtype)
