"""A source whose arrivals can be made denser or thinner while the run goes on."""

from __future__ import annotations

import math
from dataclasses import replace

from kvtop.engine.errors import UsageError
from kvtop.engine.types import RequestSpec, Source

MOST = 1000.0


class PacedSource:
    """``source`` in a time of its own that passes ``rate`` times as fast as the run's. Untouched until ``set_rate``."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.rate = 1.0
        self._base: tuple[int, int] | None = None  # a moment of the run, and of the source; None: they are the same

    def set_rate(self, rate: float, now_ns: int) -> None:
        """From ``now_ns`` on requests arrive at ``rate`` times the pace the workload says.

        Raises:
            UsageError: not a number above 0 and at most MOST.
        """
        if not isinstance(rate, (int, float)) or not 0 < rate <= MOST:
            raise UsageError(f"arrival rate is {rate!r}, expected a factor above 0 and at most {MOST:g}")
        self._base = (now_ns, self._to_source(now_ns))
        self.rate = float(rate)

    def next_due(self) -> int | None:
        due_ns = self.source.next_due()
        return None if due_ns is None else self._to_run(due_ns)

    def pop_due(self, now_ns: int) -> list[RequestSpec]:
        specs = self.source.pop_due(self._to_source(now_ns))
        if self._base is None:
            return specs
        return [
            spec if spec.arrival_ns is None else replace(spec, arrival_ns=min(now_ns, self._to_run(spec.arrival_ns)))
            for spec in specs
        ]

    def on_finished(self, request_id: str, now_ns: int) -> None:
        self.source.on_finished(request_id, self._to_source(now_ns))

    @property
    def exhausted(self) -> bool:
        return self.source.exhausted

    def _to_source(self, now_ns: int) -> int:
        if self._base is None:
            return now_ns
        run_ns, source_ns = self._base
        return source_ns + math.floor((now_ns - run_ns) * self.rate)

    def _to_run(self, t_ns: int) -> int:
        """The first moment of the run at which ``t_ns`` has come."""
        if self._base is None:
            return t_ns
        run_ns, source_ns = self._base
        return run_ns + math.ceil((t_ns - source_ns) / self.rate)
