"""What every Triton launcher needs: checked operands, the device to launch on, and whether kernels are interpreted."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from triton import knobs

from kvtop.kernels.quant import QuantisedPool

Pool = Tensor | QuantisedPool

PLAIN = "plain"  # stored in the precision of the queries
NO_WINDOW = 2**31 - 1  # position - NO_WINDOW still fits 32 bits
LOG2_E = 1.4426950408889634  # kernels use exp2, the hardware's own


class PoolArguments(NamedTuple):
    """K or V as a kernel takes it; ``scale_strides`` are 0 and ``scales`` is a stand-in where nothing is quantised.

    Kernels take ``strides`` as constants: of a run-time number the compiler learns only whether 16 divides it, and
    would read rows of 120 elements one by one.
    """

    values: Tensor
    scales: Tensor
    strides: tuple[int, int, int]  # of a block, a KV head, a slot
    scale_strides: tuple[int, int, int]
    kv_format: str


def interpreted() -> bool:
    """Whether kernels run in Triton's interpreter (``TRITON_INTERPRET=1`` before triton was first imported)."""
    return knobs.runtime.interpret


def bf16_by_hand(dtype: torch.dtype) -> bool:
    """Whether kernels must do themselves what hardware does for bf16: the interpreter cuts fp32 off instead of rounding
    it, and ``tl.dot`` multiplies the bits instead of the numbers."""
    return dtype == torch.bfloat16 and interpreted()


def on_device_of(tensor: Tensor) -> AbstractContextManager:
    """Launch where ``tensor`` lies.

    Raises:
        ValueError: a CPU tensor, and kernels are not interpreted.
    """
    if tensor.is_cuda:
        return torch.cuda.device(tensor.device)
    if not interpreted():
        raise ValueError(f"Triton kernels take CUDA tensors, found {tensor.device}; TRITON_INTERPRET=1 interprets them")
    return nullcontext()


def on_grid(function: Any, *sizes: int) -> Callable[..., None]:
    """The device function as its launches are called: pointers are tensors, and constants plain values."""
    return function[sizes]


@cache
def num_processors(device: torch.device) -> int:
    """Streaming multiprocessors of ``device``; 1 on a CPU."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


def pool_arguments(pool: Pool, name: str, dtype: torch.dtype) -> PoolArguments:
    """Take a pool (num_blocks, KVH, B, D) apart; ``dtype`` is that of the rows it is used with.

    Raises:
        ValueError: elements of a row that are not next to each other, or another precision.
    """
    if isinstance(pool, QuantisedPool):
        values, scales = pool.values, pool.scales
        if values.dtype != torch.int8 or scales.dtype != torch.float32:
            raise ValueError(f"{name}: expected int8 values and fp32 scales, found {values.dtype} and {scales.dtype}")
        if scales.shape != values.shape[:3]:
            raise ValueError(f"{name}: expected scales {tuple(values.shape[:3])}, found {tuple(scales.shape)}")
        check_rows(values, name, 4)
        return PoolArguments(values, scales, _three(values.stride()), _three(scales.stride()), pool.kv_dtype)
    check_rows(pool, name, 4)
    if pool.dtype != dtype:
        raise ValueError(f"{name}: expected {dtype}, found {pool.dtype}")
    return PoolArguments(pool, pool, _three(pool.stride()), (0, 0, 0), PLAIN)


def check_rows(tensor: Tensor, name: str, num_dims: int) -> None:
    """Raises ValueError: another number of dimensions, or a last one that is not contiguous."""
    if tensor.dim() != num_dims:
        raise ValueError(f"{name}: expected {num_dims} dimensions, found shape {tuple(tensor.shape)}")
    if tensor.stride(-1) != 1:
        raise ValueError(f"{name}: elements of a row must be contiguous, found strides {tensor.stride()}")


def check_group(num_heads: int, num_kv_heads: int) -> int:
    """Query heads a KV head. Raises ValueError: no whole number of them."""
    if num_heads % num_kv_heads:
        raise ValueError(f"{num_heads} query heads cannot share {num_kv_heads} KV heads")
    return num_heads // num_kv_heads


def check_dims(q: Tensor, k_pool: Pool, v_pool: Pool) -> None:
    """Raises ValueError: queries and keys of different size, or K and V of different blocks."""
    if q.shape[-1] != k_pool.shape[-1]:
        raise ValueError(f"queries have {q.shape[-1]} elements a head, keys have {k_pool.shape[-1]}")
    if k_pool.shape[:3] != v_pool.shape[:3]:
        raise ValueError(f"blocks of K are {tuple(k_pool.shape[:3])}, of V {tuple(v_pool.shape[:3])}")


def score_scales(scaling: float, softcap: float | None) -> tuple[float, float]:
    """(factor of q . k, factor of the tanh of that), for scores in units of log2; the second is for caps only."""
    if softcap is None:
        return scaling * LOG2_E, 1.0
    return scaling / softcap, softcap * LOG2_E


def _three(strides: tuple[int, ...]) -> tuple[int, int, int]:
    return strides[0], strides[1], strides[2]
