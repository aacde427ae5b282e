"""Whole blocks between a pool on the device and one in pinned host memory, which the device reads and writes itself."""

from __future__ import annotations

from torch import Tensor

from kvtop.kernels.gpu.copy_blocks import move_blocks


def swap_blocks(source: Tensor, source_ids: Tensor, destination: Tensor, destination_ids: Tensor) -> None:
    """Copy whole blocks between two pools (num_blocks, ...) of one layer: device to pinned host, back, or alike.

    Ordered by the current stream of the device: what the host reads is right after it was synchronised. Ids may lie
    anywhere.

    Raises:
        ValueError: host memory that is not pinned, blocks that are not contiguous or not alike, or not as many sources
            as destinations.
    """
    at = source if source.is_cuda else destination
    for name, tensor in (("source", source), ("destination", destination)):
        if at.is_cuda and not tensor.is_cuda and not tensor.is_pinned():
            raise ValueError(f"{name}: host memory must be pinned for the device to reach it")
    ids = (source_ids.to(at.device, non_blocking=True), destination_ids.to(at.device, non_blocking=True))
    move_blocks(source, ids[0], destination, ids[1], at)
