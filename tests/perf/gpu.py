"""How near the Triton kernels come to the memory's own speed, on this GPU, as a Markdown table.

    python tests/perf/gpu.py                   a CUDA device is needed: without one it says so and ends with 2
    python tests/perf/gpu.py --kv-heads 4 --group 8 --head-dim 64 --block-size 32

Bytes are those a kernel cannot avoid: K and V of the visible keys (with their scales), queries and results. The copy
bandwidth is that of one large tensor copied within the device, bytes read and written counted. Beside decode and
prefill stands torch's scaled_dot_product_attention over contiguous K and V in half precision, which needs no block
tables; where its answer differs, the program fails. Times are medians with the L2 cache flushed before each run.
Whole decode steps of a model are measured by ``gpu_steps.py`` beside this.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from kvtop.kernels.dispatch import kernel
from kvtop.kernels.gpu.tables import PagedTables, pack
from kvtop.kernels.quant import QuantisedPool, quantise

DRY_RUN = "--dry-run" in sys.argv  # tiny shapes on the CPU, with TRITON_INTERPRET=1: shows that the program runs

GIB = 1 << 30
FORMATS = ("plain", "int8", "fp8")
# Largest difference from SDPA over half-precision K and V that rounding explains, for values of about 1.
TOLERANCE = {"plain": 0.02, "int8": 0.05, "fp8": 0.2}
DECODES = [(1, 4096), (1, 131_072), (8, 16_384), (64, 4096), (256, 2048), (1000, 256), (1000, 2048), (1000, 4096)]
PREFILLS = [(1, 0, 8192), (1, 32_768, 2048), (16, 1024, 512), (1000, 512, 8)]


@dataclass(frozen=True)
class Shape:
    kv_heads: int
    group: int
    dim: int
    block_size: int
    device: torch.device
    dtype: torch.dtype = torch.float16

    @property
    def heads(self) -> int:
        return self.kv_heads * self.group


@dataclass(frozen=True)
class Figure:
    """One measured kernel. ``flops`` 0: its time is the memory's alone."""

    what: str
    seconds: float
    num_bytes: int
    flops: float = 0.0
    sdpa_seconds: float | None = None


def seconds(run: Callable[[], Any]) -> float:
    """Median time of one run on the device; in a dry run just one run."""
    if DRY_RUN:
        begin = time.perf_counter()
        run()
        return time.perf_counter() - begin
    from triton.testing import do_bench

    median_ms: Any = do_bench(run, warmup=50, rep=300, return_mode="median")
    return median_ms / 1e3


def size_of(*tensors: Tensor) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def copy_bandwidth(device: torch.device) -> float:
    """Bytes a second, read and written, of a copy that no cache holds."""
    source = torch.zeros(1 << 16 if DRY_RUN else 4 * GIB, dtype=torch.int8, device=device)
    target = torch.empty_like(source)
    return 2 * size_of(source) / seconds(lambda: target.copy_(source))


