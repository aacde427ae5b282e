"""Kernels that pass once over rows: RMS norm, rotary embedding in place, scattering rows into the KV pool."""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir

from kvtop.kernels.cpu.ir_tools import FLOAT, LANES, VECTOR, Cell, Int, external, fma, loop, spread, task_kernel, total

Field = Callable[[int], Int]


def build(module: ir.Module) -> list[str]:
    kernels = {"rms_norm": _rms_norm, "rotary": _rotary, "scatter": _scatter}
    for name, body in kernels.items():
        task_kernel(module, name, body)
    return list(kernels)


def _rms_norm(b: ir.IRBuilder, field: Field, task: Int) -> None:
    """Fields: x, ldx, rows, rows of a task, width, weight, eps (fp32 bits), 1 / width, out (rows * width)."""
    x, ldx, rows, per_task, width = field(0).floats(), field(1), field(2), field(3), field(4)
    weight, eps, share, out = field(5).floats(), field(6).real(), field(7).real(), field(8).floats()
    root = external(b.module, "llvm.sqrt.f32", FLOAT, [FLOAT])
    first = task * per_task
    with loop(b, first, (first + per_task).min(rows)) as r:
        source, target = x + r * ldx, out + r * width
        squares = Cell(b, VECTOR)
        with loop(b, 0, width, LANES) as i:
            v = (source + i).vector()
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
