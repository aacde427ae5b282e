"""Compile what the launchers launch, for a GPU that need not be there; one line a kernel, as JSON.

    python tests/kernels/triton_compiled.py [sm_90] [--all]

The interpreter accepts what the compiler refuses (types, shapes that are no power of two), so this is tested apart. It
runs in a process of its own: in the tests' process kernels are interpreted. Launches are caught on tensors without
memory and compiled down to machine code with the assembler that triton brings along.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

from kvtop.kernels.gpu import copy_blocks, kv_write, merge_splits, paged_decode, paged_prefill
from kvtop.kernels.gpu.tables import PagedTables
from kvtop.kernels.quant import QuantisedPool

TYPES = {
    torch.float32: "fp32",
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.int8: "i8",
    torch.int16: "i16",
    torch.int32: "i32",
    torch.int64: "i64",
}
BLOCKS = 4096
NUM_PROCESSORS = 132  # of an H100 or H200
FEW = [("bf16", 3, 64, 16, 30.0), ("fp8", 7, 80, 5, None)]
ALL = [
    *FEW,
    ("fp16", 8, 128, 16, None),
    ("int8", 4, 128, 16, None),
    *[(form, 4, dim, 24, None) for form in ("fp16", "int8") for dim in (96, 120, 256)],
    ("fp16", 1, 64, 1, None),
    ("fp32", 4, 120, 5, None),
    ("fp32", 1, 64, 16, 30.0),
    ("fp32", 2, 128, 32, None),
    ("fp8", 4, 128, 32, 30.0),
]


def catch_launches(launch: Callable[[], Any]) -> list[tuple[JITFunction, list[Any], dict[str, Any]]]:
    """Every kernel that ``launch`` would run, with its arguments."""
    caught: list[tuple[JITFunction, list[Any], dict[str, Any]]] = []
    run = JITFunction.run
    JITFunction.run = lambda self, *args, grid, warmup, **kwargs: caught.append((self, list(args), kwargs))
    try:
        launch()
    finally:
        JITFunction.run = run
    return caught


def compile_launch(function: JITFunction, args: list[Any], kwargs: dict[str, Any], capability: int) -> Any:
    """The compiled kernel, specialised as a real launch would be: 16-byte pointers, integers that 16 divides."""
    bound = dict(zip(function.arg_names, args, strict=False))
    options = {name: value for name, value in kwargs.items() if name not in function.arg_names}
    bound |= {name: value for name, value in kwargs.items() if name in function.arg_names}
    constants = {p.name for p in function.params if p.is_constexpr}
    signature, constexprs, attributes = {}, {}, {}
    for index, name in enumerate(function.arg_names):
        value = bound[name]
        if name in constants or (isinstance(value, int) and value == 1):
            signature[name], constexprs[name] = "constexpr", value
            continue
        signature[name] = "*" + TYPES[value.dtype] if isinstance(value, Tensor) else "fp32"
        if isinstance(value, int):
            signature[name] = "i32" if -(2**31) <= value < 2**31 else "i64"
        if isinstance(value, Tensor) or (isinstance(value, int) and value % 16 == 0):
            attributes[(index,)] = [["tt.divisibility", 16]]
    source = ASTSource(fn=function, signature=signature, constexprs=constexprs, attrs=attributes)
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)


def resources(cubin: bytes) -> dict[str, int]:
    """Registers and bytes of stack a thread, as ``cuobjdump`` tells; empty where triton brings none."""
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    if not tool.exists():
        return {}
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        text = subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    found = re.findall(r"REG:(\d+) STACK:(\d+)", text)
    return {"registers": max(int(r) for r, _ in found), "stack_bytes": max(int(s) for _, s in found)}


def launches(form: str, group: int, dim: int, size: int, softcap: float | None) -> list:
    """All kernels of one kind of pool, as batches of ordinary size launch them."""
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}.get(form, torch.float16)
    kv_heads, seqs, tokens = 8, 64, 2048

    def pool() -> Any:
        if form not in ("int8", "fp8"):
            return torch.empty(BLOCKS, kv_heads, size, dim, dtype=dtype, device="meta")
        values = torch.empty(BLOCKS, kv_heads, size, dim, dtype=torch.int8, device="meta")
        return QuantisedPool(values, torch.empty(BLOCKS, kv_heads, size, device="meta"), form, dtype)

    def launch() -> None:
        k_pool, v_pool = pool(), pool()
        q = torch.empty(tokens, kv_heads * group, dim, dtype=dtype, device="meta")
        table = torch.empty(seqs, 8192 // size, dtype=torch.int32, device="meta")
        lengths = torch.empty(seqs, dtype=torch.int32, device="meta")
        tables = PagedTables(table, lengths, torch.empty(seqs + 1, dtype=torch.int32, device="meta"), None)
        paged_decode.paged_decode(q[:seqs], k_pool, v_pool, tables, scaling=0.1, softcap=softcap)
        paged_prefill.paged_prefill(q, k_pool, v_pool, tables, scaling=0.1, softcap=softcap)
        rows = torch.empty(tokens * kv_heads, dtype=torch.int64, device="meta")
        kv_write.kv_write(k_pool, rows, q[:, :kv_heads])
        blocks = k_pool.values if isinstance(k_pool, QuantisedPool) else k_pool
        copy_blocks.copy_blocks(blocks, rows[:8], rows[8:16])

    for module in (copy_blocks, kv_write, merge_splits, paged_decode, paged_prefill):
        module.on_device_of = lambda tensor: nullcontext()  # type: ignore[assignment]
    paged_decode.num_processors = lambda device: NUM_PROCESSORS  # type: ignore[assignment]
    return catch_launches(launch)


def main() -> None:
    capability = int(next((arg[3:] for arg in sys.argv[1:] if arg.startswith("sm_")), "90"))
    for case in ALL if "--all" in sys.argv else FEW:
        for function, args, kwargs in launches(*case):
            compiled = compile_launch(function, args, kwargs, capability)
            ptx = compiled.asm["ptx"]
            figures = {
                "kernel": function.__name__.strip("_"),
                "case": case,
                "sm": capability,
                "shared_bytes": compiled.metadata.shared,
                **resources(compiled.asm["cubin"]),
                "copies_of_16_bytes": len(re.findall(r"cp\.async\S* \[[^\]]*\], \[[^\]]*\], (?:0x10|16)", ptx)),
            }
            print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    main()
