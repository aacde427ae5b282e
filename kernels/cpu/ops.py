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
PACKED_STRIP_BYTES = 1024 * 1024  # the same where only a tile of rows has to be near
PANEL_VECTORS = 3  # outputs of a packed weight that are computed together (``packed_ir.VECTORS``)
THREAD_ROWS = 64  # rows that are worth a pass over the weights of their own
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

    kernel, tile_rows, strip_bytes = "linear", 4, STRIP_BYTES

    def __init__(self, weights: Sequence[Tensor], biases: Sequence[Tensor]) -> None:
        self._take(list(weights), list(biases), [len(w) for w in weights], weights[0].shape[1], GROUP)

    def _take(self, weights: list[Tensor], biases: list[Tensor], outputs: list[int], depth: int, group: int) -> None:
        """``outputs`` of each weight are computed by groups of ``group``."""
        self.weights, self.biases, self.outputs, self.depth, self.group = weights, biases, outputs, depth, group
        self._segments = [(w.data_ptr(), b.data_ptr(), n) for w, b, n in zip(weights, biases, outputs, strict=True)]
        self._groups = sum(-(-n // group) for n in outputs)
        self._table = ctypes.c_int64 * (5 * len(weights))

    def __call__(self, x: Tensor, outs: Sequence[Tensor]) -> None:
        """``outs[i]`` (rows, N_i) = ``x`` (rows, depth) @ weight_i.T + bias_i; read once for each strip."""
        fields, table = self.job(x, outs)
        jit.run(self.kernel, self.num_tasks(x.shape[0]), fields)
        del table  # it had to live until now

    def job(self, x: Tensor, outs: Sequence[Tensor]) -> tuple[list[int], ctypes.Array]:
        """Fields of ``kernel``, and what one of them points to."""
        segments = []
        for segment, out in zip(self._segments, outs, strict=True):
            segments += (*segment, out.data_ptr(), out.stride(0))
        table = self._table(*segments)
        rows = x.shape[0]
        fields = [x.data_ptr(), x.stride(0), rows, self.strip(rows), self.depth, self._groups, self.per_task()]
        return [*fields, ctypes.addressof(table), len(outs)], table

    def strip(self, rows: int) -> int:
        """Rows that pass the weights together: strips of equal size, since a small last one reads as many weights.

        As many rows as a core's second-level cache holds, fewer where the weights alone are no work for all threads.
        """
        tasks = -(-self._groups // self.per_task())
        wanted = min(rows // THREAD_ROWS, -(-2 * torch.get_num_threads() // tasks))
        strips = max(1, wanted, -(-4 * self.depth * rows // self.strip_bytes))
        share = -(-rows // strips)
        return max(self.tile_rows, share + -share % self.tile_rows)

    def num_tasks(self, rows: int) -> int:
        """Into how many tasks a product with so many rows is cut."""
        return -(-self._groups // self.per_task()) * -(-rows // self.strip(rows))

    def per_task(self) -> int:
        """Groups of outputs that a task computes, for as many threads as torch has now."""
        group_bytes = 4 * self.depth * self.group
        return max(1, min(TASK_BYTES // group_bytes, self._groups // (8 * torch.get_num_threads())))

    def __deepcopy__(self, memo: dict) -> Linears:
        twin = type(self).__new__(type(self))
        twin._take(copy.deepcopy(self.weights, memo), copy.deepcopy(self.biases, memo), *self._shape())
        return twin

    def _shape(self) -> tuple[list[int], int, int]:
        return self.outputs, self.depth, self.group


class Packed(Linears):
    """As ``Linears``, from copies of the weights in the order in which they are read: see ``packed_ir``.

    A weight (N, depth) becomes (panels, depth, 3 vectors), what is beyond N zeros. Products of many rows take two
    thirds of the time, of few the same; any depth will do.
    """

    kernel, tile_rows, strip_bytes = "packed", 8, PACKED_STRIP_BYTES

    def __init__(self, weights: Sequence[Tensor], biases: Sequence[Tensor]) -> None:
        panel = PANEL_VECTORS * jit.lanes()
        spare = [-len(w) % panel for w in weights]
        padded = [torch.nn.functional.pad(w, (0, 0, 0, more)) for w, more in zip(weights, spare, strict=True)]
        depth = weights[0].shape[1]
        panels = [w.view(-1, panel, depth).transpose(1, 2).contiguous() for w in padded]
        shifts = [torch.nn.functional.pad(b, (0, more)) for b, more in zip(biases, spare, strict=True)]
        self._take(panels, shifts, [len(w) for w in weights], depth, panel)


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
