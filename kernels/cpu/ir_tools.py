"""Words for writing LLVM IR that reads like the loop it makes: integers, pointers, vectors of fp32, loops.

Values write their instructions where the builder stands. Vectors are as wide as this CPU's registers (``LANES``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir

FEATURES = llvm.get_host_cpu_features()
LANES = 16 if FEATURES.get("avx512f") else 8 if FEATURES.get("avx2") else 4
REGISTERS = 16 if LANES == 8 else 32

VOID, I1, I8, I32, I64 = ir.VoidType(), ir.IntType(1), ir.IntType(8), ir.IntType(32), ir.IntType(64)
FLOAT = ir.FloatType()
VECTOR = ir.VectorType(FLOAT, LANES)
INTS = ir.VectorType(I32, LANES)
BYTES, FLOATS, LONGS = I8.as_pointer(), FLOAT.as_pointer(), I64.as_pointer()
CACHE_LINE_FLOATS = 16


def splat(value: float, kind: ir.VectorType = VECTOR) -> ir.Constant:
    """A vector of one constant."""
    return ir.Constant(kind, [value] * LANES)


class Int:
    """A 64-bit integer, never negative where it is divided."""

    def __init__(self, b: ir.IRBuilder, value: Any) -> None:
        self.b, self.value = b, value

    def _binary(self, name: str, other: Int | int) -> Int:
        right = other.value if isinstance(other, Int) else ir.Constant(I64, other)
        return Int(self.b, getattr(self.b, name)(self.value, right))

    def __add__(self, other: Int | int) -> Int:
        return self._binary("add", other)

    def __sub__(self, other: Int | int) -> Int:
        return self._binary("sub", other)

    def __mul__(self, other: Int | int) -> Int:
        return self._binary("mul", other)

    def __floordiv__(self, other: Int | int) -> Int:
        return self._binary("sdiv", other)

    def __mod__(self, other: Int | int) -> Int:
        return self._binary("srem", other)

    def compare(self, how: str, other: Int | int) -> Any:
        """A truth value: ``how`` is one of < <= == != >= >."""
        right = other.value if isinstance(other, Int) else ir.Constant(I64, other)
        return self.b.icmp_signed(how, self.value, right)

    def min(self, other: Int | int) -> Int:
        other = self.b_int(other)
        return Int(self.b, self.b.select(self.compare("<", other), self.value, other.value))

    def max(self, other: Int | int) -> Int:
        other = self.b_int(other)
        return Int(self.b, self.b.select(self.compare(">", other), self.value, other.value))

    def b_int(self, other: Int | int) -> Int:
        return other if isinstance(other, Int) else Int(self.b, ir.Constant(I64, other))

    def floats(self) -> Ptr:
        """This integer as an address of fp32."""
        return Ptr(self.b, self.b.inttoptr(self.value, FLOATS))

    def longs(self) -> Ptr:
        """This integer as an address of 64-bit integers."""
        return Ptr(self.b, self.b.inttoptr(self.value, LONGS))

    def real(self) -> Any:
        """The fp32 whose bits are the low half of this integer."""
        return self.b.bitcast(self.b.trunc(self.value, I32), FLOAT)


class Ptr:
    """Address of an array; sums count elements."""

    def __init__(self, b: ir.IRBuilder, value: Any) -> None:
        self.b, self.value = b, value

    def __add__(self, offset: Int | int) -> Ptr:
        index = offset.value if isinstance(offset, Int) else ir.Constant(I64, offset)
        return Ptr(self.b, self.b.gep(self.value, [index]))

    def load(self) -> Any:
        return self.b.load(self.value)

    def int(self) -> Int:
        return Int(self.b, self.b.load(self.value))

    def store(self, value: Any) -> None:
        self.b.store(value.value if isinstance(value, Int) else value, self.value)

    def vector(self) -> Any:
        """LANES consecutive fp32, at any alignment."""
        return self.b.load(self.b.bitcast(self.value, VECTOR.as_pointer()), align=4)

    def store_vector(self, value: Any) -> None:
        self.b.store(value, self.b.bitcast(self.value, VECTOR.as_pointer()), align=4)


class Cell(Ptr):
    """A variable: lives in a register once LLVM has optimised. Made in the entry block, so that loops reuse it."""

    def __init__(self, b: ir.IRBuilder, kind: ir.Type, value: Any = None) -> None:
        with b.goto_entry_block():
            slot = b.alloca(kind)
        super().__init__(b, slot)
        self.store(ir.Constant(kind, None) if value is None else value)


def number(b: ir.IRBuilder, value: int) -> Int:
    return Int(b, ir.Constant(I64, value))


@contextmanager
def loop(b: ir.IRBuilder, start: Int | int, stop: Int | int, step: Int | int = 1) -> Iterator[Int]:
    """``for i in range(start, stop, step)``."""
    first, end, by = (x if isinstance(x, Int) else number(b, x) for x in (start, stop, step))
    before = b.block
    head, body, after = (b.append_basic_block(name) for name in ("head", "body", "after"))
    b.branch(head)
    b.position_at_end(head)
    phi = b.phi(I64)
    phi.add_incoming(first.value, before)
    i = Int(b, phi)
    b.cbranch(i.compare("<", end), body, after)
    b.position_at_end(body)
    yield i
    phi.add_incoming((i + by).value, b.block)
    b.branch(head)
    b.position_at_end(after)


def external(module: ir.Module, name: str, result: ir.Type, arguments: Sequence[ir.Type]) -> ir.Function:
    """An LLVM intrinsic or a function of the process, declared once."""
    known = module.globals.get(name)
    return known if known is not None else ir.Function(module, ir.FunctionType(result, arguments), name)


def fma(b: ir.IRBuilder, x: Any, y: Any, z: Any) -> Any:
    """x * y + z, vectors, rounded once."""
    return b.call(external(b.module, f"llvm.fma.v{LANES}f32", VECTOR, [VECTOR] * 3), [x, y, z])


def total(b: ir.IRBuilder, vector: Any, start: Any) -> Any:
    """``start`` plus the sum of the lanes, in any order."""
    add = external(b.module, f"llvm.vector.reduce.fadd.v{LANES}f32", FLOAT, [FLOAT, VECTOR])
    return b.call(add, [start, vector], fastmath=("reassoc",))


def spread(b: ir.IRBuilder, value: Any) -> Any:
    """A vector whose lanes all are ``value``."""
    one = b.insert_element(ir.Constant(VECTOR, ir.Undefined), value, ir.Constant(I32, 0))
    return b.shuffle_vector(one, ir.Constant(VECTOR, ir.Undefined), ir.Constant(INTS, [0] * LANES))


def prefetch(b: ir.IRBuilder, where: Ptr, *, second: bool = False) -> None:
    """Ask for the cache line of an address, which may be any; no nearer than the second-level cache if so wanted."""
    fetch = external(b.module, "llvm.prefetch.p0", VOID, [BYTES, I32, I32, I32])
    b.call(fetch, [b.bitcast(where.value, BYTES), I32(0), I32(2 if second else 3), I32(1)])


def pause(b: ir.IRBuilder) -> None:
    """Leave the core to whoever shares it for a moment, while waiting for another thread's write."""
    if "sse2" in FEATURES:
        b.call(external(b.module, "llvm.x86.sse2.pause", VOID, []), [])


