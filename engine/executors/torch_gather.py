"""Attention by plain torch operations, on any device: what a step reads is gathered into contiguous matrices.

Rows are single tokens first, longest context first, then the longer chunks. Index tensors depend on the layer only
through its KV group, its number of KV heads and its window: they are made once a step for each combination.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from kvtop.engine.executors.torch_pool import KVPool
from kvtop.engine.executors.torch_rows import Row, first_key
from kvtop.kernels.paged_torch import DecodeGroup, PrefillSpan, kv_write, paged_decode, paged_prefill

# One gather copies at most about this many slots: enough to keep all cores busy, small enough for the caches.
GROUP_SLOTS = 16_384


class GatherAttention:
    """One step's indices over one pool."""

    def __init__(self, pool: KVPool, rows: Sequence[Row]) -> None:
        self.pool, self.rows = pool, rows
        self.num_decodes = sum(r.count == 1 for r in rows)
        self._work: dict[tuple[int, int, int | None], tuple[list[DecodeGroup], list[PrefillSpan]]] = {}

    def write(self, layer: int, slots: Tensor, k: Tensor, v: Tensor) -> None:
        """Put new K and V (T, KVH, D) into the pool; ``slots`` as in ``kv_write``."""
        k_pool, v_pool = self.pool.stores[layer]
        kv_write(k_pool, slots, k)
        kv_write(v_pool, slots, v)

    def attend(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, scaling: float, window: int | None, softcap: float | None
    ) -> Tensor:
        """q (H, T, D), the new k and v (KVH, T, D), written already, to (T, H, Dv)."""
        k_pool, v_pool = self.pool.stores[layer]
        groups, spans = self._work_for(self.pool.layout.group_of[layer], k.shape[0], window)
        out = q.new_empty(q.shape[1], q.shape[0], v.shape[2])
        for group in groups:
            part = slice(group.first_row, group.first_row + group.num_seqs)
            queries = q[:, part].transpose(0, 1)
            out[part] = paged_decode(queries, k_pool, v_pool, group, scaling=scaling, softcap=softcap)
        for span in spans:
            part = slice(span.first_row, span.first_row + span.count)
            own = (q[:, part], k[:, part], v[:, part])
            value = paged_prefill(*own, k_pool, v_pool, span, scaling=scaling, softcap=softcap)
            out[part] = value.transpose(0, 1)
        return out

    def _work_for(
        self, kv_group: int, kv_heads: int, window: int | None
    ) -> tuple[list[DecodeGroup], list[PrefillSpan]]:
        key = (kv_group, kv_heads, window)
        if key not in self._work:
            self._work[key] = (self._decode_groups(*key), self._prefill_spans(*key))
        return self._work[key]

    def _decode_groups(self, kv_group: int, kv_heads: int, window: int | None) -> list[DecodeGroup]:
        size = self.pool.block_size
        first_blocks = [first_key(r.start, window) // size for r in self.rows[: self.num_decodes]]
        widths = [r.start // size - first + 1 for r, first in zip(self.rows, first_blocks, strict=False)]
        groups = []
        for begin, end in _split(widths, size):
            rows, firsts = self.rows[begin:end], first_blocks[begin:end]
            # Only what the window touches: blocks before it may be gone.
            tables = [r.table(kv_group)[first : r.start // size + 1] for r, first in zip(rows, firsts, strict=True)]
            groups.append(self._decode_group(begin, tables, firsts, kv_heads, window))
        return groups

    def _decode_group(
        self,
        begin: int,
        tables: list[Sequence[int]],
        first_blocks: list[int],
        kv_heads: int,
        window: int | None,
    ) -> DecodeGroup:
        """Rows from ``begin`` on; ``tables`` name the blocks each one reads, from its ``first_blocks`` on."""
        size, count = self.pool.block_size, len(tables)
        width = max(len(table) for table in tables)
        # Padding repeats the sequence's own last block: a valid id, and hidden.
        ids = np.asarray([[*table, *[table[-1]] * (width - len(table))] for table in tables], dtype=np.int64)
        pieces = ids[:, None, :] * kv_heads + np.arange(kv_heads)[None, :, None]
        position = np.asarray(first_blocks)[:, None] * size + np.arange(width * size)
        last = np.asarray([r.start for r in self.rows[begin : begin + count]])[:, None]
        visible = (position <= last) & (position >= first_key(last, window))
        if visible.all():
            return DecodeGroup(begin, count, self._tensor(pieces.reshape(-1)), None, None)
        seq, column = np.nonzero(~visible)
        heads = np.arange(kv_heads)[:, None]
        hidden = (seq * kv_heads + heads) * (width * size) + column
        mask = self._mask(visible)[:, None]
        return DecodeGroup(begin, count, self._tensor(pieces.reshape(-1)), mask, self._tensor(hidden.reshape(-1)))

    def _prefill_spans(self, kv_group: int, kv_heads: int, window: int | None) -> list[PrefillSpan]:
        spans, first_row = [], self.num_decodes
        for row in self.rows[self.num_decodes :]:
            spans.append(self._prefill_span(row, row.table(kv_group), first_row, kv_heads, window))
            first_row += row.count
        return spans

    def _prefill_span(
        self, row: Row, blocks: Sequence[int], first_row: int, kv_heads: int, window: int | None
    ) -> PrefillSpan:
        size = self.pool.block_size
        query = np.arange(row.start, row.last + 1)[:, None]
        # Quantised, a chunk attends to its own tokens as they are stored: no token depends on where chunks were cut.
        if row.start == 0 and not self.pool.quantised:
            if window is None or row.count <= window:
                return PrefillSpan(first_row, row.count, None, None, None)
            key = np.arange(row.count)
            visible = (key <= query) & (key >= first_key(query, window))
            return PrefillSpan(first_row, row.count, None, self._mask(visible), None)
        first = first_key(row.start, window) // size
        table = np.asarray(blocks[first : row.last // size + 1], dtype=np.int64)
        pieces = table[None, :] * kv_heads + np.arange(kv_heads)[:, None]
        key = first * size + np.arange(len(table) * size)
        visible = (key <= query) & (key >= first_key(query, window))
        unwritten = np.nonzero(key > row.last)[0]
        hidden = np.arange(kv_heads)[:, None] * len(key) + unwritten
        return PrefillSpan(
            first_row,
            row.count,
            self._tensor(pieces.reshape(-1)),
            self._mask(visible),
            self._tensor(hidden.reshape(-1)) if unwritten.size else None,
        )

    def _mask(self, visible: np.ndarray) -> Tensor:
        """0 where visible, -inf elsewhere, in the precision of the queries."""
        mask = torch.zeros(visible.shape, dtype=self.pool.dtype, device=self.pool.device)
        return mask.masked_fill_(self._tensor(~visible), float("-inf"))

    def _tensor(self, values: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(values)).to(self.pool.device)


def _split(widths: Sequence[int], block_size: int) -> list[tuple[int, int]]:
    """Cut sequences (blocks each, about descending) into groups [begin, end) that waste little padding.

    A group ends when it would gather more than GROUP_SLOTS, or when the next sequence has less than half its width and
    padding it would cost more than a further pass of small operations (about 16 blocks' worth).
    """
    groups: list[tuple[int, int]] = []
    begin, width = 0, 0
    for i, blocks in enumerate(widths):
        wider = max(width, blocks)
        full = (i - begin + 1) * wider * block_size > GROUP_SLOTS
        wasteful = wider > 2 * blocks and (wider - blocks) * block_size > 256
        if i > begin and (full or wasteful):
            groups.append((begin, i))
            begin, wider = i, blocks
        width = wider
    if widths:
        groups.append((begin, len(widths)))
    return groups
