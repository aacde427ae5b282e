"""Kernels for the CPU this process runs on, compiled by LLVM when they are first asked for: no compiler is needed.

A kernel is a function of one argument, an array of 64-bit fields; torch's own OpenMP threads run it, so that there is
one pool of threads in the process. Nothing here is loaded until ``missing`` or ``run`` is called.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import os
import struct
import threading
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from kvtop.kernels.cpu.jobs import Jobs


@functools.cache
def missing() -> str | None:
    """Why there are no kernels on this machine, in a few words; None where there are."""
    if importlib.util.find_spec("llvmlite") is None:
        return "the package llvmlite is not installed"
    if not hasattr(ctypes.CDLL(None), "GOMP_parallel"):
        return "torch does not run on GNU OpenMP here"
    try:
        from kvtop.kernels.cpu import ir_tools
    except (ImportError, OSError) as error:  # installed, and its library does not load
        return f"llvmlite cannot be loaded: {' '.join(str(error).split())}"
    if not any(ir_tools.FEATURES.get(name) for name in ("avx2", "avx512f", "neon")):
        return "the CPU has neither AVX2 nor NEON"
    return None


@functools.cache
def unusable() -> str | None:
    """As ``missing``, but compiles them to be sure (a second, unless ``prepare`` was called before)."""
    if reason := missing():
        return reason
    try:
        _library()
    except Exception as error:  # LLVM's own, of no common kind
        return f"they do not compile: {' '.join(str(error).split())}"
    return None


def lanes() -> int:
    """fp32 numbers in a vector register; inner sizes must be multiples of it."""
    from kvtop.kernels.cpu import ir_tools

    return ir_tools.LANES


def run(kernel: str, num_tasks: int, fields: list[int], threads: int | None = None) -> None:
    """Run a kernel's tasks on at most ``threads`` of torch's threads; addresses in ``fields`` stay the caller's.

    Waits until all are done. Two threads of Python may do so at once.
    """
    library = _library()
    job = (ctypes.c_int64 * (len(fields) + 2))(0, num_tasks, *fields)
    threads = min(torch.get_num_threads() if threads is None else threads, num_tasks)
    if threads > 1:
        library.parallel(library.address[kernel], ctypes.addressof(job), threads, 0)
    else:
        library.serial[kernel](ctypes.addressof(job))


def run_all(jobs: Jobs, first: int = 0, count: int | None = None) -> None:
    """Run ``jobs`` one after the other without coming back here between two: see ``kvtop.kernels.cpu.jobs``.

    All of them, or ``count`` from the one numbered ``first`` on.
    """
    entries = jobs.entries[first:] if count is None else jobs.entries[first : first + count]
    threads = min(torch.get_num_threads(), int(jobs.num_tasks[first : first + len(entries)].max(initial=1)))
    team = (ctypes.c_int64 * 3)(entries.ctypes.data, len(entries), 0)
    _library().chain(ctypes.addressof(team), threads)


def address(kernel: str) -> int:
    """Where the machine code of ``kernel`` lies."""
    return _library().address[kernel]


def bits(value: float) -> int:
    """An fp32 as a field."""
    return struct.unpack("<I", struct.pack("<f", value))[0]


def is_native(*tensors: Tensor) -> bool:
    """Whether a kernel can read these: fp32 in this process's memory."""
    return all(t.dtype == torch.float32 and t.device.type == "cpu" for t in tensors)


class _Library:
    """All kernels as machine code (a second of compiling)."""

    def __init__(self) -> None:
        import llvmlite.binding as llvm
        from llvmlite import ir

        from kvtop.kernels.cpu import attention_ir, chain_ir, packed_ir, rows_ir

        process: Any = ctypes.CDLL(None)
        for name in ("omp_get_thread_num", "omp_get_num_threads", "GOMP_parallel", "sched_yield"):
            llvm.add_symbol(name, ctypes.cast(getattr(process, name), ctypes.c_void_p).value)
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        module = ir.Module("kvtop")
        names = [name for part in (packed_ir, attention_ir, rows_ir) for name in part.build(module)]
        machine = llvm.Target.from_default_triple().create_target_machine(
            cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten(), opt=2, jit=True
        )
        chain_ir.build(module)
        parsed = llvm.parse_assembly(str(module))
        parsed.verify()
        # The micro-kernels are unrolled by hand to fill the registers; unrolled once more they would spill.
        options = llvm.create_pipeline_tuning_options(speed_level=2)
        options.loop_unrolling = False
        builder = llvm.create_pass_builder(machine, options)
        builder.getModulePassManager().run(parsed, builder)
        self.engine = llvm.create_mcjit_compiler(parsed, machine)  # owns the machine code
        self.engine.finalize_object()
        self.address = {name: self.engine.get_function_address(name) for name in names}
        self.serial = {n: ctypes.CFUNCTYPE(None, ctypes.c_void_p)(a) for n, a in self.address.items()}
        chain = self.engine.get_function_address(chain_ir.NAME)
        self.chain = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int)(chain)
        self.parallel = process.GOMP_parallel
        self.parallel.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
        self.parallel.restype = None


def prepare() -> None:
    """Compile in the background, where there are kernels: the first ``run`` waits for it."""
    if missing() is None:
        threading.Thread(target=_library, name="kvtop-compile", daemon=True).start()


_once = threading.Lock()


def _renew_lock() -> None:
    global _once
    _once = threading.Lock()


# A process forked while another thread compiles would wait for that thread, which it does not have.
os.register_at_fork(after_in_child=_renew_lock)


def _library() -> _Library:
    with _once:
        return _compiled()


@functools.cache
def _compiled() -> _Library:
    return _Library()
