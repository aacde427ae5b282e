"""The loop around the engine, in process: no pipe, no model, virtual time unless said otherwise."""

from __future__ import annotations

import time

import pytest
from run_fakes import ListInbox, ListOutlet, ListSource, pool_of, request

from kvtop.engine.api import Engine, EngineConfig, NullExecutor, RealClock, Recorder
from kvtop.engine.errors import KvtopError
from kvtop.engine.events import (
    Abort,
    Keyframe,
    Notice,
    Pause,
    Paused,
    RequestEvent,
    RequestKeyframe,
    Resume,
    Resumed,
    Stalled,
    Step,
    StepEvent,
    Stop,
)
from kvtop.engine.types import ExecuteResult, Plan
from kvtop.run.loop import FLUSH_STEPS, RunLoop
from kvtop.state.model import RunState
from kvtop.state.reduce import reduce

STEP_NS = 10_000_000


def make(source: ListSource, inbox: ListInbox | None = None, *, executor=None, clock=None, config=None, **options):
    values = {"num_blocks": 32, "block_size": 4, "max_batched_tokens": 64} | (config or {})
    engine = Engine(
        EngineConfig.from_mapping(values), executor or NullExecutor(STEP_NS), clock=clock, recorder=Recorder()
    )
    outlet = ListOutlet()
    return RunLoop(engine, source, [outlet], inbox or ListInbox(), **options), engine, outlet


