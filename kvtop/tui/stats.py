"""Numbers worked out for the screen: latencies, windows, rates."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from kvtop.stats import percentile
from kvtop.state.model import LATENCY_WINDOW_NS, History, Samples

RATE_WINDOW_NS = 5_000_000_000


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
    """A ``Summary`` that is worked out again only when samples changed, and every fourth time when there are many."""

    MANY = 5000

    def __init__(self) -> None:
        self._seen: tuple[int, int] | None = None
        self._age = 0
        self.value = Summary()

    def update(self, samples: Samples) -> Summary:
        points = samples.points
        seen = (len(points), points[-1][0] if points else 0)
        self._age += 1
        if seen != self._seen and (len(points) < self.MANY or self._age >= 4 or self._seen is None):
            self.value, self._seen, self._age = summarise(samples), seen, 0
        return self.value


def slots(points: deque[tuple[int, int]], now_ns: int, num_slots: int, span_ns: int = LATENCY_WINDOW_NS) -> list[float]:
    """The mean value in each of ``num_slots`` equal stretches of the last ``span_ns``, oldest first; 0 where empty."""
    sums, counts = [0.0] * num_slots, [0] * num_slots
    width = max(1, -(-span_ns // max(1, num_slots)))
    last = now_ns // width  # aligned to the clock, so that a bar stays what it is while time passes
    for t_ns, value in reversed(points):
        slot = num_slots - 1 - (last - t_ns // width)
        if slot < 0:
            break
        if slot < num_slots:
            sums[slot] += value
            counts[slot] += 1
    return [s / c if c else 0.0 for s, c in zip(sums, counts, strict=True)]


def rates(
    history: History, column: deque[int], now_ns: int, num_slots: int, span_ns: int = LATENCY_WINDOW_NS
) -> list[float]:
    """``column`` summed in each of ``num_slots`` equal stretches of the last ``span_ns``, per second, oldest first."""
    sums = [0.0] * num_slots
    width = max(1, -(-span_ns // max(1, num_slots)))
    last = now_ns // width
    for t_ns, value in zip(reversed(history.t_ns), reversed(column), strict=False):
        slot = num_slots - 1 - (last - t_ns // width)
        if slot < 0:
            break
        if slot < num_slots:
            sums[slot] += value
    return [s * 1e9 / width for s in sums]


def levels(history: History, column: deque[int], now_ns: int, num_slots: int, span_ns: int) -> list[float]:
    """The last value of ``column`` in each stretch of time, carried on where no step fell, oldest first."""
    out: list[float | None] = [None] * num_slots
    width = max(1, -(-span_ns // max(1, num_slots)))
    last = now_ns // width
    before: float = 0.0
    for t_ns, value in zip(reversed(history.t_ns), reversed(column), strict=False):
        slot = num_slots - 1 - (last - t_ns // width)
        if slot < 0:
            before = value
            break
        if slot < num_slots and out[slot] is None:
            out[slot] = value
    filled: list[float] = []
    for value in out:
        before = before if value is None else value
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