def exp(b: ir.IRBuilder, x: Any) -> Any:
    """e^x of a vector to about 1e-7 relative, 0 below -87; NaN stays NaN. For x <= 88.

    x = n ln 2 + r with |r| <= ln 2 / 2: a polynomial in r (Cephes' expf), and 2^n put into the exponent's bits.
    """
    tiny = b.fcmp_ordered("<", x, splat(-87.0))
    x = b.select(tiny, splat(-87.0), x)
    # Added to 1.5 * 2^23 a number is rounded to an integer, which then stands in the lowest bits.
    shifted = fma(b, x, splat(1.4426950408889634), splat(12582912.0))
    n = b.fsub(shifted, splat(12582912.0))
    r = fma(b, n, splat(-0.693359375), x)
    r = fma(b, n, splat(2.12194440e-4), r)
    p = splat(1.9875691500e-4)
    for c in (1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1):
        p = fma(b, p, r, splat(c))
    y = fma(b, p, b.fmul(r, r), b.fadd(r, splat(1.0)))
    bits = b.add(b.shl(b.bitcast(shifted, INTS), splat(23, INTS)), splat(127 << 23, INTS))
    return b.select(tiny, splat(0.0), b.fmul(y, b.bitcast(bits, VECTOR)))


def function(
    module: ir.Module, name: str, arguments: Sequence[ir.Type], body: Callable[..., None], *, inline: bool = False
) -> ir.Function:
    """An internal function; ``body(b, *arguments)`` writes it, with integers and pointers wrapped."""
    fn = ir.Function(module, ir.FunctionType(VOID, arguments), name)
    fn.linkage = "internal"
    if not inline:
        fn.attributes.add("noinline")
    b = ir.IRBuilder(fn.append_basic_block("entry"))
    body(b, *(_wrap(b, a) for a in fn.args))
    b.ret_void()
    return fn


def call(b: ir.IRBuilder, fn: ir.Function, *arguments: Any) -> None:
    b.call(fn, [a.value if isinstance(a, Int | Ptr) else a for a in arguments])


def task_kernel(module: ir.Module, name: str, body: Callable[[ir.IRBuilder, Callable[[int], Int], Int], None]) -> None:
    """``name(job)``, run by every thread: takes tasks 0, 1, .. until none is left; ``body(b, field, task)`` does one.

    ``job`` is an array of 64-bit fields: the counter of tasks taken, the number of tasks, then the kernel's own. A
    thread that is held up takes fewer tasks; what a task computes does not depend on who does it.
    """
    fn = ir.Function(module, ir.FunctionType(VOID, [BYTES]), name)
    b = ir.IRBuilder(fn.append_basic_block("entry"))
    job = Ptr(b, b.bitcast(fn.args[0], LONGS))
    num_tasks = (job + 1).int()
    steal, work, done = (fn.append_basic_block(x) for x in ("steal", "work", "done"))
    b.branch(steal)
    b.position_at_end(steal)
    task = Int(b, b.atomic_rmw("add", job.value, ir.Constant(I64, 1), "monotonic"))
    b.cbranch(task.compare("<", num_tasks), work, done)
    b.position_at_end(work)
    body(b, lambda i: (job + (i + 2)).int(), task)
    b.branch(steal)
    b.position_at_end(done)
    b.ret_void()


def _wrap(b: ir.IRBuilder, value: Any) -> Any:
    if value.type == I64:
        return Int(b, value)
    return Ptr(b, value) if isinstance(value.type, ir.PointerType) else value
