"""What ``linear`` and ``packed`` have in common: weights of one input as segments, their outputs cut into tasks."""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir

from kvtop.kernels.cpu.ir_tools import I64, Cell, Int, Ptr, loop, number, task_kernel

SEGMENT_FIELDS = 5

Group = Callable[[ir.IRBuilder, Ptr, Int, Int, Int, Ptr, Ptr, Int, Ptr, Int], None]
"""Writes one group: builder, x, ldx, rows, depth, weights, bias, outputs (of the group), out, ldo."""


def segments_kernel(module: ir.Module, name: str, size: int, group: Group) -> None:
    """Fields: x, ldx, rows, rows of a strip, depth, groups of ``size`` outputs, groups of a task, segments, how many.

    A segment is one weight matrix: w, bias, outputs, out, ldo. Groups are counted over all segments, the last one of a
    segment may be smaller. A task is some groups for one strip of rows.
    """

    def body(b: ir.IRBuilder, field: Callable[[int], Int], task: Int) -> None:
        x, ldx, rows, strip, depth = field(0).floats(), field(1), field(2), field(3), field(4)
        groups, per_task, segments, num_segments = field(5), field(6), field(7).longs(), field(8)
        tasks_of_strip = (groups + per_task - 1) // per_task
        row = task // tasks_of_strip * strip
        first = task % tasks_of_strip * per_task
        last = (first + per_task).min(groups)
        left, num_rows = x + row * ldx, (rows - row).min(strip)
        before = Cell(b, I64, number(b, 0))  # groups of earlier segments
        with loop(b, 0, num_segments) as s:
            w, bias, outputs, out, ldo = ((segments + (s * SEGMENT_FIELDS + i)).int() for i in range(SEGMENT_FIELDS))
            here = (outputs + (size - 1)) // size
            begin, end = (first - before.int()).max(0), (last - before.int()).min(here)
            with loop(b, begin, end) as i:
                column = i * size
                weights, shifts = w.floats() + column * depth, bias.floats() + column
                target = out.floats() + (row * ldo + column)
                group(b, left, ldx, num_rows, depth, weights, shifts, (outputs - column).min(size), target, ldo)
            before.store(before.int() + here)

    task_kernel(module, name, body)