class Data:
    """``num_seqs`` sequences of ``length`` tokens: contiguous K and V, and the same in shuffled blocks."""

    def __init__(self, shape: Shape, num_seqs: int, length: int) -> None:
        self.shape, self.num_seqs, self.length = shape, num_seqs, length
        self.pages = -(-length // shape.block_size)
        stream = torch.Generator(device=shape.device).manual_seed(0)
        self.order = torch.randperm(num_seqs * self.pages, generator=stream, device=shape.device)
        padded = (num_seqs, shape.kv_heads, self.pages * shape.block_size, shape.dim)
        make = {"generator": stream, "device": shape.device, "dtype": shape.dtype}
        self.k, self.v = torch.randn(padded, **make), torch.randn(padded, **make)

    def pool(self, rows: Tensor, kv_format: str) -> Tensor | QuantisedPool:
        """``rows`` (num_seqs, KVH, L, D) as blocks, in the order of the block tables."""
        shape = self.shape
        split = rows.view(self.num_seqs, shape.kv_heads, self.pages, shape.block_size, shape.dim).transpose(1, 2)
        blocks = torch.empty(
            len(self.order), shape.kv_heads, shape.block_size, shape.dim, dtype=shape.dtype, device=shape.device
        )
        blocks.view(blocks.shape)[self.order] = split.flatten(0, 1)
        if kv_format == "plain":
            return blocks
        values = torch.empty_like(blocks, dtype=torch.int8)
        scales = torch.empty(blocks.shape[:3], device=shape.device)
        for begin in range(0, len(blocks), 4096):  # a part at a time: fp32 copies are large
            part = slice(begin, begin + 4096)
            values[part], scales[part] = quantise(blocks[part], kv_format)
        return QuantisedPool(values, scales, kv_format, shape.dtype)

    def tables(self, counts: list[int] | None = None) -> PagedTables:
        tables = self.order.view(self.num_seqs, self.pages).tolist()
        lengths = [self.length] * self.num_seqs
        return pack(tables, lengths, counts, block_size=self.shape.block_size, device=self.shape.device)

    def read_bytes(self, kv_format: str) -> int:
        """K and V of all keys, and their scales."""
        rows = 2 * self.num_seqs * self.length * self.shape.kv_heads
        return rows * (self.shape.dim * 2 if kv_format == "plain" else self.shape.dim + 4)


def measure_decode(shape: Shape, num_seqs: int, length: int) -> Iterator[Figure]:
    data = Data(shape, num_seqs, length)
    tables, scaling = data.tables(), shape.dim**-0.5
    q = torch.randn(num_seqs, shape.heads, shape.dim, device=shape.device, dtype=shape.dtype)
    keys, values = data.k[:, :, :length], data.v[:, :, :length]

    def sdpa() -> Tensor:
        return functional.scaled_dot_product_attention(q[:, :, None], keys, values, scale=scaling, enable_gqa=True)

    want, sdpa_seconds = sdpa()[:, :, 0], seconds(sdpa)
    decode = kernel("paged_decode", "triton")
    for kv_format in FORMATS:
        k_pool, v_pool = data.pool(data.k, kv_format), data.pool(data.v, kv_format)

        def run(k_pool=k_pool, v_pool=v_pool) -> Tensor:
            return decode(q, k_pool, v_pool, tables, scaling=scaling)

        what = f"decode, {kv_format}, {num_seqs:,} x {length:,}"
        check(what, run(), want, kv_format)
        num_bytes = data.read_bytes(kv_format) + 2 * size_of(q)
        yield Figure(what, seconds(run), num_bytes, 0.0, sdpa_seconds)


def measure_prefill(shape: Shape, num_seqs: int, prefix: int, count: int) -> Iterator[Figure]:
    data = Data(shape, num_seqs, prefix + count)
    tables, scaling = data.tables([count] * num_seqs), shape.dim**-0.5
    q = torch.randn(num_seqs * count, shape.heads, shape.dim, device=shape.device, dtype=shape.dtype)
    keys, values = data.k[:, :, : prefix + count], data.v[:, :, : prefix + count]
    queries = q.view(num_seqs, count, shape.heads, shape.dim).transpose(1, 2).contiguous()
    mask = torch.ones(count, prefix + count, dtype=torch.bool, device=shape.device).tril_(prefix)
    choose: dict[str, Any] = {"is_causal": True} if prefix == 0 else {"attn_mask": mask}

    def sdpa() -> Tensor:
        return functional.scaled_dot_product_attention(queries, keys, values, scale=scaling, enable_gqa=True, **choose)

    want, sdpa_seconds = sdpa().transpose(1, 2).reshape(q.shape), seconds(sdpa)
    prefill = kernel("paged_prefill", "triton")
    pairs = num_seqs * (count * prefix + count * (count + 1) / 2)
    for kv_format in FORMATS:
        k_pool, v_pool = data.pool(data.k, kv_format), data.pool(data.v, kv_format)

        def run(k_pool=k_pool, v_pool=v_pool) -> Tensor:
            return prefill(q, k_pool, v_pool, tables, scaling=scaling)

        what = f"prefill, {kv_format}, {num_seqs:,} x {count:,} after {prefix:,}"
        check(what, run(), want, kv_format)
        num_bytes = data.read_bytes(kv_format) + 2 * size_of(q)
        yield Figure(what, seconds(run), num_bytes, 4 * pairs * shape.heads * shape.dim, sdpa_seconds)


def measure_moves(shape: Shape, num_tokens: int, num_blocks: int) -> Iterator[Figure]:
    """Writes of ``num_tokens`` new tokens, and copies and swaps of ``num_blocks`` blocks, of one layer's K."""
    size, device = shape.block_size, shape.device
    data = Data(shape, 1, max(num_tokens, 2 * num_blocks * size))
    new = torch.randn(num_tokens, shape.kv_heads, shape.dim, device=device, dtype=shape.dtype)
    slots = torch.randperm(data.pages * size, device=device)[:num_tokens, None]
    head = torch.arange(shape.kv_heads, device=device)
    rows = ((slots // size * shape.kv_heads + head) * size + slots % size).view(-1)
    write, copy, swap = (kernel(name, "triton") for name in ("kv_write", "copy_blocks", "swap_blocks"))
    for kv_format in FORMATS:
        pool = data.pool(data.k, kv_format)
        stored = size_of(new) if kv_format == "plain" else new.numel() + rows.numel() * 4
        num_bytes = size_of(new, rows) + stored
        yield Figure(
            f"kv_write, {kv_format}, {num_tokens:,} tokens", seconds(lambda p=pool: write(p, rows, new)), num_bytes
        )
    blocks = data.pool(data.k, "plain")
    assert isinstance(blocks, Tensor)
    ids = torch.randperm(2 * num_blocks, device=device)
    moved = 2 * size_of(blocks[:num_blocks])
    time_s = seconds(lambda: copy(blocks, ids[:num_blocks], ids[num_blocks:]))
    yield Figure(f"copy_blocks, {num_blocks:,} blocks", time_s, moved)
    host = torch.empty_like(blocks[:num_blocks], device="cpu", pin_memory=not DRY_RUN)
    there = torch.arange(num_blocks, device=device)
    for name, ends in (
        ("out", (blocks, ids[:num_blocks], host, there)),
        ("in", (host, there, blocks, ids[:num_blocks])),
    ):
        time_s = seconds(lambda ends=ends: swap(*ends))
        yield Figure(f"swap_blocks {name}, {num_blocks:,} blocks (over the bus)", time_s, moved // 2)


def check(what: str, got: Tensor, want: Tensor, kv_format: str) -> None:
    """Raises SystemExit: a wrong answer is not worth timing."""
    off = float((got.float() - want.float()).abs().max())
    if not off <= TOLERANCE[kv_format]:
        raise SystemExit(f"{what}: differs from scaled_dot_product_attention by {off:.3g}")


def fits(shape: Shape, num_seqs: int, length: int) -> bool:
    """Room for contiguous K and V, a pool of each, and what making them takes."""
    need = 6 * num_seqs * length * shape.kv_heads * shape.dim * 2
    return DRY_RUN or need < torch.cuda.mem_get_info(shape.device)[0]


def figures(shape: Shape) -> Iterator[Figure]:
    decodes = [(2, 20), (3, 7)] if DRY_RUN else DECODES
    prefills = [(1, 0, 9), (2, 5, 3)] if DRY_RUN else PREFILLS
    for num_seqs, length in decodes:
        if fits(shape, num_seqs, length):
            yield from measure_decode(shape, num_seqs, length)
        else:
            print(f"left out, too large for this device: decode {num_seqs:,} x {length:,}", file=sys.stderr)
    for num_seqs, prefix, count in prefills:
        if fits(shape, num_seqs, prefix + count):
            yield from measure_prefill(shape, num_seqs, prefix, count)
        else:
            print(f"left out, too large for this device: prefill {num_seqs:,} x {prefix + count:,}", file=sys.stderr)
    for num_tokens, num_blocks in [(4, 3)] if DRY_RUN else [(1000, 1000), (8192, 8192)]:
        yield from measure_moves(shape, num_tokens, num_blocks)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kv-heads", type=int, default=8)
    parser.add_argument("--group", type=int, default=4, help="query heads a KV head (default 4)")
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument("--block-size", type=int, default=16)
    parser.add_argument("--dry-run", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if not DRY_RUN and not torch.cuda.is_available():
        print("kvtop: tests/perf/gpu.py measures Triton kernels on a CUDA device, and there is none", file=sys.stderr)
        return 2
    device = torch.device("cpu" if DRY_RUN else "cuda")
    shape = Shape(args.kv_heads, args.group, args.head_dim, args.block_size, device)
    copy = copy_bandwidth(device)
    name = "a dry run" if DRY_RUN else torch.cuda.get_device_name(device)
    print(f"{name}: copy bandwidth {copy / 1e9:,.0f} GB/s; {args.kv_heads} KV heads x {args.group}, head size "
          f"{args.head_dim}, blocks of {args.block_size}, fp16; torch {torch.__version__}\n")  # fmt: skip
    print("| kernel | us | GB/s | of copy | TFLOP/s | SDPA, us | SDPA / kernel |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    for found in figures(shape):
        rate = found.num_bytes / found.seconds
        flops = f"{found.flops / found.seconds / 1e12:,.1f}" if found.flops else ""
        other = found.sdpa_seconds
        beside = f"{other * 1e6:,.1f} | {other / found.seconds:.2f}" if other is not None else " | "
        own = f"{found.seconds * 1e6:,.1f} | {rate / 1e9:,.0f} | {rate / copy:.0%} | {flops}"
        print(f"| {found.what} | {own} | {beside} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
