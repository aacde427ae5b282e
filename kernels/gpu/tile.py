"""Device functions that decode and prefill share: one tile of keys folded into a running softmax."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def dot(a, b, BF16_BY_HAND: tl.constexpr):
    """Matrix product summed in fp32; fp32 operands are not rounded to tf32."""
    if BF16_BY_HAND:
        a = a.to(tl.float32)
        b = b.to(tl.float32)
    return tl.dot(a, b, input_precision="ieee")


@triton.jit
def rounded(x, DTYPE: tl.constexpr, BF16_BY_HAND: tl.constexpr):
    """fp32 in another precision, to the nearest number, ties to even."""
    if BF16_BY_HAND:
        bits = x.to(tl.int32, bitcast=True)
        nearest = (bits + 0x7FFF + ((bits >> 16) & 1)) & -65536
        x = tl.where(x == x, nearest.to(tl.float32, bitcast=True), x)
    return x.to(DTYPE)


@triton.jit
def load_rows(rows_ptr, live, DIM: tl.constexpr, PADDED: tl.constexpr):
    """(len(rows_ptr), PADDED) elements from the row pointers on; 0 where a row is not live or past its DIM elements.

    Slots that were never written may hold NaN, and 0 x NaN is NaN: what is not live is not read at all.
    """
    dim = tl.arange(0, PADDED)
    if DIM == PADDED:  # noqa: SIM108 - of two branches only one is compiled
        mask = live[:, None]
    else:
        mask = live[:, None] & (dim < DIM)[None, :]
    return tl.load(rows_ptr[:, None] + dim[None, :], mask=mask, other=0)


@triton.jit
def numbers(stored, like, FORMAT: tl.constexpr):
    """Quantised elements in the precision of ``like``, exactly; their scale is still to be applied.

    fp8: e4m3 has the bits of an fp16 of 1/256 its size, the top exponent bit missing (see ``kernels.quant``).
    """
    if FORMAT == "fp8":
        bits = (stored.to(tl.int16) << 7) & -16385
        found = bits.to(tl.float16, bitcast=True).to(tl.float32).to(like.dtype)
    else:
        found = stored.to(tl.float32).to(like.dtype)
    return found


@triton.jit
def load_scales(scales_ptr, live, FORMAT: tl.constexpr):
    """Factor of each row of ``numbers``; 0 where not live."""
    scales = tl.load(scales_ptr, mask=live, other=0.0)
    if FORMAT == "fp8":
        scales = scales * 256.0
    return scales


@triton.jit
def tanh(x):
    """Within a few units in the last place everywhere: 1 - exp(-2x) would cancel near 0, where soft caps mostly are."""
    square = x * x
    # Taylor to x^9: the next term is 2e-9 of x at 1/4.
    near = x + x * square * (
        -0.3333333333333333
        + square * (0.13333333333333333 + square * (-0.05396825396825397 + square * 0.02186948853615520))
    )
    small = tl.math.exp2(-2.8853900817779268 * tl.abs(x))  # exp(-2|x|)
    far = (1.0 - small) / (1.0 + small)
    return tl.where(tl.abs(x) < 0.25, near, tl.where(x < 0, -far, far))


@triton.jit
def fold(
    q,
    k,
    v,
    k_scale,
    v_scale,
    visible,
    top,
    total,
    value,
    score_scale,
    cap_scale,
    FORMAT: tl.constexpr,
    HAS_CAP: tl.constexpr,
    BF16_BY_HAND: tl.constexpr,
):
    """Running (largest score, sum of weights, weighted values) with one more tile of keys in it.

    ``q`` (M, D), ``k`` (N, D), ``v`` (N, Dv) as stored, their scales (N,), ``visible`` broadcasts to (M, N).
    """
    if FORMAT != "plain":
        k = numbers(k, q, FORMAT)
    scores = dot(q, tl.trans(k), BF16_BY_HAND) * score_scale
    if FORMAT != "plain":
        scores = scores * k_scale[None, :]
    if HAS_CAP:
        scores = tanh(scores) * cap_scale
    scores = tl.where(visible, scores, float("-inf"))
    new_top = tl.maximum(top, tl.max(scores, 1))
    # A row that has seen no key yet has no largest score: -inf - -inf would be NaN.
    shift = tl.where(new_top == float("-inf"), 0.0, new_top)
    kept = tl.math.exp2(top - shift)
    weights = tl.math.exp2(scores - shift[:, None])
    total = total * kept + tl.sum(weights, 1)
    if FORMAT == "plain":
        new = dot(rounded(weights, v.dtype, BF16_BY_HAND), v, BF16_BY_HAND)
    else:
        # Scales of V go to the weights, relative to the tile's largest, so that weights keep the precision of q.
        largest = tl.maximum(tl.max(v_scale, 0), 1.1754943508222875e-38)
        weights = weights * (v_scale / largest)[None, :]
        new = dot(rounded(weights, q.dtype, BF16_BY_HAND), numbers(v, q, FORMAT), BF16_BY_HAND) * largest
    return new_top, total, value * kept[:, None] + new
