"""The kernel ``packed``: x @ w.T + bias where w was rearranged once, for few or many rows of x.

Outputs are taken a panel at a time, three vectors of them; a panel holds, for every input in turn, the weights of its
outputs side by side. So a step of depth is three loads and, for each row, one number of x that is multiplied with all
three: no sum has to be added up across lanes, weights are read strictly in order, and the sums of a tile fill the
registers. How an output is summed depends on its depth alone, not on the rows it is computed with.
"""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir

from kvtop.kernels.cpu.ir_tools import (
    FLOAT,
    FLOATS,
    I64,
    LANES,
    REGISTERS,
    VECTOR,
    Cell,
    Int,
    Ptr,
    call,
    fma,
    function,
    loop,
    number,
    prefetch,
    spread,
    task_kernel,
)

SEGMENT_FIELDS = 5
VECTORS = 3
PANEL = VECTORS * LANES  # outputs that are computed together
TILE_ROWS = 8 if REGISTERS >= 32 else 4  # rows: their sums, a panel's vectors and one number of x are all in registers
PART = (
    128  # of depth that is summed by itself: one long sum of fp32 loses half a digit more; and what is near meanwhile
)
LEAD = 2048  # floats that a single tile reads ahead of its products


def build(module: ir.Module) -> list[str]:
    """Fields: x, ldx, rows, rows of a strip, depth, panels, panels of a task, segments, how many.

    A segment is one weight: its panels, biases padded as they are, outputs, out, ldo. Panels are counted over all
    segments. A task is some panels for one strip of rows.
    """
    panel = function(module, "packed_panel", [FLOATS, I64, I64, I64, FLOATS, FLOATS, FLOATS, I64], _panel(module))

    def body(b: ir.IRBuilder, field: Callable[[int], Int], task: Int) -> None:
        x, ldx, rows, strip, depth = field(0).floats(), field(1), field(2), field(3), field(4)
        panels, per_task, segments, num_segments = field(5), field(6), field(7).longs(), field(8)
        tasks_of_strip = (panels + per_task - 1) // per_task
        row = task // tasks_of_strip * strip
        first = task % tasks_of_strip * per_task
        last = (first + per_task).min(panels)
        left, num_rows = x + row * ldx, (rows - row).min(strip)
        spare = Ptr(b, _spare(b))
        before = Cell(b, I64, number(b, 0))  # panels of earlier segments
        with loop(b, 0, num_segments) as s:
            w, bias, outputs, out, ldo = ((segments + (s * SEGMENT_FIELDS + i)).int() for i in range(SEGMENT_FIELDS))
            here = (outputs + (PANEL - 1)) // PANEL
            begin, end = (first - before.int()).max(0), (last - before.int()).min(here)
            with loop(b, begin, end) as i:
                column = i * PANEL
                weights, shifts = w.floats() + column * depth, bias.floats() + column
                target = out.floats() + (row * ldo + column)
                with b.if_else((outputs - column).compare(">=", PANEL)) as (whole, part):
                    with whole:
                        call(b, panel, left, ldx, num_rows, depth, weights, shifts, target, ldo)
                    with part, loop(b, 0, num_rows, TILE_ROWS) as m:  # a narrow panel ends elsewhere, then is copied
                        count = (num_rows - m).min(TILE_ROWS)
                        call(b, panel, left + m * ldx, ldx, count, depth, weights, shifts, spare, number(b, PANEL))
                        with loop(b, 0, count) as r, loop(b, 0, outputs - column) as n:
                            (target + ((m + r) * ldo + n)).store((spare + (r * PANEL + n)).load())
            before.store(before.int() + here)

    task_kernel(module, "packed", body)
    return ["packed"]


def _spare(b: ir.IRBuilder):
    with b.goto_entry_block():
        slot = b.alloca(ir.ArrayType(FLOAT, TILE_ROWS * PANEL))
        return b.bitcast(slot, FLOATS)


