"""Open-loop replay: every request is due at its own time, however late the engine is."""

from __future__ import annotations

from kvtop.engine.types import RequestSpec, SamplingParams
from kvtop.workloads.rows import Row
from kvtop.workloads.tokens import TokenMaker


class ReplaySource:
    """An absolute schedule of rows, in order of arrival (``engine.types.Source``).

    A prompt is made when its request is due, never before: a trace of long prompts costs no memory while it waits.
    """

    def __init__(self, rows: list[Row], tokens: TokenMaker) -> None:
        self._rows, self._tokens = rows, tokens
        self._next = 0

    def next_due(self) -> int | None:
        """Scheduled time of the next arrival in ns, None after the last."""
        return None if self.exhausted else self._rows[self._next].arrival_ns

    def pop_due(self, now_ns: int) -> list[RequestSpec]:
        """Remove and return every request scheduled at or before ``now_ns``, in order."""
        due = []
        while self._next < len(self._rows) and self._rows[self._next].arrival_ns <= now_ns:
            due.append(self._request(self._next))
            self._next += 1
        return due

    def on_finished(self, request_id: str, now_ns: int) -> None:
        """Nothing waits for an answer in an open loop."""

    @property
    def exhausted(self) -> bool:
        return self._next >= len(self._rows)

    def _request(self, index: int) -> RequestSpec:
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
        )
        return RequestSpec(
            prompt=self._tokens.prompt(row, index),
            params=params,
            request_id=f"r{index}",
            arrival_ns=row.arrival_ns,
            priority=row.priority,
            tenant=row.tenant,
            klass=row.klass,
            session_id=row.session_id,
            turn=row.turn,
            parent_request_id=row.parent_request_id,
        )
