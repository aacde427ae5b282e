"""Cumulative counts against values worked out by hand, and against a plain count of every gap."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from kvtop.engine.events import Gap, RequestEvent, StepEvent
from kvtop.exporter.totals import GAP_S, NS, TTFT_S, Buckets, Totals

MS = 1_000_000


def step(number: int, done_ms: int, *, decisions: list | None = None, emitted: list | None = None) -> StepEvent:
    return StepEvent(
        step=number,
        t_start_ns=(done_ms - 10) * MS,
        t_planned_ns=(done_ms - 9) * MS,
        t_done_ns=done_ms * MS,
        decode_tokens=1,
        decisions=decisions or [],
        emitted=emitted or [],
    )


def arrived(request_id: str, at_ms: int, prompt: int = 7) -> RequestEvent:
    return RequestEvent(
        phase="arrived",
        t_ns=at_ms * MS,
        request_id=request_id,
        prompt_tokens=prompt,
        requested_output_tokens=3,
        t_sched_ns=at_ms * MS,
        t_submit_ns=at_ms * MS,
    )


def test_a_bound_is_inside_its_bucket() -> None:
    buckets = Buckets((0.01, 0.1), NS)
    for ms in (10, 11, 100, 101):
        buckets.add(ms * MS)
    assert buckets.counts == [1, 2, 1]
    assert buckets.cumulative == [1, 3, 4]
    assert buckets.total == 222 * MS


@given(st.lists(st.integers(0, 3000 * NS), max_size=50))
def test_cumulative_counts_are_those_of_comparing_each_value_with_each_bound(values: list[int]) -> None:
    buckets = Buckets(TTFT_S, NS)
    for value in values:
        buckets.add(value)
    assert buckets.cumulative[:-1] == [sum(value / NS <= bound for value in values) for bound in TTFT_S]
    assert buckets.cumulative[-1] == len(values)


def test_ttft_is_from_the_moment_it_was_due_and_gaps_are_between_tokens() -> None:
    totals = Totals()
    totals.fold(arrived("a", 5))
    totals.fold(step(1, 45, decisions=[("first_token", "a")], emitted=[("a", 1)]))
    totals.fold(step(2, 75, emitted=[("a", 1)]))
    totals.fold(step(3, 135, emitted=[("a", 2)], decisions=[("finished", "a", "length", 4)]))
    assert (totals.ttft.total, sum(totals.ttft.counts)) == (40 * MS, 1)
    assert totals.itl.total == (30 + 30 + 30) * MS  # two tokens of one step: two gaps of half of it
    assert sum(totals.itl.counts) == 3
    assert totals.counts["output_tokens"] == 4
    assert totals.counts["prompt_tokens"] == 7
    assert (totals.schedule_ns, totals.execute_ns) == (3 * MS, 27 * MS)


def test_an_id_that_is_used_again_begins_without_a_gap() -> None:
    totals = Totals()
    for at_ms in (0, 1000):
        totals.fold(arrived("a", at_ms))
        first = [("first_token", "a"), ("finished", "a", "length", 1)]
        totals.fold(step(at_ms + 1, at_ms + 20, decisions=first, emitted=[("a", 1)]))
    assert sum(totals.itl.counts) == 0


def test_a_branch_forked_later_has_its_first_gap_from_its_parents_last_token() -> None:
    totals = Totals()
    totals.fold(arrived("a", 0))
    totals.fold(step(1, 20, decisions=[("first_token", "a")], emitted=[("a", 1)]))
    totals.fold(step(2, 50, decisions=[("forked", "a#1", "a")], emitted=[("a", 1), ("a#1", 1)]))
    assert (totals.itl.total, sum(totals.itl.counts)) == (60 * MS, 2)


def test_after_dropped_events_no_gap_is_made_up() -> None:
    totals = Totals()
    totals.fold(arrived("a", 0))
    totals.fold(step(1, 20, decisions=[("first_token", "a")], emitted=[("a", 1)]))
    totals.fold(Gap(t_ns=0, dropped=17))
    totals.fold(step(9, 900, emitted=[("a", 1)]))
    assert sum(totals.itl.counts) == 0
    assert totals.counts["events_dropped"] == 17


def test_evictions_are_told_apart_by_what_the_room_was_for() -> None:
    totals = Totals()
    totals.fold(arrived("a", 0))
    totals.fold(step(1, 20, decisions=[("evict", "a", 0, 3, 1, 0, 5, 5, 1), ("first_token", "a")], emitted=[("a", 1)]))
    totals.fold(step(2, 40, decisions=[("evict", "a", 0, 4, 2, 0, 5, 5, 1), ("evict", "forced", 0, 5, 6, 0, 1, 1, 0)]))
    assert totals.evicted == {"prefill": 1, "decode": 1, "forced": 1}


def test_a_refused_request_is_in_no_histogram() -> None:
    totals = Totals()
    totals.fold(step(1, 10, decisions=[("rejected", "a", 99, "RequestTooLong")]))
    end = RequestEvent(
        phase="finished", t_ns=0, request_id="a", prompt_tokens=99, requested_output_tokens=1, t_sched_ns=0,
        t_submit_ns=0, finish_reason="rejected",
    )  # fmt: skip
    totals.fold(end)
    assert totals.rejected == {"RequestTooLong": 1}
    assert not totals.ended
    assert sum(totals.prompt_lengths.counts) == 0


@settings(max_examples=50)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 400)), max_size=60))
def test_gaps_are_those_of_a_list_of_all_token_times(tokens: list[tuple[str, int]]) -> None:
    totals, now, times = Totals(), 0, {}
    for number, (seq_id, after_ms) in enumerate(tokens):
        now += after_ms
        totals.fold(step(number, now, emitted=[(seq_id, 1)]))
        times.setdefault(seq_id, []).append(now)
    gaps = [b - a for each in times.values() for a, b in pairwise(each)]
    assert totals.itl.total == sum(gaps) * MS
    assert totals.itl.cumulative[:-1] == [sum(gap / 1000 <= bound for gap in gaps) for bound in GAP_S]
