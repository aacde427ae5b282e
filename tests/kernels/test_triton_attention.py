"""Triton's paged decode and prefill against the NumPy oracle, under the tolerance rule.

Interpreted on the CPU; compiled under the marker ``gpu``. The interpreter takes about 30 ms a program, hence few and
short sequences: any two of the named properties meet in some case, all of them under the marker ``slow``.
"""

from __future__ import annotations

import itertools

import pytest
import torch
from triton_cases import DTYPES, SCALING, Case, Kind, boundary_lengths, pairwise

from kvtop.kernels.gpu.paged_decode import paged_decode
from kvtop.kernels.quant import QuantisedPool

KINDS = {
    "dtype": list(DTYPES),
    "stored": ["plain", "int8", "fp8"],
    "group": [1, 2, 3, 7],
    "dim": [64, 80, 96, 120, 128],
    "size": [1, 5, 16, 24, 32],
    "window": [None, 1, 7, 40],
    "softcap": [None, 1.5],
}
DECODES = pairwise({**KINDS, "splits": [1, 2, 3, 8]})
PREFILLS = pairwise({**KINDS, "count": [1, 2, 7, 19]})


def with_lengths(rows: list[dict], each: int) -> list[tuple[dict, list[int]]]:
    """``each`` lengths a row, so that every block size meets all lengths around its boundaries."""
    seen = dict.fromkeys(KINDS["size"], 0)
    found = []
    for row in rows:
        lengths, first = boundary_lengths(row["size"]), seen[row["size"]]
        found.append((row, [lengths[i % len(lengths)] for i in range(first, first + each)]))
        seen[row["size"]] += each
    return found


def name_of(value: object) -> str:
    return "-".join(f"{name}={x}" for name, x in value.items()) if isinstance(value, dict) else str(value)


def kind_of(row: dict) -> Kind:
    return Kind(**{name: row[name] for name in KINDS})


def stored(pool: object) -> torch.Tensor:
    assert isinstance(pool, torch.Tensor)
    return pool


def single(length: int) -> tuple[int, int]:
    """One query at the end of ``length`` keys; no key, no query."""
    return (length - 1, 1) if length else (0, 0)


def test_any_two_properties_meet_in_some_case() -> None:
    axes = {**KINDS, "splits": [1, 2, 3, 8]}
    for a, b in itertools.combinations(axes, 2):
        assert {(row[a], row[b]) for row in DECODES} == set(itertools.product(axes[a], axes[b]))
    for rows, each in ((DECODES, 2), (PREFILLS, 1)):
        met = {(row["size"], length) for row, lengths in with_lengths(rows, each) for length in lengths}
        assert met >= {(size, length) for size in KINDS["size"] for length in boundary_lengths(size)[: each * 5]}


@pytest.mark.parametrize(("row", "lengths"), with_lengths(DECODES, 2), ids=name_of)
def test_decode_equals_the_oracle(row: dict, lengths: list[int], device: torch.device) -> None:
    case = Case(kind_of(row), [single(n) for n in lengths], device)
    case.check(case.decode(row["splits"]))


@pytest.mark.parametrize(("row", "lengths"), with_lengths(PREFILLS, 1), ids=name_of)
def test_prefill_equals_the_oracle(row: dict, lengths: list[int], device: torch.device) -> None:
    case = Case(kind_of(row), [(n, row["count"]) for n in lengths], device)
    case.check(case.prefill())


@pytest.mark.slow
@pytest.mark.parametrize("dim", KINDS["dim"])
@pytest.mark.parametrize("group", KINDS["group"])
@pytest.mark.parametrize("stored", KINDS["stored"])
def test_every_combination(stored: str, group: int, dim: int, device: torch.device) -> None:
    others = itertools.product(*(KINDS[name] for name in ("size", "window", "softcap")))
    for number, (size, window, softcap) in enumerate(others):
        kind = Kind(list(DTYPES)[number % 3], stored, group, dim, size, window, softcap)
        case = Case(kind, [single(n) for n in boundary_lengths(size)[number % 3 :: 3]], device, seed=number)
        case.check(case.decode(1 + number % 4))
        case = Case(kind, [(boundary_lengths(size)[number % 3], 1 + number % 19)], device, seed=number)
        case.check(case.prefill())


