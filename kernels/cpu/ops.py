"""What the CPU kernels do, on tensors: fp32, in this process's memory, the last dimension contiguous.

Widths (``depth``, head sizes, half of a head that is rotated) must be multiples of ``jit.lanes()``. Callers check both
once, with ``fits`` and ``jit.is_native``, not at every call.
"""

from __future__ import annotations

import copy
import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from kvtop.kernels.cpu import jit

GROUP = 12  # outputs a linear computes together (``linear_ir.GROUP``)
STRIP_BYTES = 256 * 1024  # of x that stay in a core's second-level cache while weights pass
TASK_BYTES = 512 * 1024  # of weights: a task long enough that taking it costs nothing
QUERY_ROWS = 12  # query rows that pass the keys together
SMALL = 16_384  # elements: less is done sooner by one thread than two are woken


def fits(*widths: int) -> bool:
    """Whether rows of these widths are whole vectors."""
    return all(width > 0 and width % jit.lanes() == 0 for width in widths)


class Linears:
    """Weights (N_i, depth) and biases (N_i,) that one input is multiplied with: one piece of work for the threads.

    Tensors are contiguous, and stay where they are: their addresses are looked up once.
    """

    def __init__(self, weights: Sequence[Tensor], biases: Sequence[Tensor]) -> None:
        self.weights, self.biases = list(weights), list(biases)
        self.depth = weights[0].shape[1]
        self._segments = [
            (w.data_ptr(), b.data_ptr(), w.shape[0]) for w, b in zip(self.weights, self.biases, strict=True)
        ]
        self._groups = sum(-(-w.shape[0] // GROUP) for w in self.weights)
        self._strip = max(12, STRIP_BYTES // (4 * self.depth) // 12 * 12)
        self._group_bytes = 4 * self.depth * GROUP
        self._table = ctypes.c_int64 * (5 * len(self.weights))

    def __call__(self, x: Tensor, outs: Sequence[Tensor]) -> None:
        """``outs[i]`` (rows, N_i) = ``x`` (rows, depth) @ weight_i.T + bias_i; read once for each strip."""
        rows, groups, strip = x.shape[0], self._groups, self._strip
        fields = []
        for segment, out in zip(self._segments, outs, strict=True):
            fields += (*segment, out.data_ptr(), out.stride(0))
        table = self._table(*fields)
        per_task = max(1, min(TASK_BYTES // self._group_bytes, groups // (8 * torch.get_num_threads())))
        num_tasks = -(-groups // per_task) * -(-rows // strip)
        job = [x.data_ptr(), x.stride(0), rows, strip, self.depth, groups, per_task]
        jit.run("linear", num_tasks, [*job, ctypes.addressof(table), len(outs)])

    def __deepcopy__(self, memo: dict) -> Linears:
        return Linears(copy.deepcopy(self.weights, memo), copy.deepcopy(self.biases, memo))


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """``x`` / sqrt(mean(x^2) + eps) * ``weight``, over the last dimension; rows of ``x`` may be strided."""
    width = x.shape[-1]
    flat = x.reshape(-1, width)
    out = torch.empty(x.shape)
    per_task, tasks = _split(len(flat), width)
    fields = [flat.data_ptr(), flat.stride(0), len(flat), per_task, width, weight.data_ptr()]
    jit.run("rms_norm", tasks, [*fields, jit.bits(eps), jit.bits(1 / width), out.data_ptr()])
    return out


def rotary_(x: Tensor, cos: Tensor, sin: Tensor) -> None:
    """Rotate the heads of ``x`` (T, heads, D) in place by ``cos`` and ``sin`` (T, D), contiguous: halves a, c of a head
    become a cos - c sin, c cos + a sin."""
    rows, heads, dim = x.shape
    per_task, tasks = _split(rows, heads * dim)
    fields = [x.data_ptr(), x.stride(0), rows, per_task, heads, x.stride(1), dim // 2, cos.data_ptr(), sin.data_ptr()]
    jit.run("rotary", tasks, fields)


def scatter_rows(pool: Tensor, rows: Tensor, new: Tensor) -> None:
    """Write ``new`` (T, KVH, D) into ``pool``; ``rows`` (T * KVH,) indexes it seen as (num_blocks * KVH * B, D)."""
    tokens, heads, dim = new.shape
    per_task, tasks = _split(tokens, heads * dim)
    fields = [new.data_ptr(), new.stride(0), tokens, per_task, heads, new.stride(1), dim, rows.data_ptr()]
    jit.run("scatter", tasks, [*fields, pool.data_ptr()])


def tokens_per_item(query_heads: int, kv_heads: int) -> int:
    """How many consecutive tokens of a chunk should make one item of ``attention``."""
    return max(1, QUERY_ROWS // (query_heads // kv_heads))


def attention(
    q: Tensor,
    k_pool: Tensor,
    v_pool: Tensor,
    items: Tensor,
    tables: Tensor,
    longest: int,
    *,
    scaling: float,
    window: int | None = None,
    softcap: float | None = None,
) -> Tensor:
    """Every token of ``q`` (H, T, D) attends to its sequence's keys up to its own position: (T, H, Dv).

    ``items`` (n, 4) int64: first row, tokens (at most ``tokens_per_item``), position of the first, and the index in
    ``tables`` (block ids, int64) that block 0 of the sequence has or would have. ``longest``: keys of the longest item.
    Pools are (num_blocks, KVH, B, D); their slots outside what an item sees are not read.
    """
    heads, rows, dim = q.shape
    _, kv_heads, size, v_dim = v_pool.shape
    shared, threads = heads // kv_heads, torch.get_num_threads()
    out = torch.empty(rows, heads, v_dim)
    per_thread = tokens_per_item(heads, kv_heads) * shared * (dim + v_dim + 1 + longest + jit.lanes())
    per_thread += -per_thread % 16
    scratch = torch.empty(threads * per_thread)
    fields = [items.data_ptr(), tables.data_ptr(), q.data_ptr(), q.stride(1), q.stride(0), out.data_ptr()]
    fields += [k_pool.data_ptr(), v_pool.data_ptr(), kv_heads, shared, dim, v_dim, size, window or 0]
    fields += [jit.bits(scaling), jit.bits(softcap or 0.0), scratch.data_ptr(), per_thread]
    jit.run("attention", len(items) * kv_heads, fields, threads)
    return out


def _split(rows: int, width: int) -> tuple[int, int]:
    """(rows of a task, number of tasks) for work that passes once over its rows."""
    per_task = max(1, SMALL // width)
    return per_task, -(-rows // per_task)
