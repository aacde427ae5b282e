"""The one clock of a run. Everything that is measured reads it; nothing reads the wall clock."""

from __future__ import annotations

import time


class RealClock:
    """Monotonic time since construction, in ns, not counting pauses."""

    virtual = False

    def __init__(self) -> None:
        self._origin_ns = time.perf_counter_ns()
        self._paused_at_ns: int | None = None

    def now_ns(self) -> int:
        if self._paused_at_ns is not None:
            return self._paused_at_ns
        return time.perf_counter_ns() - self._origin_ns

    def advance(self, delta_ns: int) -> None:
        """Real time passes by itself."""

    def skip(self, delta_ns: int) -> None:
        """Leave out a stretch in which nothing happens (single-stepping to the next arrival)."""
        self._origin_ns -= max(0, delta_ns)
        if self._paused_at_ns is not None:
            self._paused_at_ns += max(0, delta_ns)

    def pause(self) -> None:
        """Stop the clock: time spent paused does not count as anybody's latency."""
        if self._paused_at_ns is None:
            self._paused_at_ns = self.now_ns()

    def resume(self) -> None:
        if self._paused_at_ns is not None:
            self._origin_ns = time.perf_counter_ns() - self._paused_at_ns
            self._paused_at_ns = None


class VirtualClock:
    """Time that moves only when told: same workload and config, same times, on every machine."""

    virtual = True

    def __init__(self, start_ns: int = 0) -> None:
        self._now_ns = start_ns

    def now_ns(self) -> int:
        return self._now_ns

    def advance(self, delta_ns: int) -> None:
        """Move forward by ``delta_ns`` (never backward)."""
        self._now_ns += max(0, delta_ns)

    skip = advance

    def pause(self) -> None:
        """Virtual time stands still anyway."""

    def resume(self) -> None:
        """Virtual time stands still anyway."""


Clock = RealClock | VirtualClock
