"""The kernel ``attention``: paged attention that reads blocks where they lie, for decodes and chunks alike.

A task is one KV head for some consecutive tokens of one sequence: their query heads that share it are up to about 12
rows that pass every key and value together. Scores of a task are kept whole, so the softmax is the plain two-pass one.
Only slots between the first and the last key some token of the task may see are read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir

from kvtop.kernels.cpu.dots_ir import product
from kvtop.kernels.cpu.ir_tools import (
    CACHE_LINE_FLOATS,
    FLOAT,
    FLOATS,
    I32,
    I64,
    LANES,
    VECTOR,
    Cell,
    Int,
    Ptr,
    call,
    exp,
    external,
    fma,
    function,
    loop,
    number,
    prefetch,
    splat,
    spread,
    task_kernel,
    total,
)

ITEM_FIELDS = 4
# Rows of queries and vectors of a value that are summed together: at most 12 sums in registers.
WEIGHTED = {1: 8, 2: 4, 3: 4}


def build(module: ir.Module) -> list[str]:
    """Fields: items, tables, q, its row and head strides, out, k_pool, v_pool, KV heads, query heads of each, head_dim,
    head_dim of v, block size, window (0: none), scaling and softcap (fp32 bits; 0: none), scratch, floats of a thread.

    An item is: first row, tokens, position of the first, and where in ``tables`` the block of position 0 would be.
    """
    scores = product(module, "attention_scores", {1: 8, 2: 4, 3: 4})
    softmax = function(module, "softmax_row", [FLOATS, I64, I64, I64, FLOAT, FLOATS], _softmax)
    weighted = function(module, "weighted_sum", [FLOATS, I64, I64, FLOATS, I64, I64, FLOATS, FLOATS], _weighted(module))

    def body(b: ir.IRBuilder, field: Callable[[int], Int], task: Int) -> None:
        items, tables = field(0).longs(), field(1).longs()
        q, q_row, q_head, out, k_pool, v_pool = (
            field(2).floats(),
            field(3),
            field(4),
            *(field(i).floats() for i in (5, 6, 7)),
        )
        kv_heads, shared, dim, v_dim, size, window = (field(i) for i in range(8, 14))
        scaling, softcap = field(14).real(), field(15).real()
        item, head = items + task // kv_heads * ITEM_FIELDS, task % kv_heads
        row, tokens, position, table = (x.int() for x in (item, item + 1, item + 2, item + 3))
        thread = Int(b, b.sext(b.call(external(module, "omp_get_thread_num", I32, []), []), I64))
        bounded = window.compare(">", 0)

        def first_key(at: Int) -> Int:
            return Int(b, b.select(bounded, (at - window + 1).max(0).value, ir.Constant(I64, 0)))

        low, high = first_key(position), position + tokens  # keys [low, high)
        width = (high - low + (LANES - 1)) // LANES * LANES
        rows = tokens * shared
        queries = field(16).floats() + thread * field(17)
        sums = queries + rows * dim
        inverse = sums + rows * v_dim
        weights = inverse + rows

        with loop(b, 0, tokens) as t, loop(b, 0, shared) as g:
            source, target = q + ((row + t) * q_row + (head * shared + g) * q_head), queries + (t * shared + g) * dim
            with loop(b, 0, dim, LANES) as i:
                (target + i).store_vector(b.fmul((source + i).vector(), spread(b, scaling)))

        def blocks(pool: Ptr, width_of: Int, use: Callable[[Ptr, Int, Int, Ptr], None]) -> None:
            """``use(slot, number, column, next block)`` for the slots in [low, high) of every block."""
            last = (high - 1) // size
            with loop(b, low // size, last + 1) as i:
                piece = (tables + (table + i)).int() * kv_heads + head
                following = (tables + (table + (i + 1).min(last))).int() * kv_heads + head
                begin, end = (low - i * size).max(0), (high - i * size).min(size)
                ahead = pool + following * size * width_of
                use(pool + (piece * size + begin) * width_of, end - begin, i * size + begin - low, ahead)

        blocks(k_pool, dim, lambda k, count, column, ahead: call(
            b, scores, queries, dim, rows, k, dim, count, dim, weights + column, width, ahead))  # fmt: skip
        with loop(b, 0, tokens) as t:
            begin, end = first_key(position + t) - low, position + t + 1 - low
            with loop(b, 0, shared) as g:
                r = t * shared + g
                call(b, softmax, weights + r * width, begin, end, width, softcap, inverse + r)
        with loop(b, 0, rows * v_dim, LANES) as i:
            (sums + i).store_vector(splat(0.0))
        blocks(v_pool, v_dim, lambda v, count, column, ahead: call(
            b, weighted, weights + column, width, rows, v, count, v_dim, sums, ahead))  # fmt: skip
        with loop(b, 0, tokens) as t, loop(b, 0, shared) as g:
            r = t * shared + g
            source, target = sums + r * v_dim, out + (((row + t) * kv_heads + head) * shared + g) * v_dim
            with loop(b, 0, v_dim, LANES) as i:
                (target + i).store_vector(b.fmul((source + i).vector(), spread(b, (inverse + r).load())))

    task_kernel(module, "attention", body)
    return ["attention"]


def _softmax(b: ir.IRBuilder, row: Ptr, begin: Int, end: Int, width: Int, softcap: Any, inverse: Ptr) -> None:
    """exp(row - max) over [begin, end) and 0 elsewhere, in place; 1 / sum goes to ``inverse``."""
    with b.if_then(b.fcmp_ordered(">", softcap, ir.Constant(FLOAT, 0.0))):
        cap = spread(b, softcap)
        with loop(b, 0, width, LANES) as i:
            (row + i).store_vector(b.fmul(cap, _tanh(b, b.fdiv((row + i).vector(), cap))))
    for first, last in ((number(b, 0), begin), (end, width)):
        with loop(b, first, last) as i:
            (row + i).store(ir.Constant(FLOAT, float("-inf")))
    most = Cell(b, VECTOR, splat(float("-inf")))
    with loop(b, 0, width, LANES) as i:
        v = (row + i).vector()
        most.store(b.select(b.fcmp_ordered(">", v, most.load()), v, most.load()))
    largest = external(b.module, f"llvm.vector.reduce.fmax.v{LANES}f32", FLOAT, [VECTOR])
    shift = spread(b, b.call(largest, [most.load()]))
    parts = Cell(b, VECTOR)
    with loop(b, 0, width, LANES) as i:
        e = exp(b, b.fsub((row + i).vector(), shift))
        (row + i).store_vector(e)
        parts.store(b.fadd(parts.load(), e))
    inverse.store(b.fdiv(ir.Constant(FLOAT, 1.0), total(b, parts.load(), ir.Constant(FLOAT, 0.0))))


def _tanh(b: ir.IRBuilder, x: Any) -> Any:
    """1 - 2 / (e^2x + 1), of |x| with the sign put back: e^2x cannot overflow as its argument is cut at 20."""
    size = b.call(external(b.module, f"llvm.fabs.v{LANES}f32", VECTOR, [VECTOR]), [x])
    size = b.select(b.fcmp_ordered(">", size, splat(10.0)), splat(10.0), size)
    grown = exp(b, b.fadd(size, size))
    value = b.fdiv(b.fsub(grown, splat(1.0)), b.fadd(grown, splat(1.0)))
    return b.call(external(b.module, f"llvm.copysign.v{LANES}f32", VECTOR, [VECTOR, VECTOR]), [value, x])


def _weighted(module: ir.Module) -> Callable[..., None]:
    """``f(weights, ldw, rows, v, slots, width, sums, ahead)``: sums[r] += weights[r][s] * v[s].

    With every line of ``v`` the same line of ``ahead`` is fetched, by the first rows.
    """

    def tile(rows: int, vectors: int) -> ir.Function:
        def body(b: ir.IRBuilder, weights: Ptr, ldw: Int, v: Ptr, slots: Int, width: Int, sums: Ptr, near: Ptr) -> None:
            where = [[sums + (width * r + n * LANES) for n in range(vectors)] for r in range(rows)]
            cells = [[Cell(b, VECTOR, p.vector()) for p in line] for line in where]
            with loop(b, 0, slots) as s:
                for n in range(0, vectors * LANES, CACHE_LINE_FLOATS):
                    prefetch(b, near + (s * width + n))
                values = [(v + (s * width + n * LANES)).vector() for n in range(vectors)]
                for r in range(rows):
                    share = spread(b, (weights + (ldw * r + s)).load())
                    for n in range(vectors):
                        cells[r][n].store(fma(b, share, values[n], cells[r][n].load()))
            for line, places in zip(cells, where, strict=True):
                for cell, place in zip(line, places, strict=True):
                    place.store_vector(cell.load())

        return function(module, f"weighted_{rows}x{vectors}", [FLOATS, I64, FLOATS, I64, I64, FLOATS, FLOATS], body)

    full = {r: tile(r, n) for r, n in WEIGHTED.items()}
    thin = {r: tile(r, 1) for r in WEIGHTED}

    def body(
        b: ir.IRBuilder, weights: Ptr, ldw: Int, rows: Int, v: Ptr, slots: Int, width: Int, sums: Ptr, ahead: Ptr
    ) -> None:
        def strip(count: int, r: Int) -> None:
            near = Ptr(b, b.select(r.compare("==", 0), ahead.value, v.value))

            def one(fn: ir.Function, i: Int) -> None:
                call(b, fn, weights + r * ldw, ldw, v + i, slots, width, sums + (r * width + i), near + i)

            whole = width - width % (WEIGHTED[count] * LANES)
            with loop(b, 0, whole, WEIGHTED[count] * LANES) as i:
                one(full[count], i)
            with loop(b, whole, width, LANES) as i:
                one(thin[count], i)

        by_three = rows - rows % 3
        with loop(b, 0, by_three, 3) as r:
            strip(3, r)
        for count in (1, 2):
            with b.if_then((rows % 3).compare("==", count)):
                strip(count, by_three)

    return body
