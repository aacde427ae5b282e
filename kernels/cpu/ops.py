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

STRIP_BYTES = 1024 * 1024  # of x that pass the weights together; only a tile of its rows has to be near
PANEL_VECTORS = 3  # outputs of a weight that are computed together (``packed_ir.VECTORS``)
TILE_ROWS = 8  # a multiple of the rows of a tile (``packed_ir.TILE_ROWS``)
THREAD_ROWS = 64  # rows that are worth a pass over the weights of their own
TASK_BYTES = 512 * 1024  # of weights: a task long enough that taking it costs nothing
QUERY_ROWS = 12  # query rows that pass the keys together
SMALL = 16_384  # elements: less is done sooner by one thread than two are woken


def fits(*widths: int) -> bool:
    """Whether rows of these widths are whole vectors."""
    return all(width > 0 and width % jit.lanes() == 0 for width in widths)


class Packed:
    """Weights (N_i, depth) and biases (N_i,) that one input is multiplied with: one piece of work for the threads.

    They are copied in the order in which they are read: a weight becomes (panels, depth, 3 vectors), what is beyond N_i
    zeros. See ``packed_ir``.
    """

    def __init__(self, weights: Sequence[Tensor], biases: Sequence[Tensor]) -> None:
        panel = PANEL_VECTORS * jit.lanes()
        shifts = [torch.nn.functional.pad(b, (0, -len(b) % panel)) for b in biases]
        self._take([_in_panels(w, panel) for w in weights], shifts, [len(w) for w in weights])

    def _take(self, weights: list[Tensor], biases: list[Tensor], outputs: list[int]) -> None:
        self.weights, self.biases, self.outputs = weights, biases, outputs
        _, self.depth, self.panel = weights[0].shape
        self._segments = [(w.data_ptr(), b.data_ptr(), n) for w, b, n in zip(weights, biases, outputs, strict=True)]
        self._num_panels = sum(len(w) for w in weights)
        self._table = ctypes.c_int64 * (5 * len(weights))

    def __call__(self, x: Tensor, outs: Sequence[Tensor]) -> None:
        """``outs[i]`` (rows, N_i) = ``x`` (rows, depth) @ weight_i.T + bias_i; read once for each strip."""
        fields, table = self.job(x, outs)
        jit.run("packed", self.num_tasks(x.shape[0]), fields)
        del table  # it had to live until now

    def job(self, x: Tensor, outs: Sequence[Tensor]) -> tuple[list[int], ctypes.Array]:
        """Fields of the kernel ``packed``, and what one of them points to."""
        segments = []
        for segment, out in zip(self._segments, outs, strict=True):
            segments += (*segment, out.data_ptr(), out.stride(0))
        table = self._table(*segments)
        rows = x.shape[0]
        fields = [x.data_ptr(), x.stride(0), rows, self.strip(rows), self.depth, self._num_panels, self.per_task()]
        return [*fields, ctypes.addressof(table), len(outs)], table

    def strip(self, rows: int) -> int:
        """Rows that pass the weights together: strips of equal size, since a small last one reads as many weights.

        As many rows as a core's second-level cache holds, fewer where the weights alone are no work for all threads.
        """
        tasks = -(-self._num_panels // self.per_task())
        wanted = min(rows // THREAD_ROWS, -(-2 * torch.get_num_threads() // tasks))
        strips = max(1, wanted, -(-4 * self.depth * rows // STRIP_BYTES))
        share = -(-rows // strips)
        return max(TILE_ROWS, share + -share % TILE_ROWS)

    def num_tasks(self, rows: int) -> int:
        """Into how many tasks a product with so many rows is cut."""
        return -(-self._num_panels // self.per_task()) * -(-rows // self.strip(rows))

    def per_task(self) -> int:
        """Panels that a task computes, for as many threads as torch has now."""
        panel_bytes = 4 * self.depth * self.panel
        return max(1, min(TASK_BYTES // panel_bytes, self._num_panels // (8 * torch.get_num_threads())))

    def rows(self, index: Tensor) -> Tensor:
        """Rows of the first weight, as they were: (*index.shape, depth).

        Raises:
            IndexError: there is no such row.
        """
        size = self.outputs[0]
        if beyond := index[(index < 0) | (index >= size)].tolist():
            raise IndexError(f"row {beyond[0]} of a weight of {size}")
        return self.weights[0][index // self.panel, :, index % self.panel]

    def __deepcopy__(self, memo: dict) -> Packed:
        twin = memo[id(self)] = type(self).__new__(type(self))  # a linear and an embedding share it
        twin._take(copy.deepcopy(self.weights, memo), copy.deepcopy(self.biases, memo), self.outputs)
        return twin


def _in_panels(weight: Tensor, panel: int) -> Tensor:
    """``weight`` (N, depth) as (ceil(N / panel), depth, panel), without another copy on the way."""
    (size, depth), whole = weight.shape, len(weight) // panel
    panels = weight.new_empty(-(-size // panel), depth, panel)
    panels[:whole] = weight[: whole * panel].view(whole, panel, depth).transpose(1, 2)
    if whole < len(panels):
        panels[whole] = 0
        panels[whole, :, : size - whole * panel] = weight[whole * panel :].T
    return panels


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """``x`` / sqrt(mean(x^2) + eps) * ``weight``, over the last dimension; rows of ``x`` may be strided."""
    flat = x.reshape(-1, x.shape[-1])
    out = torch.empty(x.shape)
    jit.run("rms_norm", num_tasks(len(flat), x.shape[-1]), norm_job(flat, weight, eps, out))
    return out


def norm_job(x: Tensor, weight: Tensor, eps: float, out: Tensor, added: Tensor | None = None) -> list[int]:
    """Fields of the kernel ``rms_norm``; of ``add_norm``, which adds ``added`` (rows, width) to ``x`` before."""
    width = x.shape[-1]
    fields = [x.data_ptr(), x.stride(0), len(x), rows_per_task(width), width, weight.data_ptr(), jit.bits(eps)]
    fields += [jit.bits(1 / width), out.data_ptr()]
    return fields if added is None else [*fields, added.data_ptr()]


def gate_job(gate: Tensor, up: Tensor) -> list[int]:
    """Fields of the kernel ``gate``: ``gate`` (rows, width) becomes SiLU(gate) * ``up``; both are strided alike."""
    rows, width = gate.shape
    return [gate.data_ptr(), gate.stride(0), rows, rows_per_task(width), width, up.data_ptr()]


def rotary_(x: Tensor, cos: Tensor, sin: Tensor) -> None:
    """Rotate the heads of ``x`` (T, heads, D) in place by ``cos`` and ``sin`` (T, D), contiguous: halves a, c of a head
    become a cos - c sin, c cos + a sin."""
    rows, heads, dim = x.shape
    jit.run("rotary", num_tasks(rows, heads * dim), [*rotary_job(x), cos.data_ptr(), sin.data_ptr()])


def rotary_job(x: Tensor) -> list[int]:
    """Fields of the kernel ``rotary`` but the last two, the addresses of cos and sin."""
    rows, heads, dim = x.shape
    return [x.data_ptr(), x.stride(0), rows, rows_per_task(heads * dim), heads, x.stride(1), dim // 2]


def scatter_rows(pool: Tensor, rows: Tensor, new: Tensor) -> None:
    """Write ``new`` (T, KVH, D) into ``pool``; ``rows`` (T * KVH,) indexes it seen as (num_blocks * KVH * B, D)."""
    tokens, heads, dim = new.shape
    jit.run("scatter", num_tasks(tokens, heads * dim), [*scatter_job(new), rows.data_ptr(), pool.data_ptr()])


def scatter_job(new: Tensor) -> list[int]:
    """Fields of the kernel ``scatter`` but the last two, the addresses of the indices and of the pool."""
    tokens, heads, dim = new.shape
    return [new.data_ptr(), new.stride(0), tokens, rows_per_task(heads * dim), heads, new.stride(1), dim]


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
    kv_heads, v_dim, threads = v_pool.shape[1], v_pool.shape[3], torch.get_num_threads()
    out = torch.empty(rows, heads, v_dim)
    per_thread = attention_scratch(heads, kv_heads, dim, v_dim, longest)
    scratch = torch.empty(threads * per_thread)
    fields = [items.data_ptr(), tables.data_ptr(), *attention_job(q, k_pool, v_pool, out, scaling, window, softcap)]
    jit.run("attention", len(items) * kv_heads, [*fields, scratch.data_ptr(), per_thread], threads)
    return out


def attention_job(
    q: Tensor, k_pool: Tensor, v_pool: Tensor, out: Tensor, scaling: float, window: int | None, softcap: float | None
) -> list[int]:
    """Fields of the kernel ``attention`` but the first two (items, tables) and the last two (scratch, of a thread)."""
    heads, _, dim = q.shape
    _, kv_heads, size, v_dim = v_pool.shape
    fields = [q.data_ptr(), q.stride(1), q.stride(0), out.data_ptr(), k_pool.data_ptr(), v_pool.data_ptr(), kv_heads]
    fields += [heads // kv_heads, dim, v_dim, size, window or 0, jit.bits(scaling), jit.bits(softcap or 0.0)]
    return fields


def attention_scratch(heads: int, kv_heads: int, dim: int, v_dim: int, longest: int) -> int:
    """fp32 that each thread of ``attention`` needs for items of up to ``longest`` keys."""
    floats = tokens_per_item(heads, kv_heads) * (heads // kv_heads) * (dim + v_dim + 1 + longest + jit.lanes())
    return floats + -floats % 16


def rows_per_task(width: int) -> int:
    """Of work that passes once over rows of ``width`` elements."""
    return max(1, SMALL // width)


def num_tasks(rows: int, width: int) -> int:
    """Into how many tasks such work is cut."""
    return -(-rows // rows_per_task(width))
