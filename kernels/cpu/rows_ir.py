"""Kernels that pass once over rows: RMS norm, rotary embedding, scattering rows into the KV pool, SiLU gates."""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir

from kvtop.kernels.cpu.ir_tools import (
    FLOAT,
    LANES,
    VECTOR,
    Cell,
    Int,
    exp,
    external,
    fma,
    loop,
    splat,
    spread,
    task_kernel,
    total,
)

Field = Callable[[int], Int]


def build(module: ir.Module) -> list[str]:
    kernels = {"rms_norm": _rms_norm, "add_norm": _add_norm, "rotary": _rotary, "scatter": _scatter, "gate": _gate}
    for name, body in kernels.items():
        task_kernel(module, name, body)
    return list(kernels)


def _rms_norm(b: ir.IRBuilder, field: Field, task: Int) -> None:
    """Fields: x, ldx, rows, rows of a task, width, weight, eps (fp32 bits), 1 / width, out (rows * width)."""
    _norm(b, field, task, added=False)


def _add_norm(b: ir.IRBuilder, field: Field, task: Int) -> None:
    """As ``rms_norm``, of x + y, which is left in x. One field more: y (rows * width)."""
    _norm(b, field, task, added=True)


def _norm(b: ir.IRBuilder, field: Field, task: Int, *, added: bool) -> None:
    x, ldx, rows, per_task, width = field(0).floats(), field(1), field(2), field(3), field(4)
    weight, eps, share, out = field(5).floats(), field(6).real(), field(7).real(), field(8).floats()
    root = external(b.module, "llvm.sqrt.f32", FLOAT, [FLOAT])
    first = task * per_task
    with loop(b, first, (first + per_task).min(rows)) as r:
        source, target = x + r * ldx, out + r * width
        squares = Cell(b, VECTOR)
        with loop(b, 0, width, LANES) as i:
            v = (source + i).vector()
            if added:
                v = b.fadd(v, (field(9).floats() + (r * width + i)).vector())
                (source + i).store_vector(v)
            squares.store(fma(b, v, v, squares.load()))
        mean = b.fmul(total(b, squares.load(), ir.Constant(FLOAT, 0.0)), share)
        scale = spread(b, b.fdiv(ir.Constant(FLOAT, 1.0), b.call(root, [b.fadd(mean, eps)])))
        with loop(b, 0, width, LANES) as i:
            (target + i).store_vector(b.fmul((weight + i).vector(), b.fmul((source + i).vector(), scale)))


def _rotary(b: ir.IRBuilder, field: Field, task: Int) -> None:
    """Fields: x, row stride, rows, rows of a task, heads, head stride, half a head, cos, sin (rows * 2 halves).

    The halves (a, c) of a head become (a cos - c sin, c cos + a sin), in place.
    """
    x, ldx, rows, per_task = field(0).floats(), field(1), field(2), field(3)
    heads, by, half, cos, sin = field(4), field(5), field(6), field(7).floats(), field(8).floats()
    first = task * per_task
    with loop(b, first, (first + per_task).min(rows)) as r, loop(b, 0, heads) as h, loop(b, 0, half, LANES) as i:
        low = x + (r * ldx + h * by + i)
        high = low + half
        at = r * (half * 2) + i
        a, c = low.vector(), high.vector()
        low.store_vector(b.fsub(b.fmul(a, (cos + at).vector()), b.fmul(c, (sin + at).vector())))
        at = at + half
        high.store_vector(b.fadd(b.fmul(c, (cos + at).vector()), b.fmul(a, (sin + at).vector())))


def _scatter(b: ir.IRBuilder, field: Field, task: Int) -> None:
    """Fields: x, row stride, rows, rows of a task, heads, head stride, width, index (rows * heads), out."""
    x, ldx, rows, per_task = field(0).floats(), field(1), field(2), field(3)
    heads, by, width, index, out = field(4), field(5), field(6), field(7).longs(), field(8).floats()
    first = task * per_task
    with loop(b, first, (first + per_task).min(rows)) as r, loop(b, 0, heads) as h:
        target = out + (index + (r * heads + h)).int() * width
        with loop(b, 0, width, LANES) as i:
            (target + i).store_vector((x + (r * ldx + h * by + i)).vector())


def _gate(b: ir.IRBuilder, field: Field, task: Int) -> None:
    """Fields: x, ldx, rows, rows of a task, width, y (strided as x): x becomes x / (1 + e^-x) * y."""
    x, ldx, rows, per_task, width, y = *(field(i) for i in range(5)), field(5)
    x, y = x.floats(), y.floats()
    first = task * per_task
    with loop(b, first, (first + per_task).min(rows)) as r, loop(b, 0, width, LANES) as i:
        at = r * ldx + i
        v = (x + at).vector()
        minus = b.fsub(splat(0.0), v)
        minus = b.select(b.fcmp_ordered(">", minus, splat(88.0)), splat(88.0), minus)
        share = b.fdiv(v, b.fadd(splat(1.0), exp(b, minus)))
        (x + at).store_vector(b.fmul(share, (y + at).vector()))
