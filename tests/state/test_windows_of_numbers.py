"""Block-seconds, lookups and queue times of the folded state against sums made the slow way."""

from __future__ import annotations

import pickle
import random
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from kvtop.analysis.stats import percentile
from kvtop.engine.api import Engine, EngineConfig, NullExecutor, SamplingParams
from kvtop.engine.events import Event, RequestEvent, StepEvent
from kvtop.engine.recorder import Recorder
from kvtop.engine.types import RequestSpec
from kvtop.results.recording import read_frames
from kvtop.state.model import RunState
from kvtop.state.reduce import MOST_TENANTS, reduce
from kvtop.state.samples import Lookups, Samples
from kvtop.state.windows import Summary, holders, recent_rate, recent_steps, summarise

FRAMES = Path(__file__).parents[1] / "tui" / "data" / "frames.msgpack.zst"


@cache
def recorded() -> tuple[Event, ...]:
    return tuple(event for events in read_frames(FRAMES) for event in events)


@cache
def state_at_the_end() -> RunState:
    state = RunState()
    for event in recorded():
        reduce(state, event)
    return state


def test_block_seconds_are_blocks_held_from_step_to_step():
    state, sums, since_ns = RunState(), {}, 0
    for event in recorded():
        if isinstance(event, StepEvent):
            for name, seq in state.sequences.items():
                sums[name] = sums.get(name, 0) + len(seq.held) * (event.t_start_ns - since_ns)
            since_ns = event.t_start_ns
        reduce(state, event)
        assert all(seq.num_held == len(seq.held) for seq in state.sequences.values())
    assert state.sequences
    for name, seq in state.sequences.items():
        assert seq.block_ns(since_ns) == sums.get(name, 0), name
    assert any(seq.num_preemptions for seq in state.sequences.values())


def test_block_seconds_of_sequences_that_ended_are_charged_to_their_tenant():
    state = state_at_the_end()
    live = sum(seq.block_ns(state.t_ns) for seq in state.sequences.values())
    held = sum(e.used_blocks * (f.t_start_ns - e.t_start_ns) for e, f in zip(steps(), steps()[1:], strict=False))
    assert list(state.tenant_block_ns) == [""]
    # Every block counts once for each of its owners: never less than the pool's own use.
    assert state.tenant_block_ns[""] + live >= held


def steps() -> list[StepEvent]:
    return [event for event in recorded() if isinstance(event, StepEvent)]


def test_lookups_and_queue_times_are_those_of_the_requests_themselves():
    state = state_at_the_end()
    ended = {e.request_id: e for e in recorded() if isinstance(e, RequestEvent) and e.phase == "finished"}
    found = {name: (prompt, hit, reason) for _, prompt, hit, reason, name in state.lookups.points}
    assert ended
    for name, event in ended.items():
        assert found[name] == (event.prompt_tokens, event.hit_tokens, event.miss_reason)
    waits = sorted(value for _, value, _ in state.queue.points)
    own = [e.t_first_sched_ns - e.t_submit_ns for e in ended.values() if e.t_first_sched_ns is not None]
    assert len(waits) == len(state.lookups.points)
    assert all(any(wait == pytest.approx(value) for value in waits) for wait in own)


def test_sums_over_the_window_of_lookups_are_those_of_what_is_in_it():
    lookups = Lookups()
    rng = random.Random(3)
    for i in range(400):
        prompt = rng.randint(1, 50)
        lookups.add(i * 1_000_000_000, prompt, rng.randint(0, prompt), rng.choice(["evicted", "never_seen"]), f"r{i}")
        inside = list(lookups.points)
        assert inside[0][0] >= (i - 60) * 1_000_000_000
        assert lookups.prompt_tokens == sum(p for _, p, _, _, _ in inside)
        assert lookups.found_tokens == sum(f for _, _, f, _, _ in inside)
        assert lookups.num_with_hits == sum(f > 0 for _, _, f, _, _ in inside)
        for reason in ("evicted", "never_seen"):
            assert lookups.missed.get(reason, 0) == sum(p - f for _, p, f, r, _ in inside if r == reason)


def test_percentiles_kept_from_sample_to_sample_are_those_of_the_window_sorted_anew():
    samples, rng = Samples(), random.Random(5)
    for i in range(3_000):
        value = rng.choice([rng.randint(0, 9), rng.randint(0, 10**12)])  # some of them again and again
        samples.add(i * 50_000_000, value, rng.randint(1, 3))
        if (i < 1_000 and i % 100) or i % 7:  # before the first look there is nothing to keep
            continue
        inside = sorted(value for _, value, count in samples.points for _ in range(count))
        found = summarise(samples)
        assert (found.n, found.peak) == (len(inside), inside[-1])
        for q, value in ((50, found.p50), (95, found.p95), (99, found.p99)):
            assert value == percentile(inside, q)
        assert summarise(pickle.loads(pickle.dumps(samples))) == found
    assert len(samples.points) == 1_201  # 60 s, both ends included
    samples.expire(10**18)
    assert summarise(samples) == Summary()


def test_rates_and_recent_steps_are_those_of_the_steps_in_the_window():
    state = state_at_the_end()
    rows = list(zip(state.history.t_ns, state.history.decode_tokens, strict=True))
    for now_ns in (rows[0][0], rows[len(rows) // 2][0], state.t_ns, state.t_ns + 3 * 10**9):
        for span_ns in (10**8, 10**9, 5 * 10**9):
            inside = [tokens for t_ns, tokens in rows if t_ns > now_ns - min(span_ns, now_ns)]
            rate = sum(inside) * 1e9 / min(span_ns, now_ns)
            assert recent_rate(state.history, state.history.decode_tokens, now_ns, span_ns) == rate
            inside = [tokens for t_ns, tokens in rows if t_ns > now_ns - span_ns]
            assert recent_steps(state.history, now_ns, span_ns) == len(inside)


def test_the_top_holders_are_those_of_all_of_them_sorted():
    state = state_at_the_end()
    costs = Counter()
    for seq in state.sequences.values():
        costs[seq.request_id] += seq.block_ns(state.t_ns)
    expected = sorted(costs, key=lambda name: (-costs[name], name))[:7]
    assert [holder.name for holder in holders(state, 7)] == expected


def test_tenants_that_clients_make_up_do_not_pile_up() -> None:
    """A name for each request, as a client may choose: who cost least is forgotten, who cost most is kept."""
    recorder, state = Recorder(), RunState()
    config = EngineConfig(num_blocks=64, block_size=4, max_num_seqs=8, max_model_len=64)
    engine = Engine(config, NullExecutor(), recorder=recorder)
    reduce(state, engine.keyframe())
    engine.submit_spec(RequestSpec(list(range(40)), SamplingParams(max_tokens=20), tenant="large"))
    for i in range(MOST_TENANTS + 100):
        engine.submit_spec(RequestSpec([1, 2, 3, i], SamplingParams(max_tokens=1), tenant=f"user {i}"))
    engine.run()
    for event in recorder.drain():
        reduce(state, event)
    assert len(state.tenant_block_ns) <= MOST_TENANTS
    assert max(state.tenant_block_ns, key=lambda name: state.tenant_block_ns[name]) == "large"
