"""The cursor in time against a plain fold of the same events up to the same step."""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtop.engine.events import Event, StepEvent
from kvtop.results.recording import read_frames
from kvtop.state import ring as ring_module
from kvtop.state.model import PoolState, RunState
from kvtop.state.reduce import reduce
from kvtop.state.request_logs import RequestLogs
from kvtop.state.ring import Ring
from kvtop.state.timeline import Timeline

FRAMES = Path(__file__).parents[1] / "tui" / "data" / "frames.msgpack.zst"


@cache
def recorded() -> tuple[Event, ...]:
    return tuple(event for events in read_frames(FRAMES) for event in events)


def folded(step: int) -> RunState:
    """From the first event to the last one before the first step after ``step``."""
    state = RunState()
    for event in recorded():
        if isinstance(event, StepEvent) and event.step > step:
            break
        reduce(state, event)
    return state


def comparable(state: RunState) -> dict:
    """Everything but the logs of requests, and which blocks have changed since somebody looked."""
    apart = ("logs", "cache", "pool", "sequences")
    fields = {name: getattr(state, name) for name in RunState.__slots__ if name not in apart}
    fields["cache"] = list(state.cache.lookups), list(state.cache.regrets)
    pool = {name: getattr(state.pool, name) for name in PoolState.__slots__ if name not in ("dirty", "rekeyed")}
    pool["owners"] = [sorted(names) for names in pool["owners"]]
    sequences = {
        name: {field: getattr(seq, field) for field in type(seq).__slots__ if field != "run"}
        for name, seq in state.sequences.items()
    }
    return {**fields, "pool": pool, "sequences": sequences}


def timeline(monkeypatch: pytest.MonkeyPatch, work: int = 3_000, span_ns: int | None = None) -> Timeline:
    monkeypatch.setattr(ring_module, "SEGMENT_WORK", work)
    made = Timeline(Ring(span_ns))
    for event in recorded():
        made.fold(event)
    return made


def test_any_step_gone_to_in_any_order_is_the_state_of_a_plain_fold(monkeypatch):
    line = timeline(monkeypatch)
    assert len(line.ring.segments) > 5
    rng = random.Random(5)
    last = line.live.step
    for step in [*rng.sample(range(1, last), 25), last, 1]:
        line.seek(step)
        assert line.view.step == step
        assert comparable(line.view) == comparable(folded(step)), step


@settings(max_examples=10, deadline=None)
@given(moves=st.lists(st.sampled_from([-10, -1, 1, 10]), max_size=40))
def test_moving_step_by_step_arrives_where_a_plain_fold_does(moves):
    with pytest.MonkeyPatch.context() as patch:
        line = timeline(patch, work=1_500)
    line.seek(200)
    at = 200
    for move in moves:
        line.move(move)
        at += move
    assert line.view.step == at
    assert comparable(line.view) == comparable(folded(at))


def test_the_present_goes_on_while_the_past_is_looked_at(monkeypatch):
    monkeypatch.setattr(ring_module, "SEGMENT_WORK", 3_000)
    line, events = Timeline(Ring(None)), recorded()
    for event in events[:400]:
        line.fold(event)
    line.freeze()
    at = line.view.step
    before = comparable(line.view)
    for event in events[400:]:
        line.fold(event)
    assert (line.view.step, line.at_live) == (at, False)
    assert comparable(line.view) == before
    assert comparable(line.live) == comparable(folded(10**9))
    line.move(1)
    assert comparable(line.view) == comparable(folded(at + 1))
    line.go_live()
    assert line.view is line.live


def test_what_is_older_than_two_spans_is_forgotten_and_the_start_moves(monkeypatch):
    monkeypatch.setattr(ring_module, "SEGMENT_WORK", 500)
    line = Timeline(Ring(2_000_000_000))
    for event in recorded():
        line.fold(event)
    kept_ns = line.live.t_ns - line.first_ns
    assert 2_000_000_000 <= kept_ns <= 4_500_000_000
    line.seek(1)
    assert line.view.step == line.ring.segments[0].step
    line.to_start()
    assert comparable(line.view) == comparable(folded(line.ring.segments[0].step + 1))


def test_a_disk_that_refuses_keeps_the_newest_segment_and_says_why(monkeypatch):
    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tempfile.TemporaryFile", full)
    line = timeline(monkeypatch)
    assert line.ring.error == "the past is not kept: No space left on device"
    line.move(-1)
    assert comparable(line.view) == comparable(folded(line.live.step - 1))


def test_events_of_a_run_are_gone_to_in_order_and_marks_among_them(monkeypatch):
    line = timeline(monkeypatch)
    preempting = [e.step for e in recorded() if isinstance(e, StepEvent) and e.preemptions]
    seen = {moment.step for moment in line.moments.all if moment.kind == "preempt"}
    assert seen == set(preempting)
    line.to_start()
    line.seek(100)
    line.mark()
    line.seek(1)
    visited = []
    while line.to_moment(1):
        visited.append(line.view.step)
    assert visited == sorted({m.step for m in line.moments.all if m.step > 1})
    assert 100 in visited
    while line.to_moment(-1):
        visited.pop()
    assert len(visited) == 1
    assert line.to_mark() is not None
    assert line.view.step == 100
    line.mark()
    assert line.to_mark() is None


def test_playing_follows_the_runs_clock_at_the_chosen_pace_and_ends_live(monkeypatch):
    line = timeline(monkeypatch)
    line.change_speed(1)
    assert line.speed is None  # there is nothing after the live end
    line.seek(100)
    start_ns = line.view.t_ns
    line.change_speed(1)
    assert line.speed == 1.0
    for _ in range(10):
        line.play(0.1)
    done = [e.t_done_ns for e in recorded() if isinstance(e, StepEvent)]
    assert line.view.t_ns == max(t for t in done if t <= start_ns + 1_000_000_000)
    line.change_speed(1)
    line.change_speed(1)
    assert line.speed == 5.0
    line.play(1000.0)
    assert line.at_live


def test_the_life_of_a_request_ends_at_the_cursor(monkeypatch):
    line = timeline(monkeypatch)
    name = line.live.finished[3].request_id
    whole = line.live.logs.find(name)
    assert whole is not None
    assert whole.end is not None
    middle = (whole.entries[0].step + whole.last_step) // 2
    line.seek(middle)
    log = line.view.logs.find(name)
    assert log is not None
    assert log.end is None
    assert all(entry.step + entry.count - 1 <= middle for entry in log.entries if entry.decision[0] == "chunk")
    assert {d.decision for d in log.entries} <= {d.decision for d in (*whole.older, *whole.entries)}
    assert isinstance(line.live.logs, RequestLogs)
