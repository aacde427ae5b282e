"""What computes attention, by name: chosen once, for a device and what is stored, and said in ``ModelInfo``."""

from __future__ import annotations

import functools
import importlib.metadata
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from kvtop.engine.errors import ConfigError, UnknownName
from kvtop.engine.executors.torch_rows import Row
from kvtop.kernels.cpu import jit, ops
from kvtop.kernels.dispatch import backend_of

if TYPE_CHECKING:
    from kvtop.engine.executors.indices import Indices, Padding
    from kvtop.engine.executors.torch_pool import KVPool, LayerShape

PATHS = {
    "triton": "Triton kernels",
    "cpu": "CPU kernels",
    "torch": "torch operations",
}
TRITON_NEEDED = (3, 5)
CAPABILITY_NEEDED = (8, 0)  # of the device: Triton compiles for nothing older


class Attention(Protocol):
    """How K and V of one step are written to a pool and read from it."""

    def write(self, layer: int, slots: Tensor, k: Tensor, v: Tensor) -> None: ...

    def attend(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, scaling: float, window: int | None, softcap: float | None
    ) -> Tensor: ...


def attention_of(pool: KVPool, rows: Sequence[Row], indices: Indices, padding: Padding | None) -> Attention:
    """The attention of one step over ``pool``."""
    if pool.attention == "triton":
        from kvtop.engine.executors.gpu_attention import TritonAttention

        return TritonAttention(pool, rows, indices, padding)
    from kvtop.engine.executors.cpu_attention import InPlaceAttention
    from kvtop.engine.executors.torch_gather import GatherAttention

    return (InPlaceAttention if pool.attention == "cpu" else GatherAttention)(pool, rows)


def check_attention(asked: str) -> None:
    """Raises UnknownName, with the nearest: neither auto nor one of ``PATHS``."""
    if asked not in ("auto", *PATHS):
        raise UnknownName("attention", asked, ("auto", *PATHS))


def choose_attention(
    asked: str, device: torch.device, dtype: torch.dtype, layers: Iterable[LayerShape], kv_dtype: str
) -> str:
    """One of ``PATHS``. ``auto``: Triton on CUDA, always; on the CPU its kernels where they cover this, else torch.

    Raises:
        UnknownName: no such path.
        ConfigError: what was asked for, or what CUDA needs, cannot be had here, with the reason.
    """
    check_attention(asked)
    name = asked
    if name == "auto":
        name = backend_of(device.type)
        if name == "torch" and _cpu_lacks(device, dtype, layers, kv_dtype) is None:
            name = "cpu"
    lacks = {
        "triton": lambda: triton_lacks(device),
        "cpu": lambda: _cpu_lacks(device, dtype, layers, kv_dtype),
        "torch": lambda: None,
    }
    if reason := lacks[name]():
        raise ConfigError(f"attention by {PATHS[name]} on {device.type}: {reason}")
    return name


def triton_lacks(device: torch.device) -> str | None:
    """Why Triton's kernels cannot run on ``device``; None where they can."""
    found = _triton_version()
    wanted = ".".join(map(str, TRITON_NEEDED))
    if found is None:
        return f"the package triton is not installed (expected {wanted} or later); attention 'torch' needs none"
    if tuple(int(part) for part in found.split(".")[:2]) < TRITON_NEEDED:
        return f"triton is {found}, expected {wanted} or later; attention 'torch' needs none"
    if device.type != "cuda":
        from kvtop.kernels.gpu.launch import interpreted

        return None if interpreted() else "Triton compiles for CUDA devices; TRITON_INTERPRET=1 interprets, for tests"
    capability = torch.cuda.get_device_capability(device)
    if capability < CAPABILITY_NEEDED:
        return f"the device has compute capability {_dotted(capability)}, Triton needs {_dotted(CAPABILITY_NEEDED)}"
    return None


@functools.cache
def _triton_version() -> str | None:
    try:
        return importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:
        return None


def _dotted(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))


def _cpu_lacks(device: torch.device, dtype: torch.dtype, layers: Iterable[LayerShape], kv_dtype: str) -> str | None:
    """Why kvtop's CPU kernels do not cover this; None where they do."""
    if device.type != "cpu" or dtype != torch.float32:
        return f"they compute in fp32 on the CPU, found {str(dtype).removeprefix('torch.')} on {device.type}"
    if kv_dtype != "auto":
        return f"they read fp32 blocks, found {kv_dtype}"
    if reason := jit.unusable():
        return reason
    odd = [(layer.k_dim, layer.v_dim) for layer in layers if not ops.fits(layer.k_dim, layer.v_dim)]
    return f"heads of {odd[0][0]} and {odd[0][1]} elements are no whole vectors" if odd else None