@pytest.mark.parametrize("kind", [Kind(size=5), Kind("fp16", size=5, window=9), Kind("bf16", "int8", size=5)], ids=str)
def test_any_number_of_splits_gives_the_same_answer(kind: Kind, device: torch.device) -> None:
    case = Case(kind, [single(n) for n in (1, 50)], device)
    for splits in (1, 2, 9):
        case.check(case.decode(splits))


def test_keys_are_the_same_ones_for_decode_and_prefill(device: torch.device) -> None:
    case = Case(Kind(size=5, window=13), [single(n) for n in (12, 33)], device)
    torch.testing.assert_close(case.decode(2), case.prefill(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("splits", [1, 4])
def test_sequences_without_keys_give_zeros_and_leave_others_alone(splits: int, device: torch.device) -> None:
    case = Case(Kind(size=5), [(0, 0), single(12), (0, 0)], device)
    got = case.decode(splits)
    assert not got[[0, 2]].any()
    case.check(got[1:2])
    nothing = Case(Kind(size=5), [(0, 0)], device)
    assert not nothing.decode(splits).any()


def test_chunks_of_all_lengths_in_one_launch(device: torch.device) -> None:
    spans = [(17, 1), (0, 0), (3, 22), (9, 0), (0, 11), (31, 2)]
    case = Case(Kind(group=3, size=5, window=19), spans, device)
    case.check(case.prefill())


def test_rows_of_padding_stay_as_they_are(device: torch.device) -> None:
    case = Case(Kind(size=5), [(3, 4), (0, 6)], device)
    out = torch.full((14, 6, 64), 7.0, device=device)
    q = torch.cat([case.queries(), torch.zeros(4, 6, 64, device=device)])
    case.queries = lambda: q
    case.check(case.prefill(out=out)[:10])
    assert (out[10:] == 7).all()


@pytest.mark.parametrize(("length", "splits"), [(7, 1), (8, 1), (9, 1), (40, 3)])
def test_window_of_eight_sees_the_last_eight_keys_and_no_other(length: int, splits: int, device: torch.device) -> None:
    case = Case(Kind(group=1, size=4, window=8), [single(length)], device)
    before, v_pool = case.decode(splits), stored(case.v_pool)
    case.check(before)
    seen = []
    for position in {max(0, length - 9), max(0, length - 8), max(0, length - 7), length - 1}:
        block, slot = case.tables[0][position // 4], position % 4
        if block < 0:
            continue
        kept = v_pool[block, :, slot].clone()
        v_pool[block, :, slot] = 1e6
        if not torch.equal(case.decode(splits), before):
            seen.append(position)
        v_pool[block, :, slot] = kept
    assert sorted(seen) == sorted({max(0, length - 8), max(0, length - 7), length - 1})


def test_query_heads_read_the_kv_head_of_their_group(device: torch.device) -> None:
    case = Case(Kind(group=3, size=4), [single(6)], device)
    stored(case.v_pool)[:] = torch.arange(2.0, device=device)[None, :, None, None]
    want = (torch.arange(6.0, device=device) // 3)[None, :, None].expand(1, 6, 64)
    torch.testing.assert_close(case.decode(), want)
    torch.testing.assert_close(case.prefill(), want)


def test_key_and_value_heads_of_different_size(device: torch.device) -> None:
    case = Case(Kind(dim=80, v_dim=24, size=5, stored="int8"), [(11, 1), (6, 1)], device)
    case.check(case.decode(2))
    case.check(case.prefill())


def test_a_broken_row_in_the_window_is_not_hidden(device: torch.device) -> None:
    for stored in ("plain", "int8", "fp8"):
        case = Case(Kind(size=4, stored=stored), [single(9), single(6)], device)
        pool = case.v_pool
        numbers = pool.scales if isinstance(pool, QuantisedPool) else pool
        numbers[case.tables[0][1], 1, 2] = float("nan")
        for got in (case.decode(), case.prefill()):
            assert got[0, 3:].isnan().any(-1).all()  # heads of KV head 1
            assert got[0, :3].isfinite().all()
            assert got[1].isfinite().all()


@pytest.mark.parametrize("stored", ["int8", "fp8"])
def test_doubled_scales_of_the_values_double_the_output(stored: str, device: torch.device) -> None:
    case = Case(Kind(stored=stored, size=4), [single(9)], device)
    assert isinstance(case.v_pool, QuantisedPool)
    before = case.decode(2)
    case.v_pool.scales.mul_(2)
    torch.testing.assert_close(case.decode(2), before * 2)
    assert before.abs().max() > 0.1


@pytest.mark.parametrize("stored", ["int8", "fp8"])
def test_rows_of_very_different_size_keep_their_precision(stored: str, device: torch.device) -> None:
    """Scales of V reach the weights relative to a tile's largest: none may vanish in half precision."""
    case = Case(Kind("fp16", stored, size=4), [single(30)], device)
    for x in case.qkv:
        x[2].mul_(1e-4)
    case.v_pool = case._pool(len(case.tables[0]) + 3, 2)
    case.check(case.decode())


def test_strided_output(device: torch.device) -> None:
    case = Case(Kind(size=5), [single(8), single(3)], device)
    whole = torch.zeros(6, 2, 128, device=device)
    out = whole.transpose(0, 1)[:, :, 64:]
    assert case.decode(2, out=out) is out
    case.check(out)
    assert not whole[:, :, :64].any()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"q": lambda q: q[:, :5]}, "5 query heads cannot share 2 KV heads"),
        ({"q": lambda q: q[..., :32]}, "queries have 32 elements a head, keys have 64"),
        ({"q": lambda q: q.double()}, "k_pool: expected torch.float64, found torch.float32"),
        ({"q": lambda q: q[:1]}, "1 queries for 2 block tables"),
        ({"k_pool": lambda pool: pool.transpose(2, 3).contiguous().transpose(2, 3)}, "must be contiguous"),
        ({"k_pool": lambda pool: pool[:, :, :4]}, "blocks of K are"),
    ],
)
def test_what_a_kernel_would_misread_is_refused(change: dict, message: str, device: torch.device) -> None:
    case = Case(Kind(size=5), [single(8), single(3)], device)
    given = {"q": case.queries(), "k_pool": case.k_pool, "v_pool": case.v_pool}
    given |= {name: alter(given[name]) for name, alter in change.items()}
    with pytest.raises(ValueError, match=message):
        paged_decode(**given, tables=case.packed(None), scaling=SCALING)


@pytest.mark.gpu
def test_a_captured_launch_follows_the_lengths_on_the_device() -> None:
    """One CUDA graph serves any lengths: nothing about them was read on the host."""
    device = torch.device("cuda")
    kind = Kind("fp16", dim=128)
    cases = [Case(kind, [single(n) for n in lengths], device, seed=1) for lengths in ((90, 40), (17, 64), (1, 90))]
    buffers = cases[0].packed(None)
    q = cases[0].queries().clone()
    k_pool, v_pool = stored(cases[0].k_pool).clone(), stored(cases[0].v_pool).clone()

    def launch() -> torch.Tensor:
        return paged_decode(q, k_pool, v_pool, buffers, scaling=SCALING)

    launch()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = launch()
    for case in cases:
        tables = case.packed(None)
        buffers.block_tables.fill_(-1)
        buffers.block_tables[:, : tables.block_tables.shape[1]] = tables.block_tables
        buffers.lengths.copy_(tables.lengths)
        for pool, source in ((k_pool, stored(case.k_pool)), (v_pool, stored(case.v_pool))):
            pool[: len(source)] = source
        q.copy_(case.queries())
        graph.replay()
        case.check(out)
