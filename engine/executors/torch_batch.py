"""One step's packed batch: token rows, the slots they are written to, and who reads them.

Rows are ordered for attention: single tokens first, longest context first, then the longer chunks.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
from torch import Tensor

from kvtop.engine.executors.attention_paths import attention_of
from kvtop.engine.executors.indices import Indices, Padding, padded
from kvtop.engine.executors.torch_pool import KVPool
from kvtop.engine.executors.torch_rows import Row


class PagedBatch:
    """The keyword ``kv`` of a forward pass: everything attention needs to know, for one pool and one step.

    Its index tensors are made at once and sent together, at the first look at one of them. With ``padding``, for
    single tokens only, shapes are those of the padding; ``buffer`` is the one an earlier batch of that padding sent.
    """

    def __init__(
        self, pool: KVPool, rows: Sequence[Row], padding: Padding | None = None, buffer: Tensor | None = None
    ) -> None:
        self.pool = pool
        self.rows = sorted(rows, key=lambda r: (r.count > 1, -r.last if r.count == 1 else 0))
        self.layers_seen = 0
        self._num_singles = sum(row.count == 1 for row in self.rows)
        self._indices = Indices(pool.device, buffer)
        self._add(padding.num_rows if padding else None)
        self.attention = attention_of(pool, self.rows, self._indices, padding)

    def _add(self, length: int | None) -> None:
        tokens = [token for row in self.rows for token in row.tokens]
        self._indices.add("ids", padded(tokens, length, 0)[None])
        self._indices.add("positions", padded(self.positions, length, 0)[None])
        if length is not None:
            self._indices.add("rows", np.arange(length))
        for kv_group, kv_heads in sorted({(self._group(s.layer), s.kv_heads) for s in self.pool.layers}):
            self._indices.add(("slots", kv_group, kv_heads), self._slots(kv_group, kv_heads, length))

    def _group(self, layer: int) -> int:
        return self.pool.layout.group_of[layer]

    @cached_property
    def positions(self) -> np.ndarray:
        """Position of every token of the pack."""
        singles = [np.asarray([row.start for row in self.rows[: self._num_singles]], dtype=np.int64)]
        return np.concatenate(singles + [np.arange(r.start, r.last + 1) for r in self.rows[self._num_singles :]])

    @property
    def input_ids(self) -> Tensor:
        """(1, T) token ids."""
        return self._indices["ids"]

    @property
    def position_ids(self) -> Tensor:
        """(1, T) positions."""
        return self._indices["positions"]

    @property
    def all_rows(self) -> Tensor:
        """Indices of the rows of a padded batch."""
        return self._indices["rows"]

    def send(self) -> Tensor:
        """Send the index tensors now; their buffer on the device."""
        return self._indices.send()

    def last_rows(self, keys: set[int]) -> tuple[Tensor, list[int]]:
        """Pack index of the last token of every row in ``keys``, and the keys in that order."""
        ends = np.cumsum([r.count for r in self.rows]) - 1
        wanted = [(int(end), r.key) for end, r in zip(ends, self.rows, strict=True) if r.key in keys]
        self._indices.add("last", np.asarray([end for end, _ in wanted], dtype=np.int64))
        return self._indices["last"], [key for _, key in wanted]

    def attend(
        self,
        layer: int,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        scaling: float,
        window: int | None,
        softcap: float | None,
    ) -> Tensor:
        """Write this layer's new K and V, then attend: q (H, T, D), k and v (KVH, T, D) to (T, H, Dv)."""
        self.layers_seen += 1
        self.attention.write(layer, self.slots(layer, k.shape[0]), k.transpose(0, 1), v.transpose(0, 1))
        return self.attention.attend(layer, q, k, v, scaling, window, softcap)

    def slots(self, layer: int, kv_heads: int) -> Tensor:
        """(T * KVH,): where a layer's new K and V go, as ``Attention.write`` takes it."""
        return self._indices["slots", self._group(layer), kv_heads]

    def _slots(self, kv_group: int, kv_heads: int, length: int | None) -> np.ndarray:
        """Row of the pool, seen as (num_blocks * KVH * B, D), of every (token, head); -1 for padding."""
        size = self.pool.block_size
        singles = [row.table(kv_group)[row.start // size] for row in self.rows[: self._num_singles]]
        chunks = [self._written(row, kv_group) for row in self.rows[self._num_singles :]]
        block, offset = np.concatenate([np.asarray(singles, dtype=np.int64), *chunks]), self.positions % size
        rows = (block[:, None] * kv_heads + np.arange(kv_heads)) * size + offset[:, None]
        return padded(rows, length, -1).reshape(-1)

    def _written(self, row: Row, kv_group: int) -> np.ndarray:
        """Block of every token of ``row``."""
        size = self.pool.block_size
        first, last = row.start // size, row.last // size
        table = np.asarray(row.table(kv_group)[first : last + 1], dtype=np.int64)
        return table[np.arange(row.start, row.last + 1) // size - first]
