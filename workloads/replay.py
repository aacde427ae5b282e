"""The source of a run's requests: each is due at its own time, or when those it waits for have ended.

The schedule is absolute: how late the engine is moves no arrival, only the turns that wait for its answers.
"""

from __future__ import annotations

import heapq

from kvtop.engine.types import RequestSpec, SamplingParams
from kvtop.workloads.rows import Row
from kvtop.workloads.sessions import predecessors
from kvtop.workloads.tokens import TokenMaker


class ReplaySource:
    """Rows in order of arrival as requests ``r0``, ``r1``, ... (``engine.types.Source``).

    A prompt is made when its request is due, never before: a trace of long prompts costs no memory while it waits.
    """

    def __init__(self, rows: list[Row], tokens: TokenMaker) -> None:
        self._rows, self._tokens = rows, tokens
        waits_for = predecessors(rows)
        self._absolute = [index for index in range(len(rows)) if index not in waits_for] if waits_for else None
        self._parents = {index: before[0] for index, before in waits_for.items()}
        self._next = 0  # of the absolute ones
        self._num_absolute = len(rows) - len(waits_for)
        self._ready: list[tuple[int, int]] = []  # heap of (due, position): those whose wait is over
        self._num_missing = {index: len(before) for index, before in waits_for.items()}
        self._followers: dict[int, list[int]] = {}
        for index, before in waits_for.items():
            for other in before:
                self._followers.setdefault(other, []).append(index)

    def next_due(self) -> int | None:
        """Scheduled time of the next arrival in ns; None when none is known now."""
        entry = self._first()
        return None if entry is None else entry[0]

    def pop_due(self, now_ns: int) -> list[RequestSpec]:
        """Remove and return every request scheduled at or before ``now_ns``, in order."""
        due = []
        while (entry := self._first()) is not None and entry[0] <= now_ns:
            if self._ready and self._ready[0] == entry:
                heapq.heappop(self._ready)
            else:
                self._next += 1
            due.append(self._request(entry[1], entry[0]))
        return due

    def on_finished(self, request_id: str, now_ns: int) -> None:
        """Those that waited for nothing else are due when their user has thought. Whatever the reason of the end."""
        number = request_id.removeprefix("r")
        if number == request_id or not number.isdecimal():  # not one of these rows: somebody else submitted it
            return
        for index in self._followers.pop(int(number), ()):
            self._num_missing[index] -= 1
            if not self._num_missing[index]:
                del self._num_missing[index]
                heapq.heappush(self._ready, (now_ns + (self._rows[index].think_ns or 0), index))

    @property
    def exhausted(self) -> bool:
        """True when every request has been handed over."""
        return self._next >= self._num_absolute and not self._ready and not self._num_missing

    def _first(self) -> tuple[int, int] | None:
        """(due, position) of the next request: at one time in the order of the rows."""
        ready = self._ready[0] if self._ready else None
        if self._next >= self._num_absolute:
            return ready
        index = self._next if self._absolute is None else self._absolute[self._next]
        entry = (self._rows[index].arrival_ns, index)
        return entry if ready is None else min(entry, ready)

    def _request(self, index: int, due_ns: int) -> RequestSpec:
        row = self._rows[index]
        sampled = row.temperature > 0
        # ignore_eos and no stop strings: the length served is the length recorded.
        params = SamplingParams(
            max_tokens=row.output_tokens,
            n=row.n,
            num_beams=row.num_beams,
            temperature=row.temperature,
            seed=self._tokens.sampling_seed(index) if sampled else None,
            ignore_eos=True,
            forced_output=self._tokens.answer(row),
        )
        parent = self._parents.get(index)
        return RequestSpec(
            prompt=self._tokens.packed_prompt(row, index),
            params=params,
            request_id=f"r{index}",
            arrival_ns=due_ns,
            priority=row.priority,
            tenant=row.tenant,
            klass=row.klass,
            session_id=row.session_id,
            turn=row.turn,
            parent_request_id=row.parent_request_id or ("" if parent is None else f"r{parent}"),
        )
