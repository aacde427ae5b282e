"""When requests are handed over: lateness of the loop's own is measured, told, and never hidden in a latency."""

from __future__ import annotations

import time
from typing import Any

import pytest
from run_fakes import ListInbox, ListOutlet, ListSource, request

from kvtop.analysis.load_rates import load_of, same_load
from kvtop.analysis.stats import percentile
from kvtop.engine.api import Engine, EngineConfig, NullExecutor, RealClock, Recorder, VirtualClock
from kvtop.engine.events import Notice, RequestEvent
from kvtop.engine.types import ExecuteResult, Plan, RequestSpec
from kvtop.run.loop import RunLoop
from kvtop.run.pacing import DEGRADED_NS, Pacing
from kvtop.workloads.generators.registry import generate
from kvtop.workloads.replay import ReplaySource
from kvtop.workloads.tokens import TokenMaker

MS = 1_000_000
S = 1_000_000_000


class ManualClock(VirtualClock):
    """Time that a test moves, to a loop that takes it for real."""

    virtual = False


class Inbox(ListInbox):
    """Waiting takes as long as it was asked to."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__()
        self.clock = clock

    def wait(self, timeout_s: float | None) -> None:
        assert timeout_s is not None
        self.clock.skip(max(1, round(timeout_s * 1e9)))


class Executor(NullExecutor):
    def __init__(self, clock: ManualClock, step_ns: int) -> None:
        super().__init__(step_ns)
        self.clock, self.step_ns = clock, step_ns

    def execute(self, plan: Plan) -> ExecuteResult:
        self.clock.skip(self.step_ns)
        return super().execute(plan)


class Stalling(ListOutlet):
    """Reading events takes ``stalls[k]`` the first time that the clock is past ``k``."""

    def __init__(self, clock: ManualClock, stalls: dict[int, int]) -> None:
        super().__init__()
        self.clock, self.stalls = clock, dict(sorted(stalls.items()))

    def flush(self) -> bool:
        while self.stalls and self.clock.now_ns() >= next(iter(self.stalls)):
            self.clock.skip(self.stalls.pop(next(iter(self.stalls))))
        return True


def run(
    specs: list[RequestSpec], *, step_ns: int = MS, stalls: dict[int, int] | None = None, send_ns: int = 0,
    max_ns: int | None = None, num_blocks: int = 4096,
) -> tuple[RunLoop, list[RequestEvent], ListOutlet]:  # fmt: skip
    clock = ManualClock()
    config = EngineConfig(num_blocks=num_blocks, block_size=4, max_num_seqs=64, max_batched_tokens=4096)
    engine = Engine(config, Executor(clock, step_ns), clock=clock, recorder=Recorder())
    if send_ns:
        submit = engine.submit_spec

        def slow(spec: RequestSpec) -> str:
            clock.skip(send_ns)
            return submit(spec)

        engine.submit_spec = slow  # type: ignore[method-assign]
    outlet = Stalling(clock, stalls or {})
    loop = RunLoop(engine, ListSource(specs), [outlet], Inbox(clock), max_ns=max_ns)
    assert loop.run().status == "complete"
    ended = [e for e in outlet.of(RequestEvent) if e.phase == "finished"]
    return loop, sorted(ended, key=lambda e: e.t_sched_ns), outlet


def every(gap_ns: int, count: int, out: int = 1) -> list[RequestSpec]:
    return [request(i, at_ns=i * gap_ns, prompt=3, out=out) for i in range(count)]


def lags(ended: list[RequestEvent]) -> list[int]:
    return [e.t_submit_ns - e.t_sched_ns for e in ended]


def rows_of(ended: list[RequestEvent]) -> list[dict[str, Any]]:
    return [
        {"t_sched_ns": e.t_sched_ns, "t_submit_ns": e.t_submit_ns, "lag_ns": e.t_submit_ns - e.t_sched_ns}
        for e in ended
    ]


def warnings(outlet: ListOutlet) -> list[str]:
    return [notice.text for notice in outlet.of(Notice) if notice.level == "warning"]


def test_sends_that_cost_time_do_not_make_the_schedule_slip():
    """200 a second, each of which costs 0.3 ms and a step of 1 ms: relative sleeps would give 159 a second."""
    loop, ended, outlet = run(every(5 * MS, 2_000), send_ns=300_000)
    assert [e.t_sched_ns for e in ended] == [i * 5 * MS for i in range(2_000)]
    load = load_of(rows_of(ended), None, "open")
    assert load.offered_s == pytest.approx(200)
    assert load.realised_s == pytest.approx(200, rel=0.005)
    assert load.lag.mean == pytest.approx(300_000)
    assert not loop.pacing.degraded
    assert warnings(outlet) == []


def test_a_request_waits_for_the_step_that_runs_and_that_is_no_lateness_of_the_loop():
    loop, ended, _ = run(every(7 * MS, 50, out=20), step_ns=40 * MS)
    assert max(lags(ended)) > 30 * MS, "due within a step, handed over after it"
    assert loop.pacing.lag_p99_ns == 0
    assert loop.pacing.facts() == {"loop_lag_p99_ns": 0, "generator_degraded": False, "backlog_requests": 0}


def test_a_stall_is_in_the_lag_and_in_the_latencies_of_those_that_were_due_meanwhile():
    """Ten a second, and two seconds in which nothing is sent."""
    calm = run(every(100 * MS, 100))[1]
    loop, ended, outlet = run(every(100 * MS, 100), stalls={5 * S: 2 * S})
    late = [lag for lag in lags(ended) if lag > MS]
    assert len(late) in (19, 20, 21)
    assert max(late) == pytest.approx(2 * S, abs=110 * MS)
    assert sorted(late)[0] < 110 * MS
    ttft = [sorted((e.t_first_token_ns or 0) - e.t_sched_ns for e in rows) for rows in (calm, ended)]
    assert percentile(ttft[0], 99) == pytest.approx(MS, rel=0.1)
    assert (percentile(ttft[1], 99) or 0) > 1.8 * S
    assert loop.pacing.degraded
    assert any("generator degraded" in text for text in warnings(outlet))


def test_a_loop_that_is_blocked_half_of_the_time_does_not_pass_for_clean():
    """50 ms in every 100: what is due meanwhile is up to 50 ms late."""
    stalls = {k * 100 * MS: 50 * MS for k in range(1, 40)}
    loop, ended, outlet = run(every(10 * MS, 400), stalls=stalls)
    p99 = percentile(sorted(lags(ended)), 99) or 0
    assert 40 * MS < p99 <= 52 * MS
    assert loop.pacing.lag_p99_ns == pytest.approx(p99, abs=3 * MS)
    assert loop.pacing.facts()["generator_degraded"] is True
    (told,) = warnings(outlet)
    assert "p99 4" in told or "p99 5" in told
    assert "400" in told


def test_a_constant_delay_is_a_lag_and_not_0():
    class Delayed(ListSource):
        """Everything 300 ms after it was due."""

        def next_due(self) -> int | None:
            due = super().next_due()
            return None if due is None else due + 300 * MS

        def pop_due(self, now_ns: int) -> list[RequestSpec]:
            return super().pop_due(now_ns - 300 * MS)

    clock = ManualClock()
    config = EngineConfig(num_blocks=64, block_size=4)
    engine = Engine(config, Executor(clock, MS), clock=clock, recorder=Recorder())
    outlet = ListOutlet()
    loop = RunLoop(engine, Delayed(every(50 * MS, 40)), [outlet], Inbox(clock))
    assert loop.run().status == "complete"
    ended = [e for e in outlet.of(RequestEvent) if e.phase == "finished"]
    assert set(lags(ended)) == {300 * MS}
    assert loop.pacing.lag_p99_ns == 300 * MS
    assert loop.pacing.degraded


def test_what_comes_before_the_first_arrival_is_nobodys_latency():
    """Five seconds until the first request is due: the schedule and the rates begin with it."""
    _, ended, _ = run([request(i, at_ns=5 * S + i * 100 * MS, out=1) for i in range(100)])
    assert max(lags(ended)) == 0
    assert load_of(rows_of(ended), None, "open").offered_s == pytest.approx(10)


def test_a_bound_on_time_holds_and_the_backlog_is_told():
    """A second for each step, a request every 100 ms: after ten seconds most are still waiting."""
    loop, ended, outlet = run(every(100 * MS, 600, out=3), step_ns=S, max_ns=10 * S, num_blocks=8)
    assert loop.engine.clock.now_ns() <= 11 * S
    arrived = [e for e in outlet.of(RequestEvent) if e.phase == "arrived"]
    assert len(arrived) - len(ended) == loop.pacing.num_open > 50
    assert loop.pacing.facts()["backlog_requests"] == loop.pacing.num_open
    assert warnings(outlet) == [f"ended after 10 s with a backlog: {loop.pacing.num_open:,} requests had not finished"]


def test_a_clock_set_back_by_an_hour_changes_no_duration(monkeypatch: pytest.MonkeyPatch):
    wall, back_s = time.time, 0
    monkeypatch.setattr(time, "time", lambda: wall() - back_s)

    class Sleeping(ListInbox):
        def wait(self, timeout_s: float | None) -> None:
            nonlocal back_s
            assert timeout_s is not None
            time.sleep(timeout_s)
            self.waits.append(timeout_s)
            back_s = 3600 if len(self.waits) > 3 else 0

    engine = Engine(EngineConfig(num_blocks=64, block_size=4), NullExecutor(MS), clock=RealClock(), recorder=Recorder())
    outlet = ListOutlet()
    RunLoop(engine, ListSource(every(10 * MS, 10, out=3)), [outlet], Sleeping()).run()
    ended = [e for e in outlet.of(RequestEvent) if e.phase == "finished"]
    assert len(ended) == 10
    for e in ended:
        times = [e.t_sched_ns, e.t_submit_ns, e.t_first_sched_ns, e.t_first_token_ns, e.t_last_token_ns, e.t_done_ns]
        known = [t for t in times if t is not None]
        assert known == sorted(known)
        assert known[-1] - known[0] < 60 * S


def test_lateness_is_counted_from_when_the_engine_was_free():
    pacing = Pacing()
    assert pacing.lag_p99_ns is None
    assert not pacing.degraded
    pacing.asked(10)
    pacing.step_done(100)
    pacing.asked(107)
    pacing.submitted(40, 107)  # due within the step: 7 late
    pacing.submitted(120, 125)  # due after it: 5 late
    pacing.submitted(130, 130)
    assert pacing.lag_p99_ns == 7
    pacing.submitted(9, 109)  # the source might have told it when it was asked before
    assert pacing.lag_p99_ns == round(7 + 0.97 * 93)
    pacing.submitted(0, 100 + 200 * DEGRADED_NS)
    assert pacing.degraded


# -- closed loops --------------------------------------------------------------------------------------------------


def closed_loop(think: object, *, users: int = 8, num_requests: int = 160, ramp_s: float = 0.0):
    """Users of the null engine: an answer of four tokens takes four steps of half a second."""
    arrivals = {"kind": "closed", "users": users, "think_s": think, "ramp_s": ramp_s}
    spec = {"arrivals": arrivals, "num_requests": num_requests, "user_prompt_tokens": 4, "output_tokens": 4}
    rows = generate("synthetic", spec, 0).rows
    engine = Engine(
        EngineConfig(num_blocks=4096, block_size=4, max_num_seqs=64), NullExecutor(S // 2), recorder=Recorder()
    )
    outlet = ListOutlet()
    loop = RunLoop(engine, ReplaySource(rows, TokenMaker(0, 1000)), [outlet], ListInbox())
    assert loop.run().status == "complete"
    return {e.request_id: e for e in outlet.of(RequestEvent) if e.phase == "finished"}


def test_a_users_cycle_is_service_and_think_time_and_the_load_is_users_by_cycle():
    """N = 8 users, S = 2 s, T = 6 s, begun evenly over a cycle: one request a second."""
    ended = closed_loop(6.0, ramp_s=8.0)
    cycles = [e.t_sched_ns - ended[e.parent_request_id].t_sched_ns for e in ended.values() if e.parent_request_id]
    assert len(cycles) == 152
    assert set(cycles) == {8 * S}
    load = load_of(rows_of(list(ended.values())), None, "closed")
    assert load.offered_s == pytest.approx(8 / (6 + 2))
    assert load.closed_loop is True


def test_the_same_mean_think_time_is_not_the_same_load_and_is_not_called_so():
    """Service under batching is the same for all, so what differs is the spread of the think times alone."""
    fixed = load_of(rows_of(list(closed_loop(6.0).values())), None, "closed")
    spread = load_of(
        rows_of(list(closed_loop({"kind": "lognormal", "mean": 6.0, "std": 12.0}).values())), None, "closed"
    )
    assert fixed.realised_s is not None
    assert spread.realised_s is not None
    assert abs(spread.realised_s / fixed.realised_s - 1) > 0.01
    assert same_load(fixed, spread) is False
    assert same_load(fixed, fixed) is True
