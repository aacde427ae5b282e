"""What this machine can do at most: reading memory, and fp32 matrix products of the default model's shapes."""

from __future__ import annotations

import time

import kvtop.engine.executors.omp  # noqa: F401

# isort: split
import numpy as np
import torch

SMOLLM2_PARAMS = 134_515_008
SHAPES = ((576, 960), (576, 576), (576, 3072), (1536, 576))  # (in, out) of one layer: q+k+v, o, gate+up, down
ROWS = (1, 4, 16, 64, 128, 384)


def read_gb_per_s(megabytes: int = 1024, tries: int = 7) -> float:
    """GB/s of summing a tensor far larger than the caches; the best try."""
    values = torch.ones(megabytes << 18)
    return _best(lambda: values.sum(), tries, megabytes * (1 << 20)) / 1e9


def gemm_gflops(rows: int, tries: int = 5) -> float:
    """GFLOP/s of ``rows`` tokens through a layer's products, weights as torch keeps them; the best try.

    Sixteen copies of the weights take turns, so that they come from memory as a model's do.
    """
    layers = [[torch.randn(out, wide) for wide, out in SHAPES] for _ in range(16)]
    inputs = {wide: torch.randn(rows, wide) for wide, _ in SHAPES}
    flops = 16 * sum(2 * rows * wide * out for wide, out in SHAPES)

    def run() -> None:
        for weights in layers:
            for weight in weights:
                torch.nn.functional.linear(inputs[weight.shape[1]], weight)

    return _best(run, tries, flops) / 1e9


def numpy_gflops(size: int = 2048, tries: int = 5) -> float:
    """GFLOP/s of a square product by NumPy's library; the best try.

    Which library is the fastest depends on the processor. Two cores of an AMD Zen 3 made 54 GFLOP/s by torch's, a limit
    that kvtop's own kernels exceeded by far.
    """
    left, right = (np.ones((size, size), np.float32) for _ in range(2))
    return _best(lambda: np.matmul(left, right), tries, 2 * size**3) / 1e9


def measure() -> dict[str, float]:
    """``read_gb_per_s``, and as ``gemm_gflops`` the best rate: torch's at any number of rows, or NumPy's."""
    with torch.inference_mode():
        rate = max(numpy_gflops(), *(gemm_gflops(rows) for rows in ROWS))
        return {"read_gb_per_s": read_gb_per_s(), "gemm_gflops": rate, "num_params": SMOLLM2_PARAMS}


def _best(work, tries: int, amount: float) -> float:
    work()
    best = float("inf")
    for _ in range(tries):
        begin = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - begin)
    return amount / best
