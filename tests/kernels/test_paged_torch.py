"""Paged attention on the CPU, gathered by torch and in place by kvtop's kernel, against the NumPy oracle.

Odd shapes, shuffled blocks, NaN wherever nothing was written.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from kvtop.engine.executors.torch_batch import PagedBatch, Row
from kvtop.engine.executors.torch_gather import _split
from kvtop.engine.executors.torch_pool import KVPool, LayerShape, independent_runs
from kvtop.kernels.reference import num_pages, paged_attention

SCALING = 0.2


@pytest.fixture(autouse=True, params=["in place", "gathered"])
def _way(request: pytest.FixtureRequest) -> None:
    Case.in_place = request.param == "in place"


class Case:
    """Sequences with some tokens already in a NaN-filled pool, and new ones to attend with."""

    in_place: bool

    def __init__(self, spans: list[tuple[int, int]], size: int, heads: int, kv_heads: int, dim: int, seed: int = 0):
        rng = np.random.default_rng(seed)
        pages = [num_pages(start + count, size)[0] for start, count in spans]
        ids = rng.permutation(sum(pages) + 4).tolist()
        self.tables = [[ids.pop() for _ in range(n)] for n in pages]
        layers = [LayerShape(0, kv_heads, dim, dim)]
        self.pool = KVPool(layers, sum(pages) + 4, size, torch.float32, torch.device("cpu"))
        if self.in_place and self.pool.attention != "cpu":
            pytest.skip("the kernels cannot be used here, or not with this head size")
        self.pool.attention = "cpu" if self.in_place else "torch"
        self.pool.k[0].fill_(float("nan"))
        self.pool.v[0].fill_(float("nan"))
        self.spans, shape = spans, (heads, kv_heads, kv_heads)
        self.qkv = [[torch.from_numpy(rng.standard_normal((s + c, n, dim))).float() for n in shape] for s, c in spans]

    def attend(self, begin: int, **options) -> dict[int, torch.Tensor]:
        """Run positions ``begin ..`` of every sequence (0: the old ones, 1: the new ones); rows by sequence."""
        cuts = [(0, s) if begin == 0 else (s, s + c) for s, c in self.spans]
        rows = [Row(i, list(range(a, b)), a, self.tables[i]) for i, (a, b) in enumerate(cuts) if b > a]
        if not rows:
            return {}
        batch = PagedBatch(self.pool, rows)
        packed = [torch.cat([self.qkv[r.key][j][r.start : r.last + 1] for r in batch.rows]) for j in range(3)]
        q, k, v = (x.transpose(0, 1) for x in packed)
        out = batch.attend(0, q, k, v, scaling=SCALING, **{"window": None, "softcap": None, **options})
        return dict(zip([r.key for r in batch.rows], out.split([r.count for r in batch.rows]), strict=True))

    def oracle(self, i: int, **options) -> np.ndarray:
        start = self.spans[i][0]
        pools = (self.pool.k[0].double().numpy(), self.pool.v[0].double().numpy())
        return paged_attention(
            self.qkv[i][0][start:].double().numpy(), *pools, self.tables[i], start, scaling=SCALING, **options
        ).value

    def plain_error(self, i: int, want: np.ndarray, window: int | None, softcap: float | None) -> float:
        """Error of the textbook computation in fp32: what the tolerance is measured in."""
        q, k, v = self.qkv[i]
        start, group = self.spans[i][0], q.shape[1] // k.shape[1]
        scores = torch.einsum("thd,lhd->htl", q[start:], k.repeat_interleave(group, 1)) * SCALING
        if softcap is not None:
            scores = softcap * torch.tanh(scores / softcap)
        query, key = torch.arange(start, len(q))[:, None], torch.arange(len(k))[None]
        visible = (key <= query) & (key > query - (window or len(k) + 1))
        weights = scores.masked_fill(~visible, float("-inf")).softmax(-1)
        plain = torch.einsum("htl,lhd->thd", weights, v.repeat_interleave(group, 1))
        return float(np.abs(plain.double().numpy() - want).max())

    def check(self, window: int | None = None, softcap: float | None = None) -> None:
        self.attend(0, window=window, softcap=softcap)
        got = self.attend(1, window=window, softcap=softcap)
        for i, value in got.items():
            want = self.oracle(i, window=window, softcap=softcap)
            error = np.abs(value.double().numpy() - want).max()
            assert error <= 2 * self.plain_error(i, want, window, softcap) + 1e-6


def boundary_lengths(size: int) -> list[int]:
    return sorted({1, size - 1, size, size + 1, 2 * size - 1, 2 * size, 2 * size + 1} - {0})


@pytest.mark.parametrize("size", [1, 5, 16, 24])
@pytest.mark.parametrize(("heads", "kv_heads"), [(5, 5), (6, 2), (7, 1), (9, 3)])
def test_decode_equals_the_oracle_around_block_boundaries(size: int, heads: int, kv_heads: int) -> None:
    Case([(n - 1, 1) for n in boundary_lengths(size)], size, heads, kv_heads, 40).check()


@pytest.mark.parametrize("size", [1, 5, 16, 24])
@pytest.mark.parametrize("count", [2, 7, 33])
def test_chunks_equal_the_oracle_around_block_boundaries(size: int, count: int) -> None:
    Case([(n - 1, count) for n in boundary_lengths(size)], size, 6, 2, 40).check()


@pytest.mark.parametrize("dim", [40, 64, 80, 96, 120])
def test_head_sizes_that_are_no_power_of_two(dim: int) -> None:
    Case([(17, 1), (3, 9), (0, 21)], 5, 6, 2, dim).check()


@pytest.mark.parametrize("window", [1, 2, 7, 8, 9, 100])
@pytest.mark.parametrize("size", [1, 4, 16])
def test_sliding_windows(window: int, size: int) -> None:
    Case([(8, 1), (7, 1), (0, 1), (40, 1), (0, 12), (13, 6)], size, 6, 2, 16).check(window=window)


@pytest.mark.parametrize("window", [None, 6])
def test_soft_caps(window: int | None) -> None:
    Case([(8, 1), (0, 1), (0, 12), (13, 6)], 4, 6, 2, 16).check(window=window, softcap=1.5)


def test_long_and_short_sequences_are_split_into_groups_and_still_right() -> None:
    spans = [(n, 1) for n in (900, 3, 610, 0, 450, 17, 899)]
    case = Case(spans, 16, 6, 2, 16)
    assert len(_split([57, 57, 39, 29, 2, 1, 1], 16)) > 1
    case.check()


def test_window_of_eight_sees_keys_one_to_eight_and_not_key_zero() -> None:
    case = Case([(8, 1)], 4, 2, 1, 8)
    case.attend(0, window=8)
    before = case.attend(1, window=8)[0]
    block = case.tables[0][0]
    case.pool.v[0][block, :, 0] = 1e6  # key 0: out of the window
    assert torch.equal(case.attend(1, window=8)[0], before)
    case.pool.v[0][block, :, 1] = 1e6  # key 1: its oldest key
    assert not torch.equal(case.attend(1, window=8)[0], before)


def test_garbage_beyond_the_table_is_not_touched() -> None:
    case = Case([(5, 1), (5, 3)], 4, 2, 1, 8)
    case.attend(0)
    want = case.attend(1)
    case.tables = [[*table, -1, 10**12] for table in case.tables]
    got = case.attend(1)
    assert all(torch.equal(got[i], want[i]) for i in want)


def test_writes_touch_only_the_slots_of_the_new_tokens() -> None:
    case = Case([(0, 6)], 4, 2, 1, 8)
    case.attend(1)
    written = ~case.pool.k[0].isnan().any(-1)[:, 0]
    expected = torch.zeros_like(written)
    expected[case.tables[0][0]] = True
    expected[case.tables[0][1], :2] = True
    assert torch.equal(written, expected)


@pytest.mark.parametrize(
    "copies",
    [[(0, 1)], [(0, 1), (1, 2)], [(0, 1), (2, 1)], [(0, 1), (2, 0)], [(0, 1), (0, 2), (3, 4)], [(1, 1)]],
)
def test_copies_act_one_after_the_other(copies: list[tuple[int, int]]) -> None:
    pool = KVPool([LayerShape(0, 2, 3, 5)], 6, 4, torch.float32, torch.device("cpu"))
    for tensor in (pool.k[0], pool.v[0]):
        tensor.copy_(torch.randn(tensor.shape, generator=torch.Generator().manual_seed(1)))
    want = [pool.k[0].clone(), pool.v[0].clone()]
    for source, destination in copies:
        for tensor in want:
            tensor[destination] = tensor[source].clone()
    pool.copy(copies)
    assert torch.equal(pool.k[0], want[0])
    assert torch.equal(pool.v[0], want[1])


def test_copies_that_do_not_depend_on_each_other_are_done_at_once() -> None:
    assert len(independent_runs([(0, 5), (0, 6), (1, 7)])) == 1
    assert len(independent_runs([(0, 5), (5, 6)])) == 2
