"""Breakpoints, runs until an event, and what may be changed while a run goes on: in process, under virtual time."""

from __future__ import annotations

import pytest
from run_fakes import ListInbox, ListOutlet, ListSource, request

from kvtop.engine.api import Engine, EngineConfig, NullExecutor, Recorder
from kvtop.engine.errors import UnknownName, UsageError
from kvtop.engine.events import (
    Command,
    ConfigChanged,
    Event,
    Notice,
    Pause,
    Paused,
    RequestEvent,
    Resume,
    RunUntil,
    SetBreakpoints,
    SetConfig,
    Step,
    StepEvent,
    Stop,
)
from kvtop.run.breakpoints import parse_breakpoint
from kvtop.run.loop import RunLoop
from kvtop.run.paced_source import PacedSource

STEP_NS = 10_000_000


def run(source: ListSource, inbox: ListInbox, **config) -> tuple[ListOutlet, RunLoop]:
    values = {"num_blocks": 32, "block_size": 4, "max_batched_tokens": 64} | config
    engine = Engine(EngineConfig.from_mapping(values), NullExecutor(STEP_NS), recorder=Recorder())
    outlet = ListOutlet()
    loop = RunLoop(engine, source, [outlet], inbox)
    assert loop.run().status in ("complete", "interrupted")
    return outlet, loop


def stop_at(*breakpoints: str, source: ListSource, **config) -> tuple[StepEvent, str]:
    """The step after which the run paused, and the reason told. Then the run is stopped."""
    outlet, _ = run(source, ListInbox({0: [SetBreakpoints(list(breakpoints))]}, [[Stop()]]), **config)
    before = None
    for event in outlet.events:
        if isinstance(event, Paused):
            assert before is not None
            return before, event.reason
        before = event if isinstance(event, StepEvent) else before
    raise AssertionError("it did not stop")


def crowd() -> ListSource:
    """Two requests in a pool of four blocks: the first takes the blocks of the second."""
    return ListSource([request(0, prompt=7, out=6), request(1, prompt=7, out=4)])


def test_it_stops_at_the_step_of_a_preemption_and_says_of_whom():
    step, reason = stop_at("preempt", source=crowd(), num_blocks=4, prefix_caching=False)
    assert [d[1] for d in step.decisions if d[0] == "preempted"] == ["q1"]
    assert reason == "preempt (preempted: q1)"


def test_it_stops_when_a_request_turns_not_at_each_of_its_tokens():
    source = ListSource([request(0, out=9), request(1, at_ns=3 * STEP_NS, out=3)])
    step, reason = stop_at("request q1", source=source)
    assert any(d[:2] == ("admitted", "q1") for d in step.decisions)
    assert reason.startswith("request q1 (q1: ")


def test_it_stops_when_a_block_is_touched():
    step, reason = stop_at("block 2", source=ListSource([request(0, prompt=9, out=3)]))
    assert any(d[0] == "alloc" and d[3] == 2 for d in step.decisions)
    assert reason == "block 2 (block 2: alloc by q0)"


def test_a_level_stops_when_it_is_crossed_and_not_again_until_it_was_left():
    source = ListSource([request(0, prompt=9, out=20)])
    inbox = ListInbox({0: [SetBreakpoints(["used > 2"])]}, [[Resume()], [Stop()]])
    outlet, _ = run(source, inbox)
    steps = outlet.of(StepEvent)
    pauses = outlet.of(Paused)
    assert len(pauses) == 1
    first = next(step for step in steps if step.used_blocks > 2)
    assert pauses[0].reason == f"used > 2 (used is {first.used_blocks})"
    assert steps[-1].finished == 1


def test_run_until_goes_on_from_a_pause_and_stops_once():
    source = ListSource([request(0, out=4), request(1, at_ns=20 * STEP_NS, out=9)])
    inbox = ListInbox({1: [Pause()]}, [[RunUntil(["finish"])], [Resume()]])
    outlet, _ = run(source, inbox)
    pauses = outlet.of(Paused)
    assert [pause.reason for pause in pauses] == ["", "finish (finished: q0)"]
    assert {e.request_id for e in outlet.of(RequestEvent) if e.phase == "finished"} == {"q0", "q1"}


def test_a_single_step_over_a_breakpoint_tells_it_too():
    inbox = ListInbox({0: [Pause(), SetBreakpoints(["admit"])]}, [[Step(5)], [Stop()]])
    outlet, _ = run(ListSource([request(0, out=9)]), inbox)
    assert [pause.reason for pause in outlet.of(Paused)] == ["", "admit (admitted: q0)"]
    assert len(outlet.of(StepEvent)) == 1


@pytest.mark.parametrize(
    ("text", "error", "said"),
    [
        ("preemt", UsageError, "expected one of: preempt"),
        ("frsh<5", UnknownName, "fresh"),
        ("block x", UsageError, "means nothing"),
        ("request", UsageError, "means nothing"),
        ("fresh<", UsageError, "means nothing"),
        ("", UsageError, "means nothing"),
    ],
)
def test_what_is_no_breakpoint_is_refused_in_one_line(text, error, said):
    with pytest.raises(error, match=said):
        parse_breakpoint(text)


