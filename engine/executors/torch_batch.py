"""One step's packed batch: token rows, the slots they are written to, and who reads them.

Rows are ordered for attention: single tokens first, longest context first, then the longer chunks.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from kvtop.engine.executors.cpu_attention import InPlaceAttention
from kvtop.engine.executors.torch_gather import GatherAttention
from kvtop.engine.executors.torch_pool import KVPool
from kvtop.engine.executors.torch_rows import Row


class Attention(Protocol):
    """How K and V of one step are written to a pool and read from it."""

    def write(self, layer: int, slots: Tensor, k: Tensor, v: Tensor) -> None: ...

    def attend(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, scaling: float, window: int | None, softcap: float | None
    ) -> Tensor: ...


class PagedBatch:
    """The keyword ``kv`` of a forward pass: everything attention needs to know, for one pool and one step."""

    def __init__(self, pool: KVPool, rows: Sequence[Row]) -> None:
        self.pool = pool
        self.rows = sorted(rows, key=lambda r: (r.count > 1, -r.last if r.count == 1 else 0))
        self.layers_seen = 0
        self._attention: Attention = (InPlaceAttention if pool.in_place else GatherAttention)(pool, self.rows)
        self._slots: dict[tuple[int, int], Tensor] = {}

    @cached_property
    def positions(self) -> np.ndarray:
        """Position of every token of the pack."""
        return np.concatenate([np.arange(r.start, r.start + r.count) for r in self.rows])

    @cached_property
    def input_ids(self) -> Tensor:
        """(1, T) token ids."""
        return self._tensor(np.concatenate([np.asarray(r.tokens, dtype=np.int64) for r in self.rows]))[None]

    @cached_property
    def position_ids(self) -> Tensor:
        """(1, T) positions."""
        return self._tensor(self.positions)[None]

    def last_rows(self, keys: set[int]) -> tuple[Tensor, list[int]]:
        """Pack index of the last token of every row in ``keys``, and the keys in that order."""
        ends = np.cumsum([r.count for r in self.rows]) - 1
        wanted = [(int(end), r.key) for end, r in zip(ends, self.rows, strict=True) if r.key in keys]
        return self._tensor(np.asarray([end for end, _ in wanted], dtype=np.int64)), [key for _, key in wanted]

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
        slots = self._slots_of(self.pool.layout.group_of[layer], k.shape[0])
        self._attention.write(layer, slots, k.transpose(0, 1), v.transpose(0, 1))
        return self._attention.attend(layer, q, k, v, scaling, window, softcap)

    def _slots_of(self, kv_group: int, kv_heads: int) -> Tensor:
        """Row of the pool, seen as (num_blocks * KVH * B, D), of every (token, head)."""
        if (kv_group, kv_heads) not in self._slots:
            size = self.pool.block_size
            blocks = [self._written(r, kv_group) for r in self.rows]
            block, offset = np.concatenate(blocks).astype(np.int64), self.positions % size
            rows = (block[:, None] * kv_heads + np.arange(kv_heads)) * size + offset[:, None]
            self._slots[kv_group, kv_heads] = self._tensor(rows.reshape(-1))
        return self._slots[kv_group, kv_heads]

    def _written(self, row: Row, kv_group: int) -> np.ndarray:
        """Block of every token of ``row``."""
        size = self.pool.block_size
        first, last = row.start // size, row.last // size
        table = np.asarray(row.table(kv_group)[first : last + 1])
        return table[np.arange(row.start, row.last + 1) // size - first]

    def _tensor(self, values: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(values)).to(self.pool.device)
