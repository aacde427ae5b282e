"""The kernel ``linear``: x @ w.T + bias for few or many rows of x, every weight read from memory once for up to 48.

Weights are taken as they lie, (out, in): 12 rows of them at a time stay in the nearest cache while all rows of x pass,
and the next 12 are prefetched meanwhile. So the work costs what the larger of reading and multiplying costs, not both.
"""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir

from kvtop.kernels.cpu.dots_ir import tile
from kvtop.kernels.cpu.ir_tools import FLOATS, I64, LANES, Cell, Int, Ptr, call, function, loop, number
from kvtop.kernels.cpu.segments_ir import segments_kernel

# Columns of a tile for each number of rows: 12 sums, and a divisor of GROUP.
TILES = {1: 12, 2: 6, 3: 4, 4: 3}
GROUP = 12  # outputs that are computed together


def build(module: ir.Module) -> list[str]:
    """Fields: those of ``segments_kernel``, in groups of GROUP outputs."""
    group = function(module, "linear_group", [FLOATS, I64, I64, I64, FLOATS, FLOATS, I64, FLOATS, I64], _group(module))
    segments_kernel(module, "linear", GROUP, lambda b, *arguments: call(b, group, *arguments))
    return ["linear"]


def _group(module: ir.Module) -> Callable[..., None]:
    """All rows of x with up to GROUP rows of weights."""
    full = {m: tile(module, m, n, biased=True) for m, n in TILES.items()}
    thin = {m: tile(module, m, 1, biased=True) for m in TILES}

    def body(
        b: ir.IRBuilder, x: Ptr, ldx: Int, rows: Int, depth: Int, w: Ptr, bias: Ptr, columns: Int, out: Ptr, ldo: Int
    ) -> None:
        # The next group of weights is prefetched in equal parts by the tiles of this one; by few tiles, only its start.
        num_tiles = (rows + 3) // 4 * 4
        stride = (number(b, GROUP * LANES) // num_tiles).min(16)
        ahead = Cell(b, FLOATS, (w + depth * GROUP).value)

        def strip(count: int, m: Int) -> None:
            def one(fn: ir.Function, n: Int, by: Int) -> None:
                where = Ptr(b, ahead.load())
                args = (x + m * ldx, ldx, w + n * depth, depth, depth, out + (m * ldo + n), ldo, bias + n, where, by)
                call(b, fn, *args)
                ahead.store((where + by * (depth // LANES)).value)

            with b.if_else(columns.compare("==", GROUP)) as (whole, part):
                with whole, loop(b, 0, GROUP, TILES[count]) as n:
                    one(full[count], n, stride)
                with part, loop(b, 0, columns) as n:
                    one(thin[count], n, number(b, 0))

        by_four = rows - rows % 4
        with loop(b, 0, by_four, 4) as m:
            strip(4, m)
        for count in (1, 2, 3):
            with b.if_then((rows % 4).compare("==", count)):
                strip(count, by_four)

    return body
