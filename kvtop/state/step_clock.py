"""What went on between two moments, from the steps that the history holds."""

from __future__ import annotations

from bisect import bisect_left

from kvtop.state.model import RunState

CAPACITY = ("no_blocks", "pinned", "no_hole", "preempting")
"""Reasons of the head of the queue that a larger pool would remove."""


class StepClock:
    """The steps that the history holds, to tell what went on between two moments."""

    def __init__(self, state: RunState) -> None:
        history = state.history
        self.steps, self.starts, self.ends = list(history.step), list(history.start_ns), list(history.t_ns)
        self.reasons, self.prefill = list(history.waiting_reason), list(history.prefill_tokens)
        self.decode = list(history.decode_tokens)
        self.by_end = {t_ns: i for i, t_ns in enumerate(self.ends)}

    def knows(self, t_ns: int) -> bool:
        """Whether steps since ``t_ns`` are all there."""
        return bool(self.starts) and (self.starts[0] <= t_ns or self.steps[0] <= 1)

    def waits(self, start_ns: int, end_ns: int) -> dict[str, int]:
        """Time in the queue by part: a refusal lasts until the next step is planned."""
        found: dict[str, int] = {}
        first = bisect_left(self.starts, start_ns)
        if first < len(self.starts) and self.starts[first] > start_ns:
            found["unsaid"] = min(end_ns, self.starts[first]) - start_ns
        for i in range(first, len(self.starts)):
            if self.starts[i] >= end_ns:
                break
            until = min(end_ns, self.starts[i + 1] if i + 1 < len(self.starts) else end_ns)
            part = _part_of(self.reasons[i])
            found[part] = found.get(part, 0) + until - self.starts[i]
        return found

    def decoding(self, start_ns: int, end_ns: int) -> dict[str, int]:
        """Time by whether the step under way also computed prompt tokens; what is between two steps is the later's."""
        found = {"beside": 0, "decode": 0}
        begin = start_ns
        for i in range(bisect_left(self.ends, start_ns + 1), len(self.ends)):
            until = min(end_ns, self.ends[i])
            if until > begin:
                found["beside" if self.prefill[i] else "decode"] += until - begin
                begin = until
            if self.ends[i] >= end_ns:
                break
        return found


def _part_of(reason: str) -> str:
    return "capacity" if reason in CAPACITY else reason if reason in ("seats", "budget") else "unsaid"
