"""What a reader that folds events can say about a request now is what the whole stream says."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from test_why_agrees import CONFIGS, crowded
from why_engine import Scenario, of_kind, one, tokens

from kvtop.engine.events import Event, Gap, Keyframe, RunEnded, RunStarted, StepEvent
from kvtop.state import request_logs
from kvtop.state.model import RunState
from kvtop.state.reduce import reduce
from kvtop.why import Line, explain, facts_of
from kvtop.why.live import facts_now, gaps_of


def start(scenario: Scenario) -> list[Event]:
    key = Keyframe(
        step=0, t_ns=0, num_blocks=scenario.engine.config.num_blocks, block_size=4, blocks=[], sequences=[], totals={}
    )
    return [RunStarted(run_id="r", manifest={**scenario.run, "status": "running"}), key]


def folded(events: list[Event]) -> RunState:
    state = RunState()
    for event in events:
        reduce(state, event)
    return state


def now(state: RunState, name: str, *, ended: bool = False) -> list[Line]:
    log = state.logs.find(name, ended=ended)
    assert log is not None, name
    return explain(facts_now(state, log, name))


def by_step(scenario: Scenario) -> Iterator[tuple[RunState, list[Event]]]:
    """The state after each step, and the events so far."""
    state, seen = folded(start(scenario)), []
    for event in scenario.events:
        reduce(state, event)
        seen.append(event)
        if isinstance(event, StepEvent):
            yield state, seen


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("kind", ["single", "branches", "beams"])
def test_live_and_ended_requests_are_told_as_by_the_whole_stream(name: str, kind: str) -> None:
    scenario = crowded(3, branches=kind != "single", beams=kind == "beams", **CONFIGS[name])
    compared = 0
    for number, (state, seen) in enumerate(by_step(scenario)):
        if number % 23:  # each comparison folds the whole stream anew
            continue
        for request in [*state.logs.live, *state.logs.ended, *state.sequences]:
            facts = facts_of(seen, request, {**scenario.run, "status": "running"})
            assert facts is not None
            if request in state.logs.live:  # the stream's row has it at the end only
                facts.request["t_first_sched_ns"] = state.logs.live[request].t_first_sched_ns  # type: ignore[index]
            assert now(state, request) == explain(facts), f"{request}, step {number}"
            compared += 1
    assert compared > 30


def test_the_engines_time_of_first_computing_is_known_before_the_end() -> None:
    scenario = crowded(3, branches=True)
    state = folded([*start(scenario), *scenario.events])
    known = [log for log in state.logs.ended.values() if log.end is not None and log.end.t_first_sched_ns is not None]
    assert len(known) == 24
    assert all(log.t_first_sched_ns == log.end.t_first_sched_ns for log in known if log.end)


def test_blocks_of_several_groups_are_told_the_same() -> None:
    scenario = crowded(4, branches=True, kv_groups=(None, 6))
    state = folded([*start(scenario), *scenario.events, RunEnded(t_ns=0, status="complete")])
    for request in state.logs.ended:
        facts = facts_of(scenario.events, request, scenario.run)
        assert facts is not None
        assert now(state, request) == explain(facts)


def waiting() -> Scenario:
    """Four blocks: a holds two and grows; b needs three, and two are there."""
    scenario = Scenario(4)
    scenario.submit("a", tokens(7, 1), 6)
    scenario.submit("b", tokens(11, 2), 2)
    return scenario


def test_a_log_that_begins_with_a_keyframe_says_so_and_knows_who_waits() -> None:
    scenario = waiting()
    scenario.steps(2)
    scenario.engine.recorder.drain()
    state = folded([*start(scenario)[:1], scenario.engine.keyframe()])
    scenario.steps(2)
    for event in scenario.engine.recorder.drain():
        reduce(state, event)
    b, a = now(state, "b"), now(state, "a")
    assert [line.kind for line in b] == ["log_begins", "waited", "now"]
    assert b[0].text == "the log begins here: what came before is not in it; waiting, after 0 tokens"
    assert one(b, "now").numbers["state"] == "waiting"
    assert one(a, "now").numbers == {"output_tokens": 4, "state": "running"}
    assert one(a, "log_begins").numbers == {"output_tokens": 2, "state": "running"}


def test_dropped_events_are_admitted() -> None:
    scenario = waiting()
    events = start(scenario)
    scenario.steps(2)
    events += scenario.engine.recorder.drain()
    state = folded(events)
    before = state.logs.find("a")
    assert before is not None
    assert not gaps_of(state, before)
    scenario.steps(1)
    scenario.engine.recorder.drain()  # lost
    reduce(state, Gap(t_ns=0, dropped=1))
    reduce(state, scenario.engine.keyframe())
    assert gaps_of(state, before) == ["Events were dropped while it was alive: what they said is not told."]
    last = explain(facts_now(state, before, "a"))[-1]
    assert last.text == "the log breaks off here, events were dropped: running, after 2 tokens"
    assert one(now(state, "a"), "log_begins").numbers["output_tokens"] == 3
    scenario.finish()
    for event in scenario.engine.recorder.drain():
        reduce(state, event)
    assert one(now(state, "a"), "ended").numbers["output_tokens"] == 6


def test_a_long_life_keeps_its_newest_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """Generations of a few entries: the lines are a tail of the whole story, begun with what was known there."""
    monkeypatch.setattr(request_logs, "GENERATION", 0)
    scenario = crowded(3, branches=False, prefix_caching=False, victim="most-blocks")
    cut = 0
    for state, seen in by_step(scenario):
        assert all(len(log.entries) + len(log.older) < 60 for log in state.logs.live.values())
        for request, log in state.logs.live.items():
            if not log.older or log.older[0].decision[0] != "known":
                continue
            facts = facts_of(seen, request, {**scenario.run, "status": "running"})
            assert facts is not None
            told, whole = now(state, request), explain(facts)
            assert told[0].kind == "log_begins"
            assert (told[-1].kind, told[-1].t_ns) == (whole[-1].kind, whole[-1].t_ns)
            assert told[-1].numbers["output_tokens"] == whole[-1].numbers["output_tokens"]
            assert told[-1].numbers["state"] == whole[-1].numbers["state"]
            lost = of_kind(whole, "preempted")[::-1]
            assert lost[: len(of_kind(told, "preempted"))] == of_kind(told, "preempted")[::-1]
            cut += 1
    assert cut


def test_decoding_costs_one_entry() -> None:
    scenario = Scenario(64, max_model_len=None)
    scenario.submit("a", tokens(7, 1), 200)
    scenario.finish(300)
    state = folded([*start(scenario), *scenario.engine.recorder.drain()])
    log = state.logs.ended["a"]
    assert [entry.count for entry in log.entries if entry.decision[0] == "chunk"] == [1, 199]


def test_an_id_in_use_again_begins_a_new_log_and_both_keep_their_own_end() -> None:
    scenario = waiting()
    scenario.steps(2)
    scenario.engine.abort("a")
    scenario.submit("a", tokens(3, 3), 2)
    scenario.finish()
    state = folded(start(scenario))
    ends = []
    for event in scenario.engine.recorder.drain():
        reduce(state, event)
        if "a" in state.logs.ended and state.logs.ended["a"].end not in ends:
            ends.append(state.logs.ended["a"].end)
            told = one(now(state, "a", ended=True), "ended")
            assert told.numbers["reason"] == ends[-1].finish_reason
    assert [end.finish_reason for end in ends] == ["aborted", "length"]
    assert not state.logs.live
    assert not state.logs.replaced


def test_only_so_many_ended_requests_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_logs, "ENDED_KEPT", 3)
    scenario = crowded(3, branches=True)
    state = folded([*start(scenario), *scenario.events])
    assert list(state.logs.ended) == [event.request_id for event in state.finished][-3:]
    assert not state.logs.live
    assert state.logs.find("q0") is None
