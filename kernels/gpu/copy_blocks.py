"""Whole blocks copied within a pool."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kvtop.kernels.gpu.launch import on_device_of, on_grid

CHUNK_BYTES = 8192  # a program copies: 64 bytes a thread, in four 16-byte pieces
# Bits are moved, not numbers: NaN keeps its payload, and fp8 needs no support.
BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@triton.jit
def _copy_kernel(
    source_ptr,
    destination_ptr,
    source_ids_ptr,
    destination_ids_ptr,
    source_stride,
    destination_stride,
    ELEMENTS: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """Program (pair of blocks, chunk of a block)."""
    pair = tl.program_id(0)
    # 64 bits before multiplying: block x stride passes 2^31 in pools of a few GiB.
    source = tl.load(source_ids_ptr + pair).to(tl.int64)
    destination = tl.load(destination_ids_ptr + pair).to(tl.int64)
    if (source < 0) | (destination < 0):
        return
    element = tl.program_id(1) * CHUNK + tl.arange(0, CHUNK)
    mask = element < ELEMENTS
    block = tl.load(source_ptr + source * source_stride + element, mask=mask, other=0)
    tl.store(destination_ptr + destination * destination_stride + element, block, mask=mask)


def copy_blocks(pool: Tensor, sources: Tensor, destinations: Tensor) -> None:
    """Copy whole blocks of ``pool`` (num_blocks, ...); no destination may appear twice or also be a source.

    Blocks may lie any stride apart, each contiguous in itself. A pair with a negative id is padding.

    Raises:
        ValueError: blocks that are not contiguous, or not as many sources as destinations.
    """
    move_blocks(pool, sources, pool, destinations, pool)


def move_blocks(source: Tensor, source_ids: Tensor, destination: Tensor, destination_ids: Tensor, at: Tensor) -> None:
    """Copy blocks from one tensor to another of the same shape a block, on the device of ``at``.

    Raises:
        ValueError: blocks that are not contiguous or not alike, or not as many sources as destinations.
    """
    if source_ids.shape != destination_ids.shape or source_ids.dim() != 1:
        raise ValueError(f"{tuple(source_ids.shape)} source blocks for {tuple(destination_ids.shape)} destinations")
    if source.shape[1:] != destination.shape[1:] or source.dtype != destination.dtype:
        raise ValueError(f"blocks are {source.dtype} {tuple(source.shape[1:])} and {destination.dtype} "
                         f"{tuple(destination.shape[1:])}")  # fmt: skip
    for tensor in (source, destination):
        if not tensor[0].is_contiguous():
            raise ValueError(f"blocks must be contiguous, found strides {tensor.stride()}")
    if source_ids.numel() == 0:
        return
    elements, itemsize = source[0].numel(), source.element_size()
    chunk = CHUNK_BYTES // itemsize
    with on_device_of(at):
        on_grid(_copy_kernel, source_ids.numel(), triton.cdiv(elements, chunk))(
            source.view(BITS[itemsize]),
            destination.view(BITS[itemsize]),
            source_ids.contiguous(),
            destination_ids.contiguous(),
            source.stride(0),
            destination.stride(0),
            ELEMENTS=elements,
            CHUNK=chunk,
        )
