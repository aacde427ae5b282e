"""Which implementation of each operation a device runs: one line an operation and backend, imported when asked for.

``torch`` runs everywhere; ``triton`` on CUDA. The operations of both are called alike, but for what says which keys
are read: it is made once a step, as the backend wants it.

    kv_write(pool, rows, new)                                          the same
    copy_blocks(pool, sources, destinations)                           the same
    swap_blocks(source, source_ids, destination, destination_ids)      the same; triton wants pinned host memory
    paged_decode(q, k_pool, v_pool, keys, *, scaling, softcap)         torch: DecodeGroup, window in its mask
                                                                       triton: PagedTables, window in it
    paged_prefill(...)                                                 torch: (q, k, v, k_pool, v_pool, PrefillSpan),
                                                                       heads first, one sequence a call
                                                                       triton: (q, k_pool, v_pool, PagedTables),
                                                                       tokens first, all sequences in one launch
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

KERNELS: dict[tuple[str, str], str] = {
    ("kv_write", "torch"): "kvtop.kernels.paged_torch",
    ("paged_decode", "torch"): "kvtop.kernels.paged_torch",
    ("paged_prefill", "torch"): "kvtop.kernels.paged_torch",
    ("copy_blocks", "torch"): "kvtop.kernels.paged_torch",
    ("swap_blocks", "torch"): "kvtop.kernels.paged_torch",
    ("kv_write", "triton"): "kvtop.kernels.gpu.kv_write",
    ("paged_decode", "triton"): "kvtop.kernels.gpu.paged_decode",
    ("paged_prefill", "triton"): "kvtop.kernels.gpu.paged_prefill",
    ("copy_blocks", "triton"): "kvtop.kernels.gpu.copy_blocks",
    ("swap_blocks", "triton"): "kvtop.kernels.gpu.swap_blocks",
}


def backend_of(device_type: str) -> str:
    """Backend of a device: triton on ``cuda``, torch elsewhere; never another one because a library is missing."""
    return "triton" if device_type == "cuda" else "torch"


def kernel(operation: str, backend: str) -> Callable[..., Any]:
    """The launcher of ``operation`` on ``backend``.

    Raises:
        KeyError: no such kernel, with those there are.
        ImportError: the library the backend needs is not installed.
    """
    try:
        module = KERNELS[operation, backend]
    except KeyError:
        known = ", ".join(f"{name} ({backend})" for name, backend in KERNELS)
        raise KeyError(f"no kernel {operation} ({backend}); there are {known}") from None
    return getattr(import_module(module), operation)
