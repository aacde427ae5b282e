"""Cases for attention kernels: sequences in a poisoned, shuffled pool, the oracle's answer, and the tolerance rule."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kvtop.kernels.gpu.config import DecodeConfig, PrefillConfig
from kvtop.kernels.gpu.paged_decode import paged_decode
from kvtop.kernels.gpu.paged_prefill import paged_prefill
from kvtop.kernels.gpu.tables import PagedTables, pack
from kvtop.kernels.quant import QuantisedPool, dequantise, quantise
from kvtop.kernels.reference import num_pages, paged_attention

SCALING = 0.2
KV_HEADS = 2
NULL_BLOCK = -1
SPARE_BLOCKS = 3  # never written, never in a table
DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
# Smaller than what a GPU is given: short sequences then take several iterations, and several shares.
SMALL_DECODE = DecodeConfig(tile=16, num_splits=1, min_tiles=1)
SMALL_PREFILL = PrefillConfig(rows=32, tile=16)


@dataclass(frozen=True)
class Kind:
    """One kind of attention. ``stored`` is plain, int8 or fp8; ``v_dim`` None: as ``dim``."""

    dtype: str = "fp32"
    stored: str = "plain"
    group: int = 3
    dim: int = 64
    size: int = 16
    window: int | None = None
    softcap: float | None = None
    v_dim: int | None = None

    def __str__(self) -> str:
        window = "" if self.window is None else f"-window{self.window}"
        cap = "" if self.softcap is None else f"-cap{self.softcap}"
        return f"{self.dtype}-{self.stored}-group{self.group}-dim{self.dim}-block{self.size}{window}{cap}"


class Case:
    """Sequences of (start, count): the last ``count`` tokens attend, everything is in the pool already."""

    def __init__(self, kind: Kind, spans: Sequence[tuple[int, int]], device: torch.device, seed: int = 0) -> None:
        self.kind, self.spans, self.device, self.dtype = kind, list(spans), device, DTYPES[kind.dtype]
        rng = np.random.default_rng(seed)
        pages = [num_pages(start + count, kind.size)[0] for start, count in spans]
        ids = rng.permutation(sum(pages) + SPARE_BLOCKS).tolist()
        self.tables = [[ids.pop() for _ in range(n)] for n in pages]
        heads = KV_HEADS * kind.group
        shapes = ((heads, kind.dim), (KV_HEADS, kind.dim), (KV_HEADS, kind.v_dim or kind.dim))
        self.qkv = [[self._normal(rng, s + c, *shape) for shape in shapes] for s, c in spans]
        self.k_pool, self.v_pool = (self._pool(sum(pages) + SPARE_BLOCKS, which) for which in (1, 2))
        for (start, _), table in zip(self.spans, self.tables, strict=True):
            hidden = 0 if kind.window is None else max(0, start - kind.window + 1) // kind.size
            table[:hidden] = [NULL_BLOCK] * hidden

    def _normal(self, rng: np.random.Generator, *shape: int) -> Tensor:
        return torch.from_numpy(rng.standard_normal(shape)).to(self.dtype)

    def _pool(self, num_blocks: int, which: int) -> Tensor | QuantisedPool:
        """K (1) or V (2): NaN, and the sequences' rows where their tables say."""
        size, dim = self.kind.size, self.qkv[0][which].shape[-1]
        plain = torch.full((num_blocks, KV_HEADS, size, dim), float("nan"), dtype=self.dtype)
        for table, rows in zip(self.tables, (x[which] for x in self.qkv), strict=True):
            for position, row in enumerate(rows):
                plain[table[position // size], :, position % size] = row
        if self.kind.stored == "plain":
            return plain.to(self.device)
        values, scales = quantise(plain, self.kind.stored)
        values[scales.isnan()] = 0x7F  # any bits: only the scale says that nothing was written
        return QuantisedPool(values.to(self.device), scales.to(self.device), self.kind.stored, self.dtype)

    @property
    def lengths(self) -> list[int]:
        return [start + count for start, count in self.spans]

    @property
    def counts(self) -> list[int]:
        return [count for _, count in self.spans]

    def packed(self, counts: Sequence[int] | None) -> PagedTables:
        """Tables on the device; what must not be looked up is a block that is not there, or no block at all."""
        kind = self.kind
        tables = pack(self.tables, self.lengths, counts, block_size=kind.size, device=self.device, window=kind.window)
        width = tables.block_tables.shape[1]
        for i, table in enumerate(self.tables):
            tables.block_tables[i, len(table) : width] = (NULL_BLOCK, 2**31 - 1)[i % 2]
        return tables

    def queries(self) -> Tensor:
        """(T, H, D): the queries of all sequences, as a strided view (a transformer's heads come first)."""
        q = torch.cat([x[0][start:] for (start, _), x in zip(self.spans, self.qkv, strict=True)])
        return q.transpose(0, 1).contiguous().to(self.device).transpose(0, 1)

    def decode(self, num_splits: int = 1, **options: Any) -> Tensor:
        """One query a sequence; a sequence without any gets a row of zeros as its query."""
        rows = [x[0][-1] if len(x[0]) else torch.zeros(x[0].shape[1:], dtype=self.dtype) for x in self.qkv]
        q = torch.stack(rows).transpose(0, 1).contiguous().to(self.device).transpose(0, 1)
        config = DecodeConfig(SMALL_DECODE.tile, num_splits, SMALL_DECODE.min_tiles)
        given = {"scaling": SCALING, "softcap": self.kind.softcap, "config": config, **options}
        return paged_decode(q, self.k_pool, self.v_pool, self.packed(None), **given)

    def prefill(self, **options: Any) -> Tensor:
        given = {"scaling": SCALING, "softcap": self.kind.softcap, "config": SMALL_PREFILL, **options}
        return paged_prefill(self.queries(), self.k_pool, self.v_pool, self.packed(self.counts), **given)

    def oracle(self) -> np.ndarray:
        """(T, H, Dv) in fp64 over what is stored; zeros for a sequence of length 0 with a query."""
        k_pool, v_pool = stored_numbers(self.k_pool), stored_numbers(self.v_pool)
        found = []
        for (start, count), table, (q, _, _) in zip(self.spans, self.tables, self.qkv, strict=True):
            if count and start + count > 0:
                options: dict[str, Any] = {"scaling": SCALING, "window": self.kind.window, "softcap": self.kind.softcap}
                new = q[start:].double().numpy()
                found.append(paged_attention(new, k_pool, v_pool, table, start, **options).value)
        return np.concatenate(found)

    def plain(self) -> Tensor:
        """The textbook computation in the precision of the case, from the stored rows read in that precision."""
        kind, found = self.kind, []
        for (start, count), (q, k, v) in zip(self.spans, self.qkv, strict=True):
            if not count:
                continue
            if kind.stored != "plain":
                k, v = (dequantise(*quantise(x, kind.stored), kind.stored, self.dtype) for x in (k, v))
            k, v = (x.repeat_interleave(kind.group, 1) for x in (k, v))
            scores = torch.einsum("thd,lhd->htl", q[start:], k) * SCALING
            if kind.softcap is not None:
                scores = kind.softcap * torch.tanh(scores / kind.softcap)
            query, key = torch.arange(start, len(q))[:, None], torch.arange(len(k))[None]
            visible = (key <= query) & (key > query - (kind.window or len(k) + 1))
            weights = scores.masked_fill(~visible, float("-inf")).softmax(-1)
            found.append(torch.einsum("htl,lhd->thd", weights, v))
        return torch.cat(found)

    def check(self, got: Tensor) -> None:
        """``got``: a row for every query, in the order of the sequences."""
        check_tolerance(got, self.oracle(), self.plain())


def check_tolerance(got: Tensor, want: np.ndarray, plain: Tensor) -> None:
    """The rule: error against fp64 <= 2 x that of plain torch in the same precision, or one unit in the last place.

    As a root mean square. The largest of some thousand errors is partly luck: it may be 4 x plain torch's.
    """
    assert got.dtype == plain.dtype
    own = np.abs(got.double().cpu().numpy() - want)
    theirs = np.abs(plain.double().numpy() - want)
    ulp = torch.finfo(plain.dtype).eps * np.abs(want).max()
    for name, factor, measure in (("rms", 2, lambda x: np.sqrt((x**2).mean())), ("largest", 4, np.max)):
        allowed = max(factor * measure(theirs), ulp)
        assert measure(own) <= allowed, f"{name} error {measure(own):.3e}, at most {allowed:.3e}"


def stored_numbers(pool: Tensor | QuantisedPool) -> np.ndarray:
    """What a pool holds, in fp64."""
    if isinstance(pool, Tensor):
        return pool.double().cpu().numpy()
    values = pool.values if pool.kv_dtype == "int8" else pool.values.view(torch.float8_e4m3fn)
    return (values.double() * pool.scales.double()[..., None]).cpu().numpy()


def boundary_lengths(size: int) -> list[int]:
    return sorted({1, size - 1, size, size + 1, 2 * size - 1, 2 * size, 2 * size + 1} - {0})


def pairwise(axes: dict[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Rows in which any two values of different axes meet: greedy, from a fixed sample of the product."""
    names = list(axes)
    stream = np.random.default_rng(0)

    def pairs(row: tuple[int, ...]) -> set[tuple[int, int, int, int]]:
        return {(a, b, row[a], row[b]) for a, b in itertools.combinations(range(len(names)), 2)}

    missing: set[tuple[int, int, int, int]] = set()
    for a, b in itertools.combinations(range(len(names)), 2):
        missing |= {(a, b, i, j) for i in range(len(axes[names[a]])) for j in range(len(axes[names[b]]))}
    rows = []
    while missing:
        wanted = min(missing)
        candidates = []
        for _ in range(300):
            row = [int(stream.integers(len(axes[name]))) for name in names]
            row[wanted[0]], row[wanted[1]] = wanted[2], wanted[3]
            candidates.append(tuple(row))
        best = max(candidates, key=lambda row: (len(pairs(row) & missing), row))
        missing -= pairs(best)
        rows.append({name: axes[name][i] for name, i in zip(names, best, strict=True)})
    return rows