def test_a_wrong_breakpoint_is_told_and_the_run_goes_on():
    outlet, _ = run(ListSource([request(0)]), ListInbox({0: [SetBreakpoints(["nonsense"])]}))
    assert [notice.level for notice in outlet.of(Notice)] == ["warning"]
    assert not outlet.of(Paused)


def test_the_queue_policy_changes_between_two_steps_and_is_told():
    """Long prompts first in line; under sjf the short one overtakes them."""
    specs = [request(i, prompt=24, out=3) for i in range(4)] + [request(9, prompt=5, out=3)]
    changed, _ = run(ListSource(specs), ListInbox({1: [SetConfig({"policy": "sjf"})]}), max_num_seqs=1)
    plain, _ = run(ListSource(specs), ListInbox(), max_num_seqs=1)
    assert changed.of(ConfigChanged)[0].changes == {"policy": "sjf"}
    assert ("config", "policy=sjf") in [d for step in changed.of(StepEvent) for d in step.decisions]
    assert order_of(plain.events) == ["q0", "q1", "q2", "q3", "q9"]
    assert order_of(changed.events) == ["q0", "q9", "q1", "q2", "q3"]


def order_of(events: list[Event]) -> list[str]:
    return [d[1] for event in events if isinstance(event, StepEvent) for d in event.decisions if d[0] == "admitted"]


@pytest.mark.parametrize("policy", ["fcfs", "lpm", "dfs-weight", "fair", "hrrn", "priority"])
def test_any_policy_can_follow_any_other_with_a_queue_that_waits(policy):
    specs = [request(i, prompt=9, out=4) for i in range(8)]
    script: dict[int, list[Command]] = {
        1: [SetConfig({"policy": policy})],
        4: [SetConfig({"policy": "fcfs"})],
        6: [SetConfig({"policy": policy})],
    }
    outlet, loop = run(ListSource(specs), ListInbox(script), max_num_seqs=2)
    loop.engine.check()
    assert sum(e.phase == "finished" for e in outlet.of(RequestEvent)) == 8


@pytest.mark.parametrize(
    "changes",
    [
        {"policy": "lpn"},
        {"block_size": 9},
        {"num_blocks": 33},
        {"num_blocks": 0},
        {"num_blocks": "9"},
        {"arrival_rate": 0},
        {"arrival_rate": "x"},
    ],
)
def test_what_cannot_be_changed_is_told_and_nothing_is(changes):
    outlet, loop = run(ListSource([request(0)]), ListInbox({0: [SetConfig(changes)]}))
    assert outlet.of(Notice)[0].level == "warning"
    assert not outlet.of(ConfigChanged)
    assert loop.source.rate == 1.0


def test_another_allocator_refuses_a_change_of_the_pool_size_in_one_line():
    outlet, _ = run(
        ListSource([request(0)]), ListInbox({0: [SetConfig({"num_blocks": 9})]}), allocator="contiguous-oracle",
        max_model_len=64,
    )  # fmt: skip
    assert outlet.of(Notice)[0].text == (
        "changing the pool size needs the paged allocator, this engine uses contiguous-oracle"
    )


def test_a_request_larger_than_the_limit_waits_paused_until_the_limit_is_raised():
    """13 prompt tokens take four blocks of four; the pool is held at three, then at four."""
    inbox = ListInbox({0: [SetConfig({"num_blocks": 3})]}, [[SetConfig({"num_blocks": 5}), Resume()]])
    outlet, loop = run(ListSource([request(0, prompt=13, out=2)]), inbox, num_blocks=8)
    paused = outlet.of(Paused)
    assert [event.reason for event in paused] == [
        "q0 needs 4 blocks and nothing else runs, the pool is limited to 3 of 8: raise its size"
    ]
    assert [event.changes for event in outlet.of(ConfigChanged)] == [{"num_blocks": 3}, {"num_blocks": 5}]
    assert [e.finish_reason for e in outlet.of(RequestEvent) if e.phase == "finished"] == ["length"]
    loop.engine.check()


def test_a_changed_arrival_rate_scales_what_is_still_to_come():
    source = PacedSource(ListSource([request(i, at_ns=i * 1000) for i in range(6)]))
    assert [spec.arrival_ns for spec in source.pop_due(1000)] == [0, 1000]
    source.set_rate(2.0, 1000)
    assert source.next_due() == 1500
    assert [spec.arrival_ns for spec in source.pop_due(2000)] == [1500, 2000]
    source.set_rate(0.5, 2000)
    assert source.next_due() == 4000
    assert [spec.arrival_ns for spec in source.pop_due(6000)] == [4000, 6000]
    assert source.exhausted