def _panel(module: ir.Module) -> Callable[..., None]:
    """All rows of x with one panel, part by part of its depth: a part stays in the first-level cache for all tiles.

    Meanwhile they fetch the next one in equal shares, into the second level: the first has no room for it, and more
    reads can be under way. A single tile fetches what it is about to read itself.
    """
    kinds = {lines: {n: _tile(module, n, lines) for n in range(1, TILE_ROWS + 1)} for lines in (1, VECTORS)}

    def body(b: ir.IRBuilder, x: Ptr, ldx: Int, rows: Int, depth: Int, w: Ptr, bias: Ptr, out: Ptr, ldo: Int) -> None:
        num_tiles = (rows + (TILE_ROWS - 1)) // TILE_ROWS
        lead = Int(b, b.select(num_tiles.compare(">", 1), ir.Constant(I64, PART * PANEL), ir.Constant(I64, LEAD)))

        def passes(lines: int) -> None:
            by = (number(b, PANEL // lines) + num_tiles - 1) // num_tiles
            with loop(b, 0, depth, PART) as start:
                here = w + start * PANEL
                size = (depth - start).min(PART)
                ahead = Cell(b, FLOATS, (here + lead).value)

                def run(count: int, m: Int) -> None:
                    left, at = x + (m * ldx + start), Ptr(b, ahead.load())
                    call(b, kinds[lines][count], left, ldx, here, size, out + m * ldo, ldo, bias, start, at, by)
                    ahead.store((at + by * size * lines).value)

                whole = rows - rows % TILE_ROWS
                with loop(b, 0, whole, TILE_ROWS) as m:
                    run(TILE_ROWS, m)
                for count in range(1, TILE_ROWS):
                    with b.if_then((rows % TILE_ROWS).compare("==", count)):
                        run(count, whole)

        with b.if_else(num_tiles.compare(">=", VECTORS)) as (many, few):
            with many:
                passes(1)
            with few:
                passes(VECTORS)

    return body


def _tile(module: ir.Module, rows: int, lines: int) -> ir.Function:
    """``f(x, ldx, w, depth, out, ldo, bias, start, ahead, by)``: ``rows`` rows of x with a part of one panel.

    At every step of depth ``lines`` lines from ``ahead`` on are prefetched, ``by`` floats apart.
    """

    def body(
        b: ir.IRBuilder,
        x: Ptr,
        ldx: Int,
        w: Ptr,
        depth: Int,
        out: Ptr,
        ldo: Int,
        bias: Ptr,
        start: Int,
        ahead: Ptr,
        by: Int,
    ) -> None:
        sums = [[Cell(b, VECTOR) for _ in range(VECTORS)] for _ in range(rows)]
        left = [x + ldx * m for m in range(rows)]
        fetched = Cell(b, I64, number(b, 0))
        with loop(b, 0, depth) as k:
            line = w + k * PANEL
            weights = [(line + v * LANES).vector() for v in range(VECTORS)]
            for m, p in enumerate(left):
                value = spread(b, (p + k).load())
                for v, weight in enumerate(weights):
                    sums[m][v].store(fma(b, value, weight, sums[m][v].load()))
            for v in range(lines):
                prefetch(b, ahead + (fetched.int() + by * v), second=True)
            fetched.store(fetched.int() + by * lines)
        for m in range(rows):
            target = out + ldo * m
            before = Ptr(b, b.select(start.compare("==", 0), bias.value, target.value))
            for v in range(VECTORS):
                value = b.fadd((before + v * LANES).vector(), sums[m][v].load())
                (target + v * LANES).store_vector(value)

    kinds = [FLOATS, I64, FLOATS, I64, FLOATS, I64, FLOATS, I64, FLOATS, I64]
    fn = function(module, f"packed_{rows}x{lines}", kinds, body)
    for i in (0, 2):
        fn.args[i].add_attribute("noalias")
    return fn