def test_serves_everything_and_ends_complete() -> None:
    source = ListSource([request(i, at_ns=i * STEP_NS // 2) for i in range(10)])
    loop, engine, outlet = make(source)
    end = loop.run()
    assert (end.status, end.exit_code, end.error) == ("complete", 0, "")
    assert isinstance(outlet.events[0], Keyframe)
    assert [e.request_id for e in outlet.of(RequestEvent) if e.phase == "finished"] == [i for i, _ in source.finished]
    assert len(source.finished) == 10
    assert not engine.has_work


def test_virtual_time_jumps_to_the_next_arrival() -> None:
    source = ListSource([request(0), request(1, at_ns=3_600_000_000_000)])
    inbox = ListInbox()
    loop, _, outlet = make(source, inbox)
    loop.run()  # an hour goes by
    assert [e.t_start_ns for e in outlet.of(StepEvent)][-4] == 3_600_000_000_000
    assert inbox.waits == []


def test_real_time_sleeps_until_the_next_arrival() -> None:
    due_ns = 80_000_000

    class SleepingInbox(ListInbox):
        def wait(self, timeout_s: float | None) -> None:
            assert timeout_s is not None
            self.waits.append(timeout_s)
            time.sleep(timeout_s)

    inbox = SleepingInbox()
    loop, _, outlet = make(ListSource([request(0, at_ns=due_ns)]), inbox, clock=RealClock())
    assert loop.run().status == "complete"
    arrived = outlet.of(RequestEvent)[0]
    assert arrived.t_sched_ns == due_ns
    assert arrived.t_submit_ns >= due_ns
    assert len(inbox.waits) < 10, "sleeps, and does not spin"


def test_a_closed_loop_gets_its_next_turn_when_the_last_one_ended() -> None:
    def follow(request_id: str, now_ns: int):
        index = int(request_id[1:])
        return request(index + 1, at_ns=now_ns + STEP_NS) if index < 3 else None

    source = ListSource([request(0)], follow)
    loop, _, _ = make(source)
    assert loop.run().status == "complete"
    assert [i for i, _ in source.finished] == ["q0", "q1", "q2", "q3"]


def test_a_source_that_waits_for_nothing_is_a_stall_not_a_hang() -> None:
    source = ListSource([request(0)])
    source.waits_for_ever = True
    loop, _, outlet = make(source)
    end = loop.run()
    assert end.status == "failed"
    assert "stalled" in end.error
    assert len(outlet.of(Stalled)) == 1


def test_a_stall_names_the_request_and_the_numbers() -> None:
    loop, engine, outlet = make(ListSource([request(0, out=1), request(1, at_ns=5 * STEP_NS, prompt=24)]))
    engine.reset_prefix_cache()
    engine.allocator.pool.fault = lambda k: k > 2  # the third block of any allocation is refused
    end = loop.run()
    assert end.status == "failed"
    assert end.exit_code == 1
    assert "'q1'" in end.error
    assert "fault" in end.error
    assert "\n" not in end.error
    assert outlet.of(Stalled)[0].request_id == "q1"


def test_a_refused_request_is_recorded_and_the_rest_goes_on() -> None:
    source = ListSource([request(0), request(1, prompt=500), request(2)])
    loop, _, outlet = make(source)
    assert loop.run().status == "complete"
    rejected = [e for e in outlet.of(RequestEvent) if e.finish_reason == "rejected"]
    assert [e.request_id for e in rejected] == ["q1"]
    assert "500 tokens" in rejected[0].error
    assert sorted(i for i, _ in source.finished) == ["q0", "q1", "q2"]
    assert [n.level for n in outlet.of(Notice)] == ["warning"]


def test_max_seconds_ends_complete_and_leaves_the_rest_alive() -> None:
    loop, engine, outlet = make(ListSource([request(0, out=50)]), max_ns=10 * STEP_NS)
    end = loop.run()
    assert (end.status, end.t_ns) == ("complete", 10 * STEP_NS)
    assert len(outlet.of(StepEvent)) == 10
    assert engine.has_work


def test_max_seconds_also_ends_a_wait() -> None:
    loop, _, _ = make(ListSource([request(0, at_ns=10**15)]), max_ns=10**9)
    assert loop.run().t_ns == 10**9


def test_stop_is_interrupted() -> None:
    loop, _, outlet = make(ListSource([request(0, out=50)]), ListInbox({5: [Stop()]}))
    end = loop.run()
    assert (end.status, end.exit_code) == ("interrupted", 130)
    assert len(outlet.of(StepEvent)) == 5


def test_abort_ends_one_request() -> None:
    source = ListSource([request(0, out=50), request(1, out=8)])
    loop, _, outlet = make(source, ListInbox({3: [Abort("q0")]}))
    assert loop.run().status == "complete"
    reasons = {e.request_id: e.finish_reason for e in outlet.of(RequestEvent) if e.phase == "finished"}
    assert reasons == {"q0": "aborted", "q1": "length"}
    assert [i for i, _ in source.finished] == ["q0", "q1"]


def test_pause_step_and_resume() -> None:
    during_waits = [[Step(1)], [Step(3)], [Resume()]]
    loop, _, outlet = make(ListSource([request(0, out=10)]), ListInbox({2: [Pause()]}, during_waits))
    assert loop.run().status == "complete"
    kinds = [type(e).__name__ for e in outlet.events if isinstance(e, StepEvent | Paused | Resumed)]
    assert kinds == ["StepEvent"] * 2 + ["Paused"] + ["StepEvent"] * 4 + ["Resumed"] + ["StepEvent"] * 4


def test_paused_from_the_start_makes_no_step_until_asked() -> None:
    inbox = ListInbox(on_wait=[[], [Step(2)], [Stop()]])
    loop, _, outlet = make(ListSource([request(0, out=10)]), inbox, start_paused=True)
    assert loop.run().status == "interrupted"
    assert len(outlet.of(StepEvent)) == 2
    assert isinstance(outlet.events[1], Paused)


def test_while_paused_every_step_is_shown_at_once() -> None:
    inbox = ListInbox(on_wait=[[Step(3)], [Stop()]])
    loop, _, outlet = make(ListSource([request(0, out=10)]), inbox, start_paused=True)
    loop.run()
    steps_by_batch = outlet.batches[1:]
    assert len(steps_by_batch) == 3


def test_a_pause_costs_nobody_latency() -> None:
    class SlowUser(ListInbox):
        def wait(self, timeout_s: float | None) -> None:
            if timeout_s is None:
                time.sleep(0.3)
            super().wait(timeout_s)

    inbox = SlowUser({1: [Pause()]}, [[Resume()]])
    loop, _, outlet = make(ListSource([request(0, out=3)]), inbox, clock=RealClock())
    loop.run()
    done = [e for e in outlet.of(RequestEvent) if e.phase == "finished"]
    assert done[0].t_done_ns < 150_000_000


def test_a_keyframe_on_request_equals_the_fold_so_far() -> None:
    loop, _, outlet = make(ListSource([request(i, out=9) for i in range(4)]), ListInbox({6: [RequestKeyframe()]}))
    loop.run()
    late = [i for i, e in enumerate(outlet.events) if isinstance(e, Keyframe)][1]
    whole, fresh = RunState(), RunState()
    for event in outlet.events[:late]:
        reduce(whole, event)
    reduce(fresh, outlet.events[late])
    assert pool_of(whole).state == pool_of(fresh).state
    assert pool_of(whole).owners == pool_of(fresh).owners
    assert {i: s.table for i, s in whole.sequences.items()} == {i: s.table for i, s in fresh.sequences.items()}
    assert whole.totals["output_tokens"] == fresh.totals["output_tokens"] > 0


def test_no_keyframe_while_an_abort_waits_to_be_told() -> None:
    """Its frees would be in the keyframe and then once more in the step that reports them."""
    inbox = ListInbox({4: [Abort("q0"), RequestKeyframe()]})
    loop, _, outlet = make(ListSource([request(0, out=30), request(1, out=12)]), inbox)
    loop.run()
    late = [i for i, e in enumerate(outlet.events) if isinstance(e, Keyframe)][1]
    state = RunState()
    for event in outlet.events[late:]:
        reduce(state, event)
    assert pool_of(state).counts[2] == 0, "nothing is used at the end"
    assert min(pool_of(state).refcount) == 0
    told = [e.request_id for e in outlet.events[:late] if isinstance(e, RequestEvent) and e.phase == "finished"]
    assert told == ["q0"]


def test_frames_leave_in_batches() -> None:
    loop, _, outlet = make(ListSource([request(0, out=100)]))
    loop.run()
    assert max(outlet.batches) <= FLUSH_STEPS + 5
    assert len(outlet.batches) < 30


def test_an_outlet_that_asks_gets_its_keyframe() -> None:
    loop, _, outlet = make(ListSource([request(0, out=100)]))
    outlet.ask = True
    loop.run()
    assert len(outlet.of(Keyframe)) == 2


class BrokenExecutor(NullExecutor):
    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error, self.steps = error, 0

    def execute(self, plan: Plan) -> ExecuteResult:
        self.steps += 1
        if self.steps > 3:
            raise self.error
        return super().execute(plan)


def test_an_exception_of_the_engine_is_one_line_and_a_traceback() -> None:
    loop, _, outlet = make(ListSource([request(0)]), executor=BrokenExecutor(RuntimeError("out of\nmemory")))
    end = loop.run()
    assert (end.status, end.exit_code, end.error) == ("failed", 1, "RuntimeError: out of memory")
    assert "BrokenExecutor" in end.traceback or "execute" in end.traceback
    assert len(outlet.of(StepEvent)) == 4, "what was done before is told, and what the failed step had decided"


def test_an_error_of_ours_needs_no_traceback() -> None:
    loop, _, _ = make(ListSource([request(0)]), executor=BrokenExecutor(KvtopError("the pool is too small")))
    end = loop.run()
    assert (end.error, end.traceback) == ("the pool is too small", "")


def test_no_memory_says_what_to_make_smaller_and_keeps_the_traceback() -> None:
    loop, _, _ = make(ListSource([request(0)]), executor=BrokenExecutor(MemoryError()))
    end = loop.run()
    assert (end.status, end.exit_code) == ("failed", 1)
    assert end.error == "out of memory: try fewer blocks (--num-blocks) or requests (--limit)"
    assert "MemoryError" in end.traceback


def test_an_outlet_that_fails_ends_the_run_and_the_others_see_all() -> None:
    class Full(ListOutlet):
        def send(self, events) -> None:
            if any(isinstance(event, StepEvent) for event in events):
                raise KvtopError("disk is full")

    loop, _, outlet = make(ListSource([request(0, out=100)]))
    loop.outlets = [outlet, Full()]
    end = loop.run()
    assert (end.status, end.error) == ("failed", "disk is full")
    assert outlet.of(StepEvent)


@pytest.mark.parametrize("count", [0, -1])
def test_a_step_count_below_one_is_ignored(count: int) -> None:
    inbox = ListInbox(on_wait=[[Step(count)], [Stop()]])
    loop, _, outlet = make(ListSource([request(0)]), inbox, start_paused=True)
    loop.run()
    assert not outlet.of(StepEvent)


def test_a_single_step_while_nothing_is_due_goes_to_the_next_arrival() -> None:
    far_ns = 3600 * 10**9
    inbox = ListInbox(on_wait=[[Step(1)], [Stop()]])
    loop, _, outlet = make(ListSource([request(0, at_ns=far_ns)]), inbox, clock=RealClock(), start_paused=True)
    end = loop.run()
    assert end.status == "interrupted"
    (event,) = [e for e in outlet.of(StepEvent) if e.prefill_tokens]
    assert event.t_start_ns >= far_ns
