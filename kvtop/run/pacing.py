"""How late the run itself was: requests handed over after the engine could have had them, and what was left at the end.

A request that is due while a step runs is handed over when that step has ended: that wait is the engine's, and part of
every latency from the schedule. *Loop lag* is what comes on top, because the process did something else or was not
running. With much of it the load is not the one that was asked for.
"""

from __future__ import annotations

from array import array
from typing import Any

from kvtop.analysis.stats import percentile
from kvtop.engine.events import RequestEvent
from kvtop.workloads.words import counted

DEGRADED_NS = 25_000_000
"""Loop lag (p99) above which a run does not pass for clean: the loop itself wakes up as often (``loop.FLUSH_S``)."""


class Pacing:
    """Counts requests in and out, and keeps each one's loop lag (8 bytes a request)."""

    def __init__(self) -> None:
        self.num_open = 0  # handed over, not ended
        self._lags = array("q")
        self._step_done_ns = 0
        self._asked_ns = self._asked_before_ns = -1

    def asked(self, now_ns: int) -> None:
        """The source is asked for what is due."""
        self._asked_before_ns, self._asked_ns = self._asked_ns, now_ns

    def step_done(self, t_ns: int) -> None:
        """The engine is free again."""
        self._step_done_ns = t_ns

    def submitted(self, due_ns: int, now_ns: int) -> None:
        """A request that was due since the source was asked before had to wait for the step in between."""
        since_ns = max(due_ns, self._step_done_ns) if due_ns > self._asked_before_ns else due_ns
        self._lags.append(max(0, now_ns - since_ns))

    def fold(self, event: RequestEvent) -> None:
        """Count one that arrived or ended."""
        self.num_open += 1 if event.phase == "arrived" else -1

    @property
    def lag_p99_ns(self) -> int | None:
        """None before the first request."""
        found = percentile(sorted(self._lags), 99)
        return None if found is None else round(found)

    @property
    def degraded(self) -> bool:
        return (self.lag_p99_ns or 0) > DEGRADED_NS

    def notices(self, *, max_ns: int | None) -> list[str]:
        """What the user should know at the end; ``max_ns``: the run was to end then, finished or not."""
        told = []
        if self.degraded:
            told.append(
                f"generator degraded: requests were handed over late, p99 {(self.lag_p99_ns or 0) / 1e6:.0f} ms of "
                f"{len(self._lags):,} (beyond the step that ran): latencies are those of another load"
            )
        if max_ns is not None and self.num_open:
            backlog = counted(self.num_open, "request")
            told.append(f"ended after {max_ns / 1e9:g} s with a backlog: {backlog} had not finished")
        return told

    def facts(self) -> dict[str, Any]:
        """Keys of run.json."""
        return {
            "loop_lag_p99_ns": self.lag_p99_ns,
            "generator_degraded": self.degraded,
            "backlog_requests": self.num_open,
        }
