"""Dot products of a few query rows with the keys of a block.

Both are row-major along the summed dimension, as a block of keys (slot, head_dim) is: nothing is rearranged. A tile of
MR x NR dot products keeps MR * NR sums in vector registers; 12 of them are what 16 registers hold beside the operands,
and what hides the latency of a multiply-add.
"""

from __future__ import annotations

from llvmlite import ir

from kvtop.kernels.cpu.ir_tools import (
    CACHE_LINE_FLOATS,
    FLOAT,
    FLOATS,
    I64,
    LANES,
    VECTOR,
    Cell,
    Int,
    Ptr,
    call,
    fma,
    function,
    loop,
    prefetch,
    total,
)


def _tile(module: ir.Module, rows: int, columns: int) -> ir.Function:
    """``f(x, ldx, w, ldw, depth, out, ldo)``: out[m][n] = x[m] . w[n]. ``depth`` is a multiple of LANES."""

    def body(b: ir.IRBuilder, x: Ptr, ldx: Int, w: Ptr, ldw: Int, depth: Int, out: Ptr, ldo: Int) -> None:
        sums = [[Cell(b, VECTOR) for _ in range(columns)] for _ in range(rows)]
        left, right = [x + ldx * m for m in range(rows)], [w + ldw * n for n in range(columns)]
        with loop(b, 0, depth, LANES) as k:
            # Of the shorter side all vectors are held, of the longer one a single vector at a time.
            held, passing = (left, right) if rows <= columns else (right, left)
            vectors = [(p + k).vector() for p in held]
            for j, p in enumerate(passing):
                vector = (p + k).vector()
                for i, other in enumerate(vectors):
                    cell = sums[i][j] if rows <= columns else sums[j][i]
                    cell.store(fma(b, other, vector, cell.load()))
        for n in range(columns):
            for m in range(rows):
                (out + (ldo * m + n)).store(total(b, sums[m][n].load(), ir.Constant(FLOAT, 0.0)))

    fn = function(module, f"dots_{rows}x{columns}", [FLOATS, I64, FLOATS, I64, I64, FLOATS, I64], body)
    for i in (0, 2, 5):
        fn.args[i].add_attribute("noalias")
    return fn


def product(module: ir.Module, name: str, tiles: dict[int, int]) -> ir.Function:
    """``f(x, ldx, rows, w, ldw, columns, depth, out, ldo, ahead)``: all dot products of two small matrices.

    What lies at ``ahead`` as ``w`` does is fetched meanwhile, a tile's worth before every tile of the first rows: all
    at once the fetches would wait for each other.

    ``tiles`` are the columns of a tile for 1, 2, .. rows, the last entry for every full group of rows.
    """
    most = max(tiles)
    full = {m: _tile(module, m, n) for m, n in tiles.items()}
    thin = {m: _tile(module, m, 1) for m in tiles}

    def body(
        b: ir.IRBuilder,
        x: Ptr,
        ldx: Int,
        rows: Int,
        w: Ptr,
        ldw: Int,
        columns: Int,
        depth: Int,
        out: Ptr,
        ldo: Int,
        ahead: Ptr,
    ) -> None:
        def strip(count: int, m: Int) -> None:
            def one(fn: ir.Function, n: Int, width: int) -> None:
                with b.if_then(m.compare("==", 0)):
                    _prefetch(b, ahead + n * ldw, depth * width)
                call(b, fn, x + m * ldx, ldx, w + n * ldw, ldw, depth, out + (m * ldo + n), ldo)

            whole = columns - columns % tiles[count]
            with loop(b, 0, whole, tiles[count]) as n:
                one(full[count], n, tiles[count])
            with loop(b, whole, columns) as n:
                one(thin[count], n, 1)

        whole_rows = rows - rows % most
        with loop(b, 0, whole_rows, most) as m:
            strip(most, m)
        for count in range(1, most):
            with b.if_then((rows % most).compare("==", count)):
                strip(count, whole_rows)

    return function(module, name, [FLOATS, I64, I64, FLOATS, I64, I64, I64, FLOATS, I64, FLOATS], body)


def _prefetch(b: ir.IRBuilder, first: Ptr, num_floats: Int) -> None:
    """Ask for every cache line of ``num_floats`` floats."""
    with loop(b, 0, num_floats, CACHE_LINE_FLOATS) as i:
        prefetch(b, first + i)
