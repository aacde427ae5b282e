"""Triton kernels that move rows and blocks: bit for bit what the torch operations do, wherever the memory lies."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from triton_cases import DTYPES, Case, Kind

from kvtop.kernels import paged_torch, quant
from kvtop.kernels.gpu.copy_blocks import copy_blocks
from kvtop.kernels.gpu.kv_write import kv_write
from kvtop.kernels.gpu.swap_blocks import swap_blocks
from kvtop.kernels.quant import LARGEST, QuantisedPool

FORMATS = sorted(LARGEST)
BLOCKS, HEADS, SIZE = 6, 3, 5


def normal(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)


def poisoned(stored: str, dtype: torch.dtype, dim: int, device: torch.device) -> Tensor | QuantisedPool:
    if stored == "plain":
        return torch.full((BLOCKS, HEADS, SIZE, dim), float("nan"), dtype=dtype, device=device)
    values = torch.full((BLOCKS, HEADS, SIZE, dim), 0x7F, dtype=torch.int8, device=device)
    return QuantisedPool(values, torch.full((BLOCKS, HEADS, SIZE), float("nan"), device=device), stored, dtype)


def parts(pool: Tensor | QuantisedPool) -> list[Tensor]:
    """Memory of a pool, as integers: NaN compares equal to itself."""
    tensors = [pool] if isinstance(pool, Tensor) else [pool.values, pool.scales]
    return [tensor.cpu().contiguous().view(torch.int8) for tensor in tensors]


def rows_of(slots: list[int], device: torch.device) -> Tensor:
    """Rows of the pool seen as (blocks * heads * size, D) for the tokens in ``slots`` (block * size + offset)."""
    rows = [(slot // SIZE * HEADS + head) * SIZE + slot % SIZE for slot in slots for head in range(HEADS)]
    return torch.tensor(rows, device=device)


@pytest.mark.parametrize("stored", ["plain", *FORMATS])
@pytest.mark.parametrize("dim", [64, 80, 120])
@pytest.mark.parametrize("name", list(DTYPES))
def test_written_rows_have_the_bits_torch_writes(stored: str, dim: int, name: str, device: torch.device) -> None:
    dtype = DTYPES[name]
    slots = [7, 29, 0, 13, 22]
    sizes = torch.logspace(-3, 3, len(slots))[:, None, None]
    new = (normal(len(slots), HEADS, dim) * sizes * torch.logspace(-4, 0, dim)).to(dtype)
    new[1, 2] = 0  # a row of zeros
    strided = new.transpose(0, 1).contiguous().to(device).transpose(0, 1)
    got, want = poisoned(stored, dtype, dim, device), poisoned(stored, dtype, dim, torch.device("cpu"))
    kv_write(got, rows_of(slots, device), strided)
    paged_torch.kv_write(want, rows_of(slots, torch.device("cpu")), new)
    for mine, theirs in zip(parts(got), parts(want), strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("kv_dtype", FORMATS)
def test_every_number_of_the_format_and_every_tie_between_two_is_stored_as_torch_stores_it(
    kv_dtype: str, device: torch.device
) -> None:
    bits = torch.arange(-127, 128, dtype=torch.int8)
    numbers = bits.float() if kv_dtype == "int8" else bits.view(torch.float8_e4m3fn).float()
    numbers = numbers[numbers.isfinite()].sort().values
    rows = torch.cat([numbers, (numbers[1:] + numbers[:-1]) / 2, torch.zeros(768 - 2 * len(numbers) + 1)]).view(12, 64)
    rows[:, 0] = LARGEST[kv_dtype]  # so that every scale is 1
    got = QuantisedPool(
        torch.zeros(1, 12, 1, 64, dtype=torch.int8, device=device),
        torch.zeros(1, 12, 1, device=device),
        kv_dtype,
        torch.float32,
    )
    kv_write(got, torch.arange(12, device=device), rows[None].to(device))
    values, scales = quant.quantise(rows, kv_dtype)
    assert torch.equal(got.scales.view(-1).cpu(), scales)
    assert torch.equal(got.values.view(12, 64).cpu(), values)


@pytest.mark.parametrize("kv_dtype", FORMATS)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_one_broken_element_makes_its_row_nan_and_no_other(kv_dtype: str, bad: float, device: torch.device) -> None:
    new = normal(1, HEADS, 64)
    new[0, 1, 9] = bad
    pool = poisoned(kv_dtype, torch.float32, 64, device)
    assert isinstance(pool, QuantisedPool)
    kv_write(pool, rows_of([8], device), new.to(device))
    assert pool.scales[1, :, 3].isnan().tolist() == [False, True, False]


@pytest.mark.parametrize("stored", ["plain", *FORMATS])
def test_rows_of_padding_are_not_written(stored: str, device: torch.device) -> None:
    pool, before = poisoned(stored, torch.float32, 64, device), poisoned(stored, torch.float32, 64, device)
    kv_write(pool, torch.full((2 * HEADS,), -1, device=device), normal(2, HEADS, 64).to(device))
    assert all(torch.equal(a, b) for a, b in zip(parts(pool), parts(before), strict=True))


def test_rows_in_another_precision_are_converted_as_torch_does(device: torch.device) -> None:
    new = normal(2, HEADS, 64)
    pool = poisoned("plain", torch.bfloat16, 64, device)
    assert isinstance(pool, Tensor)
    kv_write(pool, rows_of([4, 11], device), new.to(device))
    assert torch.equal(pool[0, :, 4].cpu(), new[0].bfloat16())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8])
@pytest.mark.parametrize("shape", [(HEADS, SIZE, 40), (HEADS, SIZE), (7, 31, 33)])
def test_copied_blocks_have_the_bits_of_their_sources(dtype: torch.dtype, shape: tuple, device: torch.device) -> None:
    bits = torch.randint(-128, 128, (BLOCKS, *shape, dtype.itemsize), dtype=torch.int8)
    pool = bits.view(dtype)[..., 0].contiguous()  # NaN with any payload
    want = pool.clone()
    paged_torch.copy_blocks(want.view(torch.int8), torch.tensor([1, 1, 5]), torch.tensor([0, 3, 4]))
    got = pool.clone().to(device)
    copy_blocks(got, torch.tensor([1, -1, 1, 5], device=device), torch.tensor([0, 2, 3, 4], device=device))
    assert torch.equal(got.cpu().view(torch.int8), want.view(torch.int8))
    assert not torch.equal(want.view(torch.int8), pool.view(torch.int8))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int8])
def test_blocks_swapped_out_and_in_to_other_ids_keep_their_bits(dtype: torch.dtype, device: torch.device) -> None:
    numbers = (normal(BLOCKS, HEADS, SIZE, 8) * 40).to(dtype)
    pool, host = numbers.clone().to(device), torch.zeros(3, HEADS, SIZE, 8, dtype=dtype)
    if device.type == "cuda":
        host = host.pin_memory()
    swap_blocks(pool, torch.tensor([5, 1]), host, torch.tensor([0, 2]))
    pool.zero_()
    swap_blocks(host, torch.tensor([2, 0]), pool, torch.tensor([4, 3]))  # in another order, to other blocks
    if device.type == "cuda":
        torch.cuda.synchronize()
    assert torch.equal(pool[[3, 4]].cpu(), numbers[[5, 1]])
    assert not pool[[0, 1, 2, 5]].any()
    assert torch.equal(host[[0, 2]], numbers[[5, 1]])


@pytest.mark.gpu
def test_host_memory_that_is_not_pinned_is_refused() -> None:
    one = torch.tensor([0])
    with pytest.raises(ValueError, match="destination: host memory must be pinned"):
        swap_blocks(torch.zeros(2, 4, device="cuda"), one, torch.zeros(2, 4), one)


def test_what_would_be_misread_is_refused(device: torch.device) -> None:
    pool = torch.zeros(BLOCKS, HEADS, SIZE, 8, device=device)
    one = torch.zeros(1, dtype=torch.int64, device=device)
    with pytest.raises(ValueError, match="blocks must be contiguous"):
        copy_blocks(pool.transpose(1, 2), one, one)
    with pytest.raises(ValueError, match="source blocks for"):
        copy_blocks(pool, one, one[:0])
    with pytest.raises(ValueError, match=r"blocks are torch.float32 .* and torch.float16"):
        swap_blocks(pool, one, pool.half(), one)
    with pytest.raises(ValueError, match=r"new: expected \(T, 3, 8\), found \(1, 3, 4\)"):
        kv_write(pool, one, torch.zeros(1, HEADS, 4, device=device))
    with pytest.raises(ValueError, match=r"rows: expected contiguous \(3,\), found \(1,\)"):
        kv_write(pool, one, torch.zeros(1, HEADS, 8, device=device))


# Offsets past 2^31 ----------------------------------------------------------------------------------------------------

FAR_STRIDE = 2**28  # elements from block to block: block 8 begins 2^31 past block 0


class FarPool:
    """9 int8 blocks of (2, B, D), 2^28 elements apart, and as much memory before them.

    Memory that is not touched is not taken. An offset that wraps at 32 bits lands before block 0: on memory that is
    there, and holds something else.
    """

    def __init__(self, size: int, dim: int, device: torch.device) -> None:
        block = 2 * size * dim
        memory = torch.empty(2 * 2**31 + block, dtype=torch.int8, device=device)
        memory[:block] = 1  # where block 8 would be with an offset of -2^31
        self.values = memory[2**31 :].as_strided((9, 2, size, dim), (FAR_STRIDE, size * dim, dim, 1))

    def quantised(self, near: QuantisedPool, ids: dict[int, int]) -> QuantisedPool:
        """The blocks of ``near`` under other ids."""
        scales = torch.full((9, *near.scales.shape[1:]), float("nan"), device=near.scales.device)
        for old, new in ids.items():
            self.values[new] = near.values[old]
            scales[new] = near.scales[old]
        return QuantisedPool(self.values, scales, near.kv_dtype, near.dtype)


def test_attention_reads_blocks_beyond_two_gib_elements(device: torch.device) -> None:
    case = Case(Kind(stored="int8", size=4), [(9, 2)], device)
    assert isinstance(case.k_pool, QuantisedPool)
    assert isinstance(case.v_pool, QuantisedPool)
    want = [case.decode(2), case.prefill()]
    case.check(want[1])
    ids: dict[int, int] = dict(zip(case.tables[0], (8, 3, 7), strict=True))
    case.k_pool = FarPool(4, 64, device).quantised(case.k_pool, ids)
    case.v_pool = FarPool(4, 64, device).quantised(case.v_pool, ids)
    case.tables = [list(ids.values())]
    for got, near in zip((case.decode(2), case.prefill()), want, strict=True):
        torch.testing.assert_close(got, near)


def test_writes_and_copies_reach_blocks_beyond_two_gib_elements(device: torch.device) -> None:
    values = FarPool(4, 64, device).values
    pool = QuantisedPool(values, torch.zeros(9, 2, 4, device=device), "int8", torch.float32)
    new = normal(1, 2, 64)
    slot = torch.tensor([(8 * 2 + head) * 4 + 1 for head in range(2)], device=device)
    kv_write(pool, slot, new.to(device))
    want = quant.quantise(new[0], "int8")[0]
    assert torch.equal(values[8, :, 1].cpu(), want)
    copy_blocks(values, torch.tensor([8], device=device), torch.tensor([2], device=device))
    assert torch.equal(values[2, :, 1].cpu(), want)
    values[2] += 1
    copy_blocks(values, torch.tensor([2], device=device), torch.tensor([8], device=device))
    assert torch.equal(values[8, :, 1].cpu(), want + 1)
