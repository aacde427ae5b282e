"""The steady part of a run, and in which part each request falls. One rule, for the tables and for the summaries.

The *window* goes from the start of the first to the end of the last step with at least half the peak number of running
sequences: neither the filling of an empty engine nor a lone tail is in it. What a step emits is emitted at its end: a
token at the very start of the window came from the step before it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

WARMUP, STEADY, DRAIN = PHASES = ("warmup", "steady", "drain")

Window = tuple[int, int]


class BusyWindow:
    """Finds the window in one pass. Holds one entry for each number of running sequences, not for each step."""

    def __init__(self) -> None:
        self._rising: list[tuple[int, int]] = []  # (running, start) of every step with more than all before it
        self._falling: list[tuple[int, int]] = []  # (running, end) of every step with more than all after it

    def add(self, t_start_ns: int, t_done_ns: int, num_running: int) -> None:
        """The next step."""
        if not self._rising or num_running > self._rising[-1][0]:
            self._rising.append((num_running, t_start_ns))
        while self._falling and self._falling[-1][0] <= num_running:
            self._falling.pop()
        self._falling.append((num_running, t_done_ns))

    def window(self) -> Window | None:
        """Start and end, ns; None where nothing ran or no time passed."""
        peak = self._rising[-1][0] if self._rising else 0
        if not peak:
            return None
        half = (peak + 1) // 2
        start = self._rising[bisect_left(self._rising, (half, -(1 << 63)))][1]
        end = next(t_ns for running, t_ns in reversed(self._falling) if running >= half)
        return (start, end) if end > start else None


def phases(rows: Sequence[Mapping[str, Any]], window: Window | None, num_warmup: int = 0) -> list[str | None]:
    """warmup, steady or drain for each row of requests.parquet.

    A request belongs where its first token fell: before the window, in it or after it. One without a token belongs
    where it ended; one that was cut off waiting belongs to the end of the run. The first ``num_warmup`` requests by
    intended arrival are warm-up whatever they met. None without a window.
    """
    declared = _first(rows, num_warmup)
    return [WARMUP if index in declared else _phase(row, window) for index, row in enumerate(rows)]


def _first(rows: Sequence[Mapping[str, Any]], count: int) -> set[int]:
    if count <= 0:
        return set()
    order: Iterable[int] = sorted(range(len(rows)), key=lambda i: (rows[i]["t_sched_ns"], rows[i]["req_index"]))
    return set(list(order)[:count])


def _phase(row: Mapping[str, Any], window: Window | None) -> str | None:
    if window is None:
        return None
    times = (row.get("t_first_token_ns"), row.get("t_done_ns"))
    t_ns = next((t_ns for t_ns in times if t_ns is not None), None)
    if t_ns is None:
        return DRAIN
    return WARMUP if t_ns <= window[0] else STEADY if t_ns <= window[1] else DRAIN
