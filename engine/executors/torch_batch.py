"""One step's packed batch: token rows, the slots they are written to, and the indices attention reads with.

Rows are ordered for attention: single tokens first, longest context first, then the longer chunks. Index tensors
depend on the layer only through its KV group, its number of KV heads and its window: they are made once a step for
each combination.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from kvtop.engine.executors.torch_pool import KVPool
from kvtop.kernels.paged_torch import DecodeGroup, PrefillSpan, kv_write, paged_decode, paged_prefill

# One gather copies at most about this many slots: enough to keep all cores busy, small enough for the caches.
GROUP_SLOTS = 16_384


@dataclass(frozen=True, slots=True)
class Row:
    """``len(tokens)`` tokens of one sequence from position ``start``; ``key`` is the caller's own."""

    key: int
    tokens: Sequence[int]
    start: int
    block_table: Sequence[int]
    other_tables: Sequence[Sequence[int]] = ()  # of the KV groups after the first

    def table(self, group: int) -> Sequence[int]:
        """Block table of a KV group."""
        return self.other_tables[group - 1] if group else self.block_table

    @property
    def count(self) -> int:
        return len(self.tokens)

    @property
    def last(self) -> int:
        """Position of the last token."""
        return self.start + len(self.tokens) - 1


class PagedBatch:
    """The keyword ``kv`` of a forward pass: everything attention needs to know, for one pool and one step."""

    def __init__(self, pool: KVPool, rows: Sequence[Row]) -> None:
        self.pool = pool
        self.rows = sorted(rows, key=lambda r: (r.count > 1, -r.last if r.count == 1 else 0))
        self.num_decodes = sum(r.count == 1 for r in self.rows)
        self.layers_seen = 0
        self._writes: dict[tuple[int, int], Tensor] = {}
        self._work: dict[tuple[int, int, int | None], tuple[list[DecodeGroup], list[PrefillSpan]]] = {}

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
        (k_pool, v_pool), kv_heads = self.pool.stores[layer], k.shape[0]
        kv_group = self.pool.layout.group_of[layer]
        rows = self._write_rows(kv_group, kv_heads)
        kv_write(k_pool, rows, k.transpose(0, 1))
        kv_write(v_pool, rows, v.transpose(0, 1))
        groups, spans = self._work_for(kv_group, kv_heads, window)
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

    def _write_rows(self, kv_group: int, kv_heads: int) -> Tensor:
        """Row of the pool, seen as (num_blocks * KVH * B, D), of every (token, head)."""
        if (kv_group, kv_heads) not in self._writes:
            size = self.pool.block_size
            blocks = [self._written(r, kv_group) for r in self.rows]
            block, offset = np.concatenate(blocks).astype(np.int64), self.positions % size
            rows = (block[:, None] * kv_heads + np.arange(kv_heads)) * size + offset[:, None]
            self._writes[kv_group, kv_heads] = self._tensor(rows.reshape(-1))
        return self._writes[kv_group, kv_heads]

    def _written(self, row: Row, kv_group: int) -> np.ndarray:
        """Block of every token of ``row``."""
        size = self.pool.block_size
        first, last = row.start // size, row.last // size
        table = np.asarray(row.table(kv_group)[first : last + 1])
        return table[np.arange(row.start, row.last + 1) // size - first]

    def _work_for(
        self, kv_group: int, kv_heads: int, window: int | None
    ) -> tuple[list[DecodeGroup], list[PrefillSpan]]:
        key = (kv_group, kv_heads, window)
        if key not in self._work:
            self._work[key] = (self._decode_groups(*key), self._prefill_spans(*key))
        return self._work[key]

    def _decode_groups(self, kv_group: int, kv_heads: int, window: int | None) -> list[DecodeGroup]:
        size = self.pool.block_size
        first_blocks = [_first_key(r.start, window) // size for r in self.rows[: self.num_decodes]]
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
        visible = (position <= last) & (position >= _first_key(last, window))
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
            visible = (key <= query) & (key >= _first_key(query, window))
            return PrefillSpan(first_row, row.count, None, self._mask(visible), None)
        first = _first_key(row.start, window) // size
        table = np.asarray(blocks[first : row.last // size + 1], dtype=np.int64)
        pieces = table[None, :] * kv_heads + np.arange(kv_heads)[:, None]
        key = first * size + np.arange(len(table) * size)
        visible = (key <= query) & (key >= _first_key(query, window))
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


def _first_key(position, window: int | None):
    """First position a query at ``position`` (a number or an array) sees."""
    return position * 0 if window is None else np.maximum(position - window + 1, 0)


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
