"""Columns of charts: what happened in each of the last seconds, or of other stretches of equal length."""

from __future__ import annotations

from collections import deque

from kvtop.state.model import History

SLOT_NS = 1_000_000_000  # a column of a chart


class _Slots:
    """Stretches of ``slot_ns``, aligned to the clock so that a bar stays what it is while time passes."""

    def __init__(self, now_ns: int, num_slots: int, slot_ns: int) -> None:
        self.first = now_ns // slot_ns - num_slots + 1
        self.num_slots, self.slot_ns = num_slots, slot_ns

    def of(self, t_ns: int) -> int:
        """Index of the slot that holds ``t_ns``, the newest last; negative before the first."""
        return t_ns // self.slot_ns - self.first


def means(points: deque[tuple[int, int, int]], now_ns: int, num_slots: int, slot_ns: int = SLOT_NS) -> list[float]:
    """The mean value in each of the last ``num_slots`` seconds, oldest first; 0 where there is none."""
    sums, counts, slots = [0.0] * num_slots, [0] * num_slots, _Slots(now_ns, num_slots, slot_ns)
    for t_ns, value, count in reversed(points):
        slot = slots.of(t_ns)
        if slot < 0:
            break
        if slot < num_slots:
            sums[slot] += value * count
            counts[slot] += count
    return [s / c if c else 0.0 for s, c in zip(sums, counts, strict=True)]


def rates(history: History, column: deque[int], now_ns: int, num_slots: int, slot_ns: int = SLOT_NS) -> list[float]:
    """``column`` summed in each of the last ``num_slots`` seconds, oldest first."""
    sums, slots = [0.0] * num_slots, _Slots(now_ns, num_slots, slot_ns)
    for t_ns, value in zip(reversed(history.t_ns), reversed(column), strict=False):
        slot = slots.of(t_ns)
        if slot < 0:
            break
        if slot < num_slots:
            sums[slot] += value
    return sums


def levels(history: History, column: deque[int], now_ns: int, num_slots: int, slot_ns: int = SLOT_NS) -> list[float]:
    """The last value of ``column`` in each of the last ``num_slots`` seconds, carried on where no step fell."""
    found: dict[int, float] = {}
    before, slots = 0.0, _Slots(now_ns, num_slots, slot_ns)
    for t_ns, value in zip(reversed(history.t_ns), reversed(column), strict=False):
        slot = slots.of(t_ns)
        if slot < 0:
            before = value
            break
        found.setdefault(slot, value)
    filled: list[float] = []
    for slot in range(num_slots):
        before = found.get(slot, before)
        filled.append(before)
    return filled
