"""Numbers worked out for the screen: latencies, windows, rates."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from kvtop.state.model import History, Samples
from kvtop.stats import percentile

RATE_WINDOW_NS = 5_000_000_000
SLOT_NS = 1_000_000_000  # a column of a chart


@dataclass(slots=True)
class Summary:
    """Two percentiles and the maximum of ``n`` samples, in ns; None when there are none."""

    n: int = 0
    p50: float | None = None
    p99: float | None = None
    peak: float | None = None


def summarise(samples: Samples) -> Summary:
    values = sorted(value for _, value in samples.points)
    return Summary(len(values), percentile(values, 50), percentile(values, 99), values[-1] if values else None)


class CachedSummary:
    """A ``Summary`` that is worked out again only when samples changed; with very many of them, every fourth time."""

    MANY = 20_000  # sorting as many takes about 3 ms

    def __init__(self) -> None:
        self._seen: tuple[int, int] | None = None
        self._age = 0
        self.value = Summary()

    def update(self, samples: Samples, exact: bool) -> Summary:
        """The summary of ``samples``; ``exact`` (nothing more is coming for now) is never behind."""
        points = samples.points
        seen = (len(points), points[-1][0] if points else 0)
        self._age += 1
        if seen != self._seen and (exact or len(points) < self.MANY or self._age >= 4 or self._seen is None):
            self.value, self._seen, self._age = summarise(samples), seen, 0
        return self.value


class _Slots:
    """Stretches of ``SLOT_NS``, aligned to the clock so that a bar stays what it is while time passes."""

    def __init__(self, now_ns: int, num_slots: int) -> None:
        self.first = now_ns // SLOT_NS - num_slots + 1
        self.num_slots = num_slots

    def of(self, t_ns: int) -> int:
        """Index of the slot that holds ``t_ns``, the newest last; negative before the first."""
        return t_ns // SLOT_NS - self.first


def means(points: deque[tuple[int, int]], now_ns: int, num_slots: int) -> list[float]:
    """The mean value in each of the last ``num_slots`` seconds, oldest first; 0 where there is none."""
    sums, counts, slots = [0.0] * num_slots, [0] * num_slots, _Slots(now_ns, num_slots)
    for t_ns, value in reversed(points):
        slot = slots.of(t_ns)
        if slot < 0:
            break
        if slot < num_slots:
            sums[slot] += value
            counts[slot] += 1
    return [s / c if c else 0.0 for s, c in zip(sums, counts, strict=True)]


def rates(history: History, column: deque[int], now_ns: int, num_slots: int) -> list[float]:
    """``column`` summed in each of the last ``num_slots`` seconds, oldest first."""
    sums, slots = [0.0] * num_slots, _Slots(now_ns, num_slots)
    for t_ns, value in zip(reversed(history.t_ns), reversed(column), strict=False):
        slot = slots.of(t_ns)
        if slot < 0:
            break
        if slot < num_slots:
            sums[slot] += value
    return sums


def levels(history: History, column: deque[int], now_ns: int, num_slots: int) -> list[float]:
    """The last value of ``column`` in each of the last ``num_slots`` seconds, carried on where no step fell."""
    found: dict[int, float] = {}
    before, slots = 0.0, _Slots(now_ns, num_slots)
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


def recent_rate(history: History, column: deque[int], now_ns: int, span_ns: int = RATE_WINDOW_NS) -> float | None:
    """``column`` per second over the last ``span_ns`` (or since the run began); None before the first step."""
    if not history.t_ns or now_ns <= 0:
        return None
    span_ns = min(span_ns, now_ns)
    total = 0
    for t_ns, value in zip(reversed(history.t_ns), reversed(column), strict=False):
        if t_ns <= now_ns - span_ns:
            break
        total += value
    return total * 1e9 / span_ns
