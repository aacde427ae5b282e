"""Attention by Triton's kernels: blocks are read where they lie, decodes and chunks of a step in one launch each.

Everything that depends on the step is in index tensors, sent before the first layer: no layer waits for the host, and
a step of one shape can be captured and replayed.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from kvtop.engine.executors.indices import Indices, Padding, padded
from kvtop.engine.executors.torch_pool import KVPool
from kvtop.engine.executors.torch_rows import Row
from kvtop.kernels.dispatch import kernel
from kvtop.kernels.gpu.tables import PagedTables

WIDTH_STEP = 16  # columns of a table: its stride is a multiple of 16, one case less for Triton to compile

_write = kernel("kv_write", "triton")
_decode = kernel("paged_decode", "triton")
_prefill = kernel("paged_prefill", "triton")


class TritonAttention:
    """One step's tables over one pool. Single tokens come first among ``rows``, as ``PagedBatch`` orders them.

    With ``padding`` every row is a single token, and rows up to its number have no key and are not written.
    """

    def __init__(self, pool: KVPool, rows: Sequence[Row], indices: Indices, padding: Padding | None = None) -> None:
        self.pool, self._indices = pool, indices
        self._tables: dict[tuple[str, int, int | None], PagedTables] = {}
        singles = [row for row in rows if row.count == 1]
        chunks = rows[len(singles) :]
        self.num_decodes = padding.num_rows if padding else len(singles)
        if self.num_decodes:
            self._add("decode", singles, padding)
        if chunks:
            self._add("prefill", chunks, None)
            starts = np.cumsum([0, *(row.count for row in chunks)], dtype=np.int32)
            indices.add(("prefill", "starts"), starts)

    def _add(self, kind: str, rows: Sequence[Row], padding: Padding | None) -> None:
        size, num_rows = self.pool.block_size, len(rows)
        used = [row.last // size + 1 for row in rows]
        if padding:
            num_rows, width = padding.num_rows, padding.num_blocks
        else:
            width = -(-max(used) // WIDTH_STEP) * WIDTH_STEP
        self._indices.add((kind, "lengths"), padded([row.last + 1 for row in rows], num_rows, 0, np.int32))
        for group in range(len(self.pool.layout.windows)):
            tables = [row.table(group) for row in rows]
            self._indices.add((kind, "tables", group), self.pool.tables.stack(tables, used, num_rows, width))

    def write(self, layer: int, slots: Tensor, k: Tensor, v: Tensor) -> None:
        """Put new K and V (T, KVH, D) into the pool; ``slots`` as in ``kv_write``."""
        k_pool, v_pool = self.pool.stores[layer]
        _write(k_pool, slots, k)
        _write(v_pool, slots, v)

    def attend(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, scaling: float, window: int | None, softcap: float | None
    ) -> Tensor:
        """q (H, T, D) to (T, H, Dv); new K and V are in the pool already."""
        pools, group, split = self.pool.stores[layer], self.pool.layout.group_of[layer], self.num_decodes
        q = q.transpose(0, 1)
        out = q.new_empty(q.shape[0], q.shape[1], v.shape[2])
        numbers = {"scaling": scaling, "softcap": softcap}
        if split:
            _decode(q[:split], *pools, self._tables_of("decode", group, window), **numbers, out=out[:split])
        if split < q.shape[0]:
            _prefill(q[split:], *pools, self._tables_of("prefill", group, window), **numbers, out=out[split:])
        return out

    def _tables_of(self, kind: str, group: int, window: int | None) -> PagedTables:
        key = (kind, group, window)
        if key not in self._tables:
            starts = self._indices[kind, "starts"] if kind == "prefill" else None
            tables, lengths = self._indices[kind, "tables", group], self._indices[kind, "lengths"]
            self._tables[key] = PagedTables(tables, lengths, starts, window)
        return self._tables[key]
