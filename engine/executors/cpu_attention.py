"""Attention on the CPU by kvtop's kernel: blocks are read where they lie, nothing is gathered or padded."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from kvtop.engine.executors.torch_pool import KVPool
from kvtop.engine.executors.torch_rows import Row, first_key
from kvtop.kernels.cpu import ops


class InPlaceAttention:
    """One step's work list over one pool: made once for all layers of the same KV group, heads and window."""

    def __init__(self, pool: KVPool, rows: Sequence[Row]) -> None:
        self.pool, self.rows = pool, rows
        self._work: dict[tuple[int, int | None, int], tuple[Tensor, Tensor, int]] = {}

    def write(self, layer: int, slots: Tensor, k: Tensor, v: Tensor) -> None:
        """Put new K and V (T, KVH, D) into the pool; ``slots`` as in ``scatter_rows``."""
        ops.scatter_rows(self.pool.k[layer], slots, _rows_whole(k))
        ops.scatter_rows(self.pool.v[layer], slots, _rows_whole(v))

    def attend(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, scaling: float, window: int | None, softcap: float | None
    ) -> Tensor:
        """q (H, T, D) to (T, H, Dv); new K and V are in the pool already."""
        work, pools = self.work(layer, q.shape[0], k.shape[0], window), (self.pool.k[layer], self.pool.v[layer])
        return ops.attention(_rows_whole(q), *pools, *work, scaling=scaling, window=window, softcap=softcap)

    def work(self, layer: int, heads: int, kv_heads: int, window: int | None) -> tuple[Tensor, Tensor, int]:
        """(items, tables, keys of the longest item) of a layer, as ``ops.attention`` takes them."""
        key = (self.pool.layout.group_of[layer], window, ops.tokens_per_item(heads, kv_heads))
        if key not in self._work:
            self._work[key] = self._items(*key)
        return self._work[key]

    def _items(self, kv_group: int, window: int | None, per_item: int) -> tuple[Tensor, Tensor, int]:
        """What ``work`` returns, the item with the most of it first."""
        size = self.pool.block_size
        items, blocks = [], []
        first_row = num_blocks = 0
        for row in self.rows:
            first = int(first_key(row.start, window)) // size  # blocks before it may be gone
            table = np.asarray(row.table(kv_group)[first : row.last // size + 1], dtype=np.int64)
            for done in range(0, row.count, per_item):
                tokens = min(per_item, row.count - done)
                items.append((first_row + done, tokens, row.start + done, num_blocks - first))
            blocks.append(table)
            num_blocks += len(table)
            first_row += row.count
        fields = np.asarray(items, dtype=np.int64)
        keys = fields[:, 2] + fields[:, 1] - first_key(fields[:, 2], window)
        order = np.argsort(-keys * fields[:, 1], kind="stable")
        return torch.from_numpy(fields[order]), torch.from_numpy(np.concatenate(blocks)), int(keys.max())


def _rows_whole(x: Tensor) -> Tensor:
    """With the elements of a row side by side."""
    return x if x.stride(-1) == 1 else x.contiguous()
