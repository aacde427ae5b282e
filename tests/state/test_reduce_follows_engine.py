"""The folded state against the engine itself: random workloads, compared after every step."""

from __future__ import annotations

import random
from collections.abc import Iterator

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtop.engine.api import Engine, EngineConfig, InvalidRequest, NullExecutor, Recorder, SamplingParams, VirtualClock
from kvtop.engine.events import AnyEvent, Event, StepEvent
from kvtop.engine.types import FinishReason
from kvtop.state.blocks import BLOCK_FOLDS
from kvtop.state.model import FRESH, IDLE, IN_TRANSFER, USED, WITHHELD, RunState
from kvtop.state.reduce import reduce

STATE_NAMES = {FRESH: "fresh", IDLE: "idle", USED: "used", IN_TRANSFER: "in_transfer", WITHHELD: "withheld"}
_roundtrip = msgspec.msgpack.Decoder(list[AnyEvent])


def over_the_wire(events: list[Event]) -> list[Event]:
    """What a reader gets: tuples have become what msgpack makes of them."""
    return list(_roundtrip.decode(msgspec.msgpack.encode(events)))


class Driver:
    """A random run of a real engine: submissions, aborts, forks, pins, resets, all from one seed."""

    def __init__(self, seed: int, *, calm: bool = False, beams: bool = False, **config: object) -> None:
        self.calm = calm  # only submissions
        self.beams = beams
        self.rng = random.Random(seed)
        base = {"num_blocks": 12, "block_size": 4, "max_num_seqs": 6, "max_batched_tokens": 16}
        self.engine = Engine(
            EngineConfig(**(base | config)),  # type: ignore[arg-type]
            NullExecutor(token_fn=lambda rid, branch, i: 7 + i % 3),
            clock=VirtualClock(),
            recorder=Recorder(),
        )
        self.shared = [self.rng.randrange(50) for _ in range(24)]
        self.num_submitted = 0
        self.pinned: list[int] = []

    def steps(self, count: int) -> Iterator[list[Event]]:
        """Events of one step at a time; what happens between steps is drained with the step after it."""
        for _ in range(count):
            for _ in range(self.rng.choice((0, 0, 1, 2))):
                self.disturb()
            self.engine.step()
            self.engine.check()
            yield over_the_wire(self.engine.recorder.drain())

    def params(self) -> SamplingParams:
        """Beams only where asked for: the other runs keep their course."""
        most, n = self.rng.randrange(1, 14), self.rng.choice((1, 1, 1, 2, 3))
        if not self.beams or self.rng.random() < 0.4:
            return SamplingParams(max_tokens=most, n=n)
        stops = self.rng.choice(((), tuple(range(1000, 1020))))
        return SamplingParams(max_tokens=most, n=n, num_beams=self.rng.randrange(max(n, 2), 5), stop_token_ids=stops)

    def disturb(self) -> None:
        rng, engine = self.rng, self.engine
        live = list(engine._sequences)
        what = rng.choices(
            ("submit", "abort", "fork", "pin", "unpin", "reset", "evict", "size"),
            (10, 1.5, 1, 0.5, 0.7, 0.3, 0.5, 0.6),
        )[0]
        if self.calm and what != "submit":
            return
        try:
            if what == "submit":
                prompt = self.shared[: rng.randrange(1, 24)] + [rng.randrange(50) for _ in range(rng.randrange(8))]
                self.num_submitted += 1
                engine.submit(
                    prompt,
                    self.params(),
                    request_id=f"q{self.num_submitted}",
                    priority=rng.choice((0, 0, 1)),
                )
            elif what == "abort" and live:
                engine.abort(rng.choice(live))
            elif what == "fork" and live:
                engine.fork(rng.choice(live), rng.choice((2, 3)))
            elif what == "pin" and len(self.pinned) < 3 and engine.config.allocator == "paged":
                block = rng.randrange(engine.config.num_blocks)
                if engine.block(block).state.value in ("used", "idle"):
                    engine.pin(block)
                    self.pinned.append(block)
            elif what == "unpin" and self.pinned:
                engine.unpin(self.pinned.pop(rng.randrange(len(self.pinned))))
            elif what == "reset" and engine.config.allocator == "paged":
                engine.reset_prefix_cache()
            elif what == "evict" and engine.config.allocator == "paged":
                engine.evict(rng.randrange(engine.config.num_blocks))
            elif what == "size" and engine.config.allocator == "paged":
                most = engine.config.num_blocks
                engine.set_pool_size(rng.choice((most, rng.randint(max(1, most // 2), most))))
        except InvalidRequest:
            pass


def assert_equal(state: RunState, engine: Engine, where: str, *, dated: bool = False) -> None:
    """Everything a reader sees. ``dated``: also when blocks were last used, which is exact only without aborts:

    the engine dates what happens between two steps with the step before it, the log with the one after.
    """
    pool = state.pool
    assert pool is not None
    for b in range(engine.config.num_blocks):
        view = engine.block(b)
        got = (
            STATE_NAMES[pool.state[b]], pool.refcount[b], sorted(pool.owners[b]), pool.filled[b], pool.pins[b],
            pool.key[b], pool.uses[b],
        )  # fmt: skip
        want = (
            view.state.value, view.refcount, sorted(view.owners), view.tokens_filled, view.pins, view.published_key,
            view.uses,
        )  # fmt: skip
        assert got == want, f"{where}, block {b}"
        if dated:
            assert pool.last_use_step[b] == view.last_use_step, f"{where}, block {b}"
    assert set(state.sequences) == set(engine._sequences), where
    for seq_id, seq in state.sequences.items():
        view = engine.request(seq_id)
        tables = tuple(tuple(t) for t in seq.tables)
        assert tables == view.block_tables or not (any(tables) or any(view.block_tables)), f"{where}, {seq_id}"
        got = (
            tuple(seq.table), seq.state, seq.num_prompt, seq.num_tokens, seq.num_computed, seq.cached_tokens,
            seq.num_preemptions, seq.t_first_token_ns, seq.t_last_token_ns,
        )  # fmt: skip
        want = (
            view.block_table, view.state.value, len(view.prompt), len(view.prompt) + len(view.output),
            view.num_computed, view.cached_tokens, view.preemptions, view.times.t_first_token_ns,
            view.times.t_last_token_ns,
        )  # fmt: skip
        assert got == want, f"{where}, {seq_id}"
        reason, blocker = state.wait_reason(seq)
        assert (reason, blocker) == (view.wait_reason or "", view.wait_blocker or ""), f"{where}, {seq_id}"
    totals = engine.counters()
    assert pool.counts == [totals.fresh, totals.idle, totals.used, totals.in_transfer, totals.withheld], where
    assert pool.limit == engine.allocator.pool.limit.size, where
    for name in (
        "query_tokens", "hit_tokens", "preemptions", "evictions", "copies", "restored_tokens", "recomputed_tokens",
        "computed_tokens", "host_used", "host_cached", "host_hit_tokens",
    ):  # fmt: skip
        assert state.totals.get(name, 0) == getattr(totals, name), f"{where}, {name}"


CONFIGS = {
    "paged": {},
    "tight": {"num_blocks": 7, "max_num_seqs": 4},
    "deferred": {"deferred_free_steps": 2, "num_blocks": 9},
    "no cache": {"prefix_caching": False},
    "contiguous": {"allocator": "contiguous-max", "max_model_len": 16, "num_blocks": 13},
    "pow2": {"allocator": "contiguous-pow2", "max_model_len": 33, "num_blocks": 16},
    "oracle": {"allocator": "contiguous-oracle", "max_model_len": 33, "num_blocks": 13},
    "swap": {"preemption": "swap", "host_blocks": 8, "num_blocks": 8},
    "host tier": {"host_cache_blocks": 6, "num_blocks": 8},
    "host tier and swap": {"host_cache_blocks": 5, "preemption": "swap", "host_blocks": 8, "num_blocks": 8},
    "lpm": {"policy": "lpm"},
    "whole prompts": {"chunked_prefill": False, "max_batched_tokens": 64, "num_blocks": 10},
    "block size 1": {"block_size": 1, "num_blocks": 40},
    "window": {"kv_groups": (8,), "max_model_len": 40, "num_blocks": 9},
    "two groups": {"kv_groups": (None, 6), "num_blocks": 16, "deferred_free_steps": 1},
    "three groups": {"kv_groups": (5, None, 9), "block_size": 2, "num_blocks": 40},
    "windows and swap": {"kv_groups": (None, 6), "preemption": "swap", "host_blocks": 8, "num_blocks": 11},
    "beams": {"beams": True},
    "tight beams": {"beams": True, "num_blocks": 7, "max_num_seqs": 4, "prefix_caching": False},
    "deferred beams": {"beams": True, "deferred_free_steps": 2, "num_blocks": 9},
    "contiguous beams": {"beams": True, "allocator": "contiguous-oracle", "max_model_len": 33, "num_blocks": 17},
    "beams and swap": {"beams": True, "preemption": "swap", "host_blocks": 8, "num_blocks": 8},
    "beams and windows": {"beams": True, "kv_groups": (None, 6), "num_blocks": 16},
}


@pytest.mark.parametrize("name", CONFIGS)
@settings(max_examples=12, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10_000))
def test_folding_gives_the_pool_and_tables_of_the_engine(name: str, seed: int) -> None:
    driver = Driver(seed, **CONFIGS[name])
    state = reduce(RunState(), driver.engine.keyframe())
    for number, events in enumerate(driver.steps(60)):
        for event in events:
            reduce(state, event)
        assert_equal(state, driver.engine, f"seed {seed}, step {number}")


@settings(max_examples=12, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10_000))
def test_blocks_carry_the_step_of_their_last_use(seed: int) -> None:
    driver = Driver(seed, calm=True)
    state = reduce(RunState(), driver.engine.keyframe())
    for number, events in enumerate(driver.steps(60)):
        for event in events:
            reduce(state, event)
        assert_equal(state, driver.engine, f"seed {seed}, step {number}", dated=True)


FROM_THE_MIDDLE = [
    *list(CONFIGS)[:5],
    "swap",
    "host tier",
    "two groups",
    "windows and swap",
    "tight beams",
    "beams and swap",
]


@pytest.mark.parametrize("name", FROM_THE_MIDDLE)
@settings(max_examples=8, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10_000))
def test_keyframes_on_the_way_take_nothing_that_they_do_not_carry(name: str, seed: int) -> None:
    """Who published a block, for whom, since when it holds what it holds."""
    driver = Driver(seed, **CONFIGS[name])
    plain, often = (reduce(RunState(), driver.engine.keyframe()) for _ in range(2))
    for number, events in enumerate(driver.steps(60)):
        for event in events:
            reduce(plain, event)
            reduce(often, event)
        if number % 3 == 0:
            reduce(often, over_the_wire([driver.engine.keyframe()])[0])
        assert plain.pool is not None
        assert often.pool is not None
        for b in range(plain.pool.num_blocks):
            where = f"step {number}, block {b}"
            if plain.pool.key[b] is not None:
                assert often.pool.publisher[b] == plain.pool.publisher[b] != "", where
                assert often.pool.tenant[b] == plain.pool.tenant[b], where
            if plain.pool.key[b] is not None or plain.pool.owners[b]:
                assert often.pool.since_step[b] == plain.pool.since_step[b], where


@pytest.mark.parametrize("name", FROM_THE_MIDDLE)
@settings(max_examples=8, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10_000), cut=st.integers(1, 40))
def test_folding_from_a_keyframe_in_the_middle_gives_the_same_state(name: str, seed: int, cut: int) -> None:
    driver = Driver(seed, **CONFIGS[name])
    whole, late = reduce(RunState(), driver.engine.keyframe()), RunState()
    for number, events in enumerate(driver.steps(60)):
        for event in events:
            reduce(whole, event)
            if number > cut:
                reduce(late, event)
        if number == cut:
            reduce(late, over_the_wire([driver.engine.keyframe()])[0])
        if number > cut:
            assert late.pool is not None
            assert whole.pool is not None
            assert late.pool.state == whole.pool.state
            assert late.pool.refcount == whole.pool.refcount
            assert late.pool.filled == whole.pool.filled
            assert [sorted(o) for o in late.pool.owners] == [sorted(o) for o in whole.pool.owners]
            assert late.pool.key == whole.pool.key
            assert late.pool.counts == whole.pool.counts
            assert late.pool.limit == whole.pool.limit
            tables = {i: s.tables if s.table else [] for i, s in late.sequences.items()}
            assert tables == {i: s.tables if s.table else [] for i, s in whole.sequences.items()}
            assert {n: late.totals[n] for n in ("hit_tokens", "evictions", "preemptions", "restored_tokens")} == {
                n: whole.totals[n] for n in ("hit_tokens", "evictions", "preemptions", "restored_tokens")
            }


@pytest.mark.parametrize("caching", [True, False])
def test_a_branch_that_finds_no_seat_and_one_before_the_next_step_is_folded_as_the_engine_has_it(caching: bool) -> None:
    """Two seats: a's branch waits until b is aborted, which happens before the step that tells of both."""
    driver = Driver(0, max_num_seqs=2, prefix_caching=caching)
    engine = driver.engine
    state = reduce(RunState(), engine.keyframe())
    engine.submit([1, 2, 3, 4, 5, 6], SamplingParams(max_tokens=8), request_id="a")
    engine.submit([11, 12, 13], SamplingParams(max_tokens=8), request_id="b")
    engine.step()
    engine.step()
    engine.fork("a", 2)
    engine.abort("b")
    engine.step()
    for event in over_the_wire(engine.recorder.drain()):
        reduce(state, event)
    assert_equal(state, engine, "after the fork")
    assert engine.counters().restored_tokens == 4 * caching  # one block of four was full, and found


def test_the_random_runs_make_every_kind_of_decision() -> None:
    """The comparisons above are worth what they cover."""
    seen: set[str] = set()
    for seed in range(12):
        for name in ("tight", "swap", "host tier"):
            for events in Driver(seed, **CONFIGS[name]).steps(60):
                steps = [event for event in events if isinstance(event, StepEvent)]
                seen |= {decision[0] for event in steps for decision in event.decisions}
    others = {"chunk", "swap_out", "lookup", "admitted", "resumed", "preempted", "forked", "aborted", "skipped"}
    assert seen >= set(BLOCK_FOLDS) | others


def test_nothing_is_left_of_a_request_that_ended() -> None:
    driver = Driver(5)
    state = reduce(RunState(), driver.engine.keyframe())
    events = [event for step in driver.steps(40) for event in step]
    driver.engine.run()
    for event in events + over_the_wire(driver.engine.recorder.drain()):
        reduce(state, event)
    assert driver.num_submitted > 10
    assert not state.sequences
    assert not state.arrivals
    assert state.num_finished + state.num_rejected == driver.num_submitted
    assert all(not owners for owners in state.pool.owners)  # type: ignore[union-attr]
    assert {e.finish_reason for e in state.finished} <= {str(reason) for reason in FinishReason}
