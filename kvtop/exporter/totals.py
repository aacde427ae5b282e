"""What is counted since a run's start: the cumulative side of the metrics. ``RunState`` holds what is true now."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import accumulate

from kvtop.engine.events import Decision, Event, Gap, RequestEvent, StepEvent

NS = 1_000_000_000

TTFT_S = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
    160.0, 640.0, 2560.0,
)  # fmt: skip
GAP_S = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
REQUEST_S = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0,
    1920.0, 7680.0,
)  # fmt: skip
STEP_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
STEP_TOKENS = tuple(float(1 << power) for power in (0, *range(3, 15)))
LENGTHS = tuple(float(step * 10**power) for power in range(6) for step in (1, 2, 5))
BRANCHES = (1.0, 2.0, 5.0, 10.0, 20.0)
"""Upper ends of buckets, those of vLLM (its lengths end at the model's; here at 500,000)."""


class Buckets:
    """A histogram. ``bounds``: upper ends, each included; values are ns where ``per_unit`` is NS, else plain."""

    def __init__(self, bounds: tuple[float, ...], per_unit: int = 1) -> None:
        self.bounds, self.per_unit = bounds, per_unit
        self.total = 0  # in the unit of the values
        self.counts = [0] * (len(bounds) + 1)
        self._ends = [round(bound * per_unit) for bound in bounds]

    def add(self, value: int, count: int = 1) -> None:
        self.counts[bisect_left(self._ends, value)] += count
        self.total += value * count

    @property
    def cumulative(self) -> list[int]:
        """Values up to each bound; the last is all of them."""
        return list(accumulate(self.counts))


class Totals:
    """Folds the events of one run. Bounded: it remembers live requests and sequences only.

    A request is counted when it ends, its TTFT with its first token, a gap with the token that ends it. After a
    ``Gap`` in the events, gaps between tokens begin anew: what was dropped is in ``events_dropped`` and nowhere else.
    """

    def __init__(self) -> None:
        self.ttft = Buckets(TTFT_S, NS)
        self.itl = Buckets(GAP_S, NS)
        self.tpot = Buckets(GAP_S, NS)
        self.e2e, self.queue = Buckets(REQUEST_S, NS), Buckets(REQUEST_S, NS)
        self.prefill, self.decode = Buckets(REQUEST_S, NS), Buckets(REQUEST_S, NS)
        self.inference = Buckets(REQUEST_S, NS)
        self.step = Buckets(STEP_S, NS)
        self.step_tokens = Buckets(STEP_TOKENS)
        self.prompt_lengths, self.output_lengths = Buckets(LENGTHS), Buckets(LENGTHS)
        self.asked_lengths, self.branches = Buckets(LENGTHS), Buckets(BRANCHES)
        self.counts: Counter[str] = Counter()
        self.ended: Counter[str] = Counter()  # requests by finish reason
        self.rejected: Counter[str] = Counter()  # by the error's name
        self.evicted: Counter[str] = Counter()  # blocks by what the room was for: prefill, decode, forced
        self.lookup_ends: Counter[str] = Counter()  # first admissions by why the match ended
        self.waits: Counter[str] = Counter()  # times a sequence began to wait, by reason
        self.schedule_ns = self.execute_ns = 0
        self._arrived: dict[str, RequestEvent] = {}
        self._last_ns: dict[str, int] = {}  # live sequence that has emitted -> when it did last

    def fold(self, event: Event) -> None:
        """Count one event."""
        if isinstance(event, StepEvent):
            self._step(event)
        elif isinstance(event, RequestEvent):
            if event.phase == "arrived":
                self._arrived[event.request_id] = event
            else:
                self._ended(event)
        elif isinstance(event, Gap):
            self.counts["events_dropped"] += event.dropped
            self._last_ns.clear()

    # Steps ---------------------------------------------------------------------------------------------------

    def _step(self, event: StepEvent) -> None:
        counts, computed = self.counts, event.prefill_tokens + event.decode_tokens
        for name in ("query_tokens", "hit_tokens", "host_hit_tokens", "evictions", "preemptions", "copies"):
            counts[name] += getattr(event, name)
        counts["computed_tokens"] += computed
        if computed:  # others tell of an abort or a rejection between steps
            counts["steps"] += 1
            self.step.add(event.t_done_ns - event.t_start_ns)
            self.step_tokens.add(computed)
            self.schedule_ns += event.t_planned_ns - event.t_start_ns
            self.execute_ns += event.t_done_ns - event.t_planned_ns
        ended: list[str] = []
        for decision in event.decisions:
            if fold := _DECISIONS.get(decision[0]):
                fold(self, event, decision)
            elif decision[0] in ("finished", "aborted"):
                ended.append(decision[1])
        self._emitted(event.emitted, event.t_done_ns)
        for seq_id in ended:  # only now: their last tokens are in ``emitted``
            self._last_ns.pop(seq_id, None)

    def _emitted(self, emitted: Iterable[tuple[str, int]], t_ns: int) -> None:
        last_ns, gaps, total = self._last_ns, {}, 0
        for seq_id, count in emitted:
            total += count
            if (before := last_ns.get(seq_id)) is not None:
                gap = (t_ns - before) // count
                gaps[gap] = gaps.get(gap, 0) + count
            last_ns[seq_id] = t_ns
        for gap, count in gaps.items():
            self.itl.add(gap, count)
        self.counts["output_tokens"] += total

    def _first_token(self, event: StepEvent, decision: Decision) -> None:
        request = self._arrived.get(decision[1])
        if request is not None:
            self.ttft.add(event.t_done_ns - request.t_sched_ns)
            self.counts["prompt_tokens"] += request.prompt_tokens

    def _forked(self, event: StepEvent, decision: Decision) -> None:
        if (before := self._last_ns.get(decision[2])) is not None:
            self._last_ns[decision[1]] = before

    def _evict(self, event: StepEvent, decision: Decision) -> None:
        cause = decision[1]
        by_hand = cause in ("forced", "limit")
        self.evicted["forced" if by_hand else "decode" if cause in self._last_ns else "prefill"] += 1

    def _lookup(self, event: StepEvent, decision: Decision) -> None:
        self.lookup_ends[decision[3]] += 1

    def _skipped(self, event: StepEvent, decision: Decision) -> None:
        self.waits[decision[2]] += 1

    def _refused(self, event: StepEvent, decision: Decision) -> None:
        self.rejected[decision[3]] += 1

    # Requests ------------------------------------------------------------------------------------------------

    def _ended(self, event: RequestEvent) -> None:
        self._arrived.pop(event.request_id, None)
        reason = event.finish_reason or "failed"
        if reason == "rejected":
            return
        self.ended[reason] += 1
        self.prompt_lengths.add(event.prompt_tokens)
        self.output_lengths.add(event.output_tokens)
        self.asked_lengths.add(event.requested_output_tokens)
        self.branches.add(event.n)
        done, scheduled, first = event.t_done_ns, event.t_first_sched_ns, event.t_first_token_ns
        if done is None:
            return
        self.e2e.add(done - event.t_sched_ns)
        if scheduled is not None:
            self.queue.add(scheduled - event.t_submit_ns)
            self.inference.add(done - scheduled)
            if first is not None:
                self.prefill.add(first - scheduled)
                self.decode.add(done - first)
        if event.tpot_ns is not None:
            self.tpot.add(event.tpot_ns)


_DECISIONS: dict[str, Callable[[Totals, StepEvent, Decision], None]] = {
    "first_token": Totals._first_token,
    "forked": Totals._forked,
    "evict": Totals._evict,
    "lookup": Totals._lookup,
    "skipped": Totals._skipped,
    "rejected": Totals._refused,
}
