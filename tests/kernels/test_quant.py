"""Quantised K and V: error bounds, the oracle's table of numbers, scales that count, and scales that travel."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from kvtop.engine.executors.torch_batch import PagedBatch, Row
from kvtop.engine.executors.torch_pool import KVPool, LayerShape, bytes_per_block
from kvtop.kernels import reference_quant
from kvtop.kernels.quant import (
    LARGEST,
    SMALLEST_SCALE,
    QuantisedPool,
    dequantise,
    load_quantised,
    quantise,
    write_quantised,
)
from kvtop.kernels.reference import num_pages, paged_attention

FORMATS = sorted(LARGEST)
CPU = torch.device("cpu")
SCALING = 0.2


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def rows_of_all_sizes() -> Tensor:
    """Rows from the smallest subnormal number to nearly the largest number, each with elements of several sizes."""
    sizes = torch.tensor([1e-44, 1e-39, 1e-37, 1e-20, 1e-6, 1.0, 3e4, 1e30, 1e37])
    return normal(len(sizes), 40) * sizes[:, None] * torch.logspace(-4, 0, 40)


def round_trip(rows: Tensor, kv_dtype: str, dtype: torch.dtype = torch.float32) -> Tensor:
    return dequantise(*quantise(rows, kv_dtype), kv_dtype, dtype)


def pool_of(kv_dtype: str, layers: list[LayerShape], num_blocks: int = 6, block_size: int = 4) -> KVPool:
    return KVPool(layers, num_blocks, block_size, torch.float32, CPU, kv_dtype=kv_dtype)


def poison(pool: KVPool) -> None:
    """What memory may hold before it is written: any bits as values, NaN as scales."""
    for tensor in pool.tensors:
        tensor.fill_(float("nan")) if tensor.is_floating_point() else tensor.fill_(0x7F)


def read(store: object) -> Tensor:
    assert isinstance(store, QuantisedPool)
    return dequantise(store.values, store.scales, store.kv_dtype, torch.float32)


# Rows ---------------------------------------------------------------------------------------------------------------


def test_int8_is_off_by_half_a_scale_at_most() -> None:
    rows = rows_of_all_sizes()
    _, scales = quantise(rows, "int8")
    error = (round_trip(rows, "int8").double() - rows.double()).abs().amax(-1)
    assert (error <= scales.double() / 2 * (1 + 1e-4)).all()
    assert (error[-4:] > scales[-4:].double() / 4).all()  # the bound is no larger than it has to be


def test_fp8_is_off_by_a_sixteenth_or_half_its_smallest_step() -> None:
    rows = rows_of_all_sizes()
    _, scales = quantise(rows, "fp8")
    error = (round_trip(rows, "fp8").double() - rows.double()).abs()
    bound = torch.maximum(rows.double().abs() / 16, scales.double()[:, None] * 2.0**-10)
    assert (error <= bound * (1 + 1e-4)).all()


@pytest.mark.parametrize("kv_dtype", FORMATS)
def test_rows_read_back_as_the_nearest_number_of_the_table(kv_dtype: str) -> None:
    rows = normal(30, 24, seed=3) * torch.logspace(-3, 3, 30)[:, None]
    got, scales = round_trip(rows, kv_dtype), quantise(rows, kv_dtype)[1]
    for row, back, scale in zip(rows.double().numpy(), got.double().numpy(), scales.tolist(), strict=True):
        want, want_scale = reference_quant.round_trip(row, kv_dtype)
        assert scale == want_scale
        np.testing.assert_allclose(back, want, rtol=1e-6)


@pytest.mark.parametrize("kv_dtype", FORMATS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_every_number_of_the_format_survives(kv_dtype: str, dtype: torch.dtype) -> None:
    numbers = torch.from_numpy(reference_quant.numbers(kv_dtype)).to(dtype)
    assert len(numbers) == {"int8": 255, "fp8": 253}[kv_dtype]
    assert torch.equal(round_trip(numbers, kv_dtype, dtype), numbers)


@pytest.mark.parametrize("kv_dtype", FORMATS)
def test_half_precision_rows_neither_overflow_nor_vanish(kv_dtype: str) -> None:
    for size in (65504.0, 6e-8):
        rows = torch.full((2, 8), size, dtype=torch.float16)
        assert torch.equal(round_trip(rows, kv_dtype, torch.float16), rows)


@pytest.mark.parametrize("kv_dtype", FORMATS)
def test_zeros_come_back_as_zeros_with_a_scale_that_divides(kv_dtype: str) -> None:
    values, scales = quantise(torch.zeros(3, 8), kv_dtype)
    assert scales.tolist() == [SMALLEST_SCALE] * 3
    assert not values.any()
    assert torch.equal(round_trip(torch.zeros(3, 8), kv_dtype), torch.zeros(3, 8))


@pytest.mark.parametrize("kv_dtype", FORMATS)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_one_broken_element_makes_its_row_nan_and_no_other(kv_dtype: str, bad: float) -> None:
    rows = normal(3, 8)
    clean = round_trip(rows, kv_dtype)
    rows[1, 5] = bad
    got = round_trip(rows, kv_dtype)
    assert got[1].isnan().all()
    assert torch.equal(got[[0, 2]], clean[[0, 2]])


# Pools --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kv_dtype", FORMATS)
def test_writes_touch_only_their_rows_scales_included(kv_dtype: str) -> None:
    pool = pool_of(kv_dtype, [LayerShape(0, 2, 8, 8)])
    poison(pool)
    store = pool.stores[0][0]
    assert isinstance(store, QuantisedPool)
    new = normal(1, 2, 8)
    write_quantised(store, torch.tensor([5, 9]), new)
    got = read(store).view(-1, 8)
    assert torch.equal(got[[5, 9]], round_trip(new[0], kv_dtype))
    assert got.isnan().all(-1).sum() == len(got) - 2


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan"), float("inf")])
def test_a_scale_that_is_no_positive_number_is_refused_when_loaded(scale: float) -> None:
    pool = pool_of("int8", [LayerShape(0, 2, 8, 8)])
    store = pool.stores[0][1]
    assert isinstance(store, QuantisedPool)
    values = torch.ones(2, 8, dtype=torch.int8)
    with pytest.raises(ValueError, match=r"scale of row 1 is \S+, expected a positive finite number"):
        load_quantised(store, torch.tensor([0, 1]), values, torch.tensor([1.0, scale]))
    assert not store.values.any()
    load_quantised(store, torch.tensor([0, 1]), values, torch.tensor([1.0, 2.0]))
    assert read(store).view(-1, 8)[:2].tolist() == [[1.0] * 8, [2.0] * 8]


class Case:
    """Sequences (start, count) in a poisoned, shuffled pool; ``attend`` computes the last ``count`` tokens of each."""

    def __init__(self, kv_dtype: str, spans: list[tuple[int, int]], size: int, dims: tuple[int, int] = (40, 24)):
        rng = np.random.default_rng(0)
        pages = [num_pages(start + count, size)[0] for start, count in spans]
        ids = rng.permutation(sum(pages) + 4).tolist()
        self.spans, self.tables = spans, [[ids.pop() for _ in range(n)] for n in pages]
        self.pool = pool_of(kv_dtype, [LayerShape(0, 2, *dims)], sum(pages) + 4, size)
        poison(self.pool)
        shapes = ((6, dims[0]), (2, dims[0]), (2, dims[1]))
        self.qkv = [[torch.from_numpy(rng.standard_normal((s + c, *x))).float() for x in shapes] for s, c in spans]

    def attend(self, begin: int, **options) -> dict[int, Tensor]:
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
        k_pool, v_pool = (read(store).double().numpy() for store in self.pool.stores[0])
        queries, start = self.qkv[i][0], self.spans[i][0]
        new = queries[start:].double().numpy()
        return paged_attention(new, k_pool, v_pool, self.tables[i], start, scaling=SCALING, **options).value


@pytest.mark.parametrize("kv_dtype", FORMATS)
@pytest.mark.parametrize("size", [1, 5, 16])
@pytest.mark.parametrize("options", [{}, {"window": 6}, {"softcap": 1.5}], ids=str)
def test_attention_equals_the_oracle_over_what_is_stored(kv_dtype: str, size: int, options: dict) -> None:
    case = Case(kv_dtype, [(15, 1), (16, 1), (0, 1), (40, 1), (0, 21), (13, 6), (16, 33)], size)
    case.attend(0, **options)
    for i, value in case.attend(1, **options).items():
        assert np.abs(value.double().numpy() - case.oracle(i, **options)).max() < 5e-6


@pytest.mark.parametrize("kv_dtype", FORMATS)
def test_doubled_scales_of_the_values_double_the_output(kv_dtype: str) -> None:
    case = Case(kv_dtype, [(9, 1)], 4)
    case.attend(0)
    before = case.attend(1)[0]
    store = case.pool.stores[0][1]
    assert isinstance(store, QuantisedPool)
    written = ~store.scales.isnan()
    batch = PagedBatch(case.pool, [Row(0, [0], 9, case.tables[0])])
    store.scales[written] *= 2
    q, k, v = (x[9:].transpose(0, 1) for x in case.qkv[0])
    after = batch.attend(0, q, k, v * 2, scaling=SCALING, window=None, softcap=None)  # its own token is written anew
    torch.testing.assert_close(after, before * 2)
    assert before.abs().max() > 0.1


@pytest.mark.parametrize("kv_dtype", FORMATS)
def test_chunks_see_their_own_tokens_as_they_are_stored(kv_dtype: str) -> None:
    whole, cut = Case(kv_dtype, [(0, 19)], 4), Case(kv_dtype, [(11, 8)], 4)
    cut.attend(0)
    torch.testing.assert_close(whole.attend(1)[0][11:], cut.attend(1)[0], rtol=1e-5, atol=1e-6)


def filled(kv_dtype: str, layers: list[LayerShape], num_blocks: int, seed: int) -> KVPool:
    """Every row written; the scales of two blocks are never alike."""
    pool = pool_of(kv_dtype, layers, num_blocks)
    for layer in layers:
        for store, dim in zip(pool.stores[layer.layer], (layer.k_dim, layer.v_dim), strict=True):
            assert isinstance(store, QuantisedPool)
            count = num_blocks * layer.kv_heads * 4
            rows = normal(count, 1, dim, seed=seed) * torch.logspace(-2, 2, count)[:, None, None]
            write_quantised(store, torch.arange(count), rows)
    return pool


def everything(pool: KVPool, blocks: list[int]) -> list[Tensor]:
    return [read(store)[blocks] for stores in pool.stores.values() for store in stores]


LAYERS = [LayerShape(0, 2, 8, 8), LayerShape(1, 3, 8, 5)]


@pytest.mark.parametrize("kv_dtype", FORMATS)
def test_copies_take_the_scales_along(kv_dtype: str) -> None:
    pool = filled(kv_dtype, LAYERS, 6, seed=1)
    want = everything(pool, [0, 1, 0, 3, 0, 5])
    pool.copy([(0, 2), (2, 4)])
    assert all(torch.equal(got, block) for got, block in zip(everything(pool, list(range(6))), want, strict=True))


@pytest.mark.parametrize("kv_dtype", FORMATS)
def test_blocks_swapped_out_and_in_to_other_ids_keep_their_values(kv_dtype: str) -> None:
    pool, host = filled(kv_dtype, LAYERS, 6, seed=1), filled(kv_dtype, LAYERS, 3, seed=2)
    want = everything(pool, [5, 1])
    pool.swap_to(host, [(5, 0), (1, 2)])
    for tensor in pool.tensors:
        tensor.zero_()
    host.swap_to(pool, [(2, 4), (0, 3)])  # in another order, to other blocks
    assert all(torch.equal(got, block) for got, block in zip(everything(pool, [3, 4]), want, strict=True))
    assert all(block.any() for block in want)


@pytest.mark.parametrize("kv_dtype", ["auto", *FORMATS])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bytes_are_those_of_all_tensors(kv_dtype: str, dtype: torch.dtype) -> None:
    pool = KVPool(LAYERS, 7, 4, dtype, CPU, kv_dtype=kv_dtype)
    held = sum(tensor.numel() * tensor.element_size() for tensor in pool.tensors)
    assert held == 7 * bytes_per_block(LAYERS, 4, dtype, kv_dtype)
    if kv_dtype != "auto":
        assert held == 7 * 4 * (2 * (8 + 8 + 2 * 4) + 3 * (8 + 5 + 2 * 4))
