"""What surrounds the Triton kernels: the table of kernels, packed tables, sizes from shapes, and the compiler."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from kvtop.kernels.dispatch import KERNELS, backend_of, kernel
from kvtop.kernels.gpu.config import MAX_SPLITS, decode_config, prefill_config
from kvtop.kernels.gpu.launch import interpreted
from kvtop.kernels.gpu.tables import PagedTables, pack

COMPILE = Path(__file__).with_name("triton_compiled.py")
H200_PROCESSORS = 132


@pytest.mark.parametrize(("operation", "backend"), KERNELS)
def test_every_kernel_of_the_table_is_there(operation: str, backend: str) -> None:
    found = kernel(operation, backend)
    assert found.__name__ == operation
    assert found.__module__ == KERNELS[operation, backend]


def test_both_backends_have_every_operation() -> None:
    names = [{name for name, backend in KERNELS if backend == wanted} for wanted in ("torch", "triton")]
    assert names[0] == names[1]


def test_an_unknown_kernel_is_refused_with_those_there_are() -> None:
    with pytest.raises(KeyError, match=r"no kernel paged_decode \(numba\); there are kv_write \(torch\), "):
        kernel("paged_decode", "numba")


def test_devices_choose_their_backend() -> None:
    assert [backend_of(name) for name in ("cuda", "cpu", "mps")] == ["triton", "torch", "torch"]


def test_choosing_torch_loads_no_triton() -> None:
    code = (
        "import sys; from kvtop.kernels.dispatch import kernel; assert 'torch' not in sys.modules; "
        "kernel('kv_write', 'torch'); assert 'triton' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_tables_are_packed_and_garbage_beyond_the_length_dropped() -> None:
    cpu = torch.device("cpu")
    tables = pack([[4, 9, 10**12], [7], []], [6, 4, 0], [2, 4, 0], block_size=4, device=cpu, window=5)
    tables.check()
    assert tables.block_tables.tolist() == [[4, 9], [7, -1], [-1, -1]]
    assert tables.lengths.tolist() == [6, 4, 0]
    assert tables.starts is not None
    assert tables.starts.tolist() == [0, 2, 6, 6]
    assert pack([[0]], [1], None, block_size=4, device=cpu).starts is None
    pack([[], []], [0, 0], [0, 0], block_size=4, device=cpu).check()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lengths": torch.zeros(3, dtype=torch.int32)}, r"lengths: expected contiguous \(2,\), found \(3,\)"),
        ({"starts": torch.zeros(2, dtype=torch.int32)}, r"starts: expected contiguous \(3,\), found \(2,\)"),
        ({"lengths": torch.zeros(2, dtype=torch.int64)}, "must be int32, found torch.int64"),
        ({"block_tables": torch.zeros(4, 2, dtype=torch.int32).T}, "block_tables: expected contiguous rows"),
        ({"window": 0}, "window: expected at least 1 token, found 0"),
    ],
)
def test_tables_a_kernel_would_misread_are_refused(change: dict, message: str) -> None:
    good = {"block_tables": torch.zeros(2, 4, dtype=torch.int32), "lengths": torch.zeros(2, dtype=torch.int32)}
    with pytest.raises(ValueError, match=message):
        PagedTables(**{**good, **change}).check()


@pytest.mark.skipif(not interpreted(), reason="kernels are compiled here")
def test_the_cpu_is_refused_where_kernels_are_not_interpreted() -> None:
    code = (
        "import torch; from kvtop.kernels.gpu.copy_blocks import copy_blocks; "
        "copy_blocks(torch.zeros(2, 4), torch.tensor([0]), torch.tensor([1]))"
    )
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=environment)
    message = "ValueError: Triton kernels take CUDA tensors, found cpu; TRITON_INTERPRET=1 interprets them"
    assert done.stderr.splitlines()[-1] == message


# Sizes ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dim", [64, 80, 128, 256])
@pytest.mark.parametrize("itemsize", [1, 2, 4])
@pytest.mark.parametrize("num_seqs", [1, 16, 1000])
@pytest.mark.parametrize("max_keys", [1, 300, 4096, 131_072])
def test_decode_sizes(dim: int, itemsize: int, num_seqs: int, max_keys: int) -> None:
    """Enough programs to fill the device where there is enough to read; none reads far more than the others."""
    kv_heads = 8
    config = decode_config(num_seqs, kv_heads, max_keys, dim, itemsize, H200_PROCESSORS)
    assert 16 <= config.tile <= 128
    assert config.tile & (config.tile - 1) == 0
    assert config.num_splits in {1 << n for n in range(MAX_SPLITS.bit_length())}
    assert max_keys <= config.num_splits * 16_384
    if num_seqs * kv_heads * -(-max_keys // 256) >= 2 * H200_PROCESSORS:
        assert num_seqs * kv_heads * config.num_splits >= 2 * H200_PROCESSORS
    assert config.num_splits == 1 or (config.num_splits - 1) * 256 < max_keys


@pytest.mark.parametrize("group", [1, 3, 7, 8, 71])
@pytest.mark.parametrize(("dim", "itemsize"), [(64, 2), (128, 2), (128, 4), (256, 2)])
def test_prefill_sizes(group: int, dim: int, itemsize: int) -> None:
    config = prefill_config(group, dim, itemsize)
    assert config.rows >= max(16, group)
    assert config.rows & (config.rows - 1) == 0


# The compiler ---------------------------------------------------------------------------------------------------------


def compiled(*arguments: str, timeout: int) -> list[dict]:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-W", "ignore", COMPILE, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, env=environment)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def check_compiled(kernels: list[dict]) -> None:
    """Nothing spills to speak of, several programs share a multiprocessor, and K and V come 16 bytes at a time."""
    for found in kernels:
        assert found.get("stack_bytes", 0) <= 256, found
        assert found["shared_bytes"] <= 100 * 1024, found
        form, _, dim, _, _ = found["case"]
        row_bytes = dim * {"fp32": 4, "int8": 1, "fp8": 1}.get(form, 2)
        if found["kernel"] == "decode_kernel" and form != "fp32" and row_bytes % 16 == 0:
            assert found["copies_of_16_bytes"] >= 8, found


def test_kernels_compile_for_a_gpu_that_is_not_there() -> None:
    kernels = compiled("sm_90", timeout=110)
    check_compiled(kernels)
    names = {"decode_kernel", "merge_kernel", "prefill_kernel", "write_kernel", "copy_kernel"}
    assert {found["kernel"] for found in kernels} == names


@pytest.mark.slow
@pytest.mark.parametrize("target", ["sm_80", "sm_90", "sm_100"])
def test_all_kinds_of_kernels_compile(target: str) -> None:
    check_compiled(compiled(target, "--all", timeout=1000))
