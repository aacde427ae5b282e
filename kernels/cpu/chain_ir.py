"""The function ``chain``: runs kernels one after the other, each by as many threads as its entry says.

From Python every call of a kernel costs some 10 us, and a step of one token makes hundreds.
"""

from __future__ import annotations

from llvmlite import ir

from kvtop.kernels.cpu.ir_tools import BYTES, I32, I64, LONGS, VOID, Int, Ptr, external, loop

NAME = "chain"
ENTRY_FIELDS = 3


def build(module: ir.Module) -> None:
    """``chain(entries, count)``: an entry is a kernel's address, its job's address, and a number of threads."""
    kernel = ir.FunctionType(VOID, [BYTES])
    fn = ir.Function(module, ir.FunctionType(VOID, [LONGS, I64]), NAME)
    b = ir.IRBuilder(fn.append_basic_block("entry"))
    parallel = external(module, "GOMP_parallel", VOID, [kernel.as_pointer(), BYTES, I32, I32])
    entries, count = Ptr(b, fn.args[0]), Int(b, fn.args[1])
    with loop(b, 0, count) as i:
        address, job, threads = ((entries + (i * ENTRY_FIELDS + k)).int() for k in range(ENTRY_FIELDS))
        code, data = b.inttoptr(address.value, kernel.as_pointer()), b.inttoptr(job.value, BYTES)
        job.longs().store(ir.Constant(I64, 0))  # no task has been taken
        with b.if_else(threads.compare(">", 1)) as (many, one):
            with many:
                b.call(parallel, [code, data, b.trunc(threads.value, I32), ir.Constant(I32, 0)])
            with one:
                b.call(code, [data])
    b.ret_void()
