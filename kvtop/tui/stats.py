"""Columns of charts: what happened in each of the last seconds, or of other stretches of equal length."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from itertools import pairwise
from operator import mul

from kvtop.state.model import History
from kvtop.state.samples import Points

SLOT_NS = 1_000_000_000  # a column of a chart


def _edges(t_ns: array[int], now_ns: int, num_slots: int, slot_ns: int) -> list[int]:
    """Of the last ``num_slots`` stretches of ``slot_ns``, the place in ``t_ns`` where each begins; then the end.

    They are aligned to the clock, so that a bar stays what it is while time passes; the newest holds ``now_ns``.
    """
    first, edges = now_ns // slot_ns - num_slots + 1, [0]
    for slot in range(first, first + num_slots + 1):
        edges.append(bisect_left(t_ns, slot * slot_ns, edges[-1]))
    return edges[1:]


def means(points: Points, now_ns: int, num_slots: int, slot_ns: int = SLOT_NS) -> list[float]:
    """The mean value in each of the last ``num_slots`` seconds, oldest first; 0 where there is none."""
    found: list[float] = []
    for first, last in pairwise(_edges(points.t_ns, now_ns, num_slots, slot_ns)):
        counts = points.counts[first:last]
        total = sum(counts)
        found.append(sum(map(mul, points.values[first:last], counts)) / total if total else 0.0)
    return found


def rates(history: History, column: array[int], now_ns: int, num_slots: int, slot_ns: int = SLOT_NS) -> list[float]:
    """``column`` summed in each of the last ``num_slots`` seconds, oldest first."""
    edges = _edges(history.t_ns, now_ns, num_slots, slot_ns)
    return [float(sum(column[first:last])) for first, last in pairwise(edges)]


def levels(history: History, column: array[int], now_ns: int, num_slots: int, slot_ns: int = SLOT_NS) -> list[float]:
    """The last value of ``column`` in each of the last ``num_slots`` seconds, carried on where no step fell."""
    ends = _edges(history.t_ns, now_ns, num_slots, slot_ns)[1:]
    return [float(column[end - 1]) if end else 0.0 for end in ends]
