"""Who loses its blocks, what a step's budget goes to first, and that everybody ends under every combination."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from policy_helpers import distinct, make_engine, step_until, submit

from kvtop.engine.api import Engine, RequestSpec, SamplingParams
from kvtop.engine.config import ALLOCATORS
from kvtop.engine.events import StepEvent
from kvtop.engine.policies.registry import BATCH, EVICTION, QUEUE, VICTIM

# -- victims ---------------------------------------------------------------------------------------------------------


def _first_victim(victim: str, lengths: list[int], *, caching: bool, priorities: tuple[int, ...] = ()) -> str:
    """Prompts that fill the pool exactly, the first one full: its first output needs a block."""
    engine = make_engine(sum(-(-length // 4) for length in lengths), 4, victim=victim, prefix_caching=caching)
    for index, length in enumerate(lengths):
        priority = priorities[index] if priorities else 0
        submit(engine, distinct(length, index), 9, f"r{index}", arrival_ns=0, priority=priority)
    engine.step()
    assert len(engine.scheduler.running) == len(lengths)
    return engine.step().preempted[0]


@pytest.mark.parametrize(("victim", "expected"), [("last-arrived", "r3"), ("most-blocks", "r1"), ("cheapest", "r2")])
def test_each_policy_takes_another_victim(victim: str, expected: str) -> None:
    assert _first_victim(victim, [4, 19, 7, 11], caching=False) == expected


def test_what_is_published_counts_as_found_again() -> None:
    assert _first_victim("cheapest", [4, 17, 7, 11], caching=True) == "r1"  # 1 token beside its blocks, 3, 3
    assert _first_victim("cheapest", [4, 17, 7, 11], caching=False) == "r2"


@pytest.mark.parametrize("victim", sorted(VICTIM.meanings()))
def test_ties_fall_on_the_last_submitted(victim: str) -> None:
    assert _first_victim(victim, [4, 7, 7, 7], caching=False) == "r3"


@pytest.mark.parametrize("victim", sorted(VICTIM.meanings()))
def test_who_ranks_first_takes_room_from_others_and_never_gives_it(victim: str) -> None:
    # By every policy's own measure the needy one would be the best victim: least computed, most blocks, last arrived.
    lengths = {"cheapest": [4, 19, 19], "most-blocks": [20, 7, 7], "last-arrived": [7, 7, 4]}[victim]
    priorities = {"last-arrived": (1, 1, 0)}.get(victim, (0, 1, 1))
    needy = "r2" if victim == "last-arrived" else "r0"
    assert _first_victim(victim, lengths, caching=False, priorities=priorities) != needy


# -- nobody waits for ever -------------------------------------------------------------------------------------------


def _random_engine(rng: Random, **fixed: Any) -> Engine:
    allocator = rng.choice(["paged", "paged", "paged", *ALLOCATORS])
    values: dict[str, Any] = {
        "policy": rng.choice(sorted(QUEUE.meanings())),
        "victim": rng.choice(sorted(VICTIM.meanings())),
        "batch_policy": rng.choice(sorted(BATCH.meanings())),
        "allocator": allocator,
        "max_num_seqs": rng.randint(1, 8),
        "max_batched_tokens": rng.choice([rng.randint(1, 8), rng.randint(8, 64)]),
    }
    if allocator == "paged":
        values["prefix_caching"] = rng.random() < 0.7
        values["eviction"] = rng.choice(sorted(EVICTION.meanings().keys() - {"belady"}))
        if rng.random() < 0.3:
            values |= {"preemption": "swap", "host_blocks": rng.randint(1, 12)}
    return make_engine(rng.randint(2, 16), rng.randint(1, 6), **{**values, **fixed})


def _submit_some(engine: Engine, rng: Random) -> int:
    """Random requests; returns the tokens they may compute."""
    work = 0
    for _ in range(rng.randint(2, 12)):
        prompt = [7] * rng.randint(0, 12) + [rng.randint(0, 9) for _ in range(rng.randint(1, 8))]
        if len(prompt) < engine.config.effective_len:
            params = SamplingParams(max_tokens=rng.randint(1, 30), n=rng.choice([1, 1, 1, 3]))
            fields = {
                "priority": rng.choice([0, 0, 1]),
                "arrival_ns": rng.choice([0, 0, 5]),
                "tenant": rng.choice("ab"),
            }
            engine.submit_spec(RequestSpec(prompt, params, **fields))  # type: ignore[arg-type]
            work += (len(prompt) + params.max_tokens) * params.n
    return work


@settings(max_examples=150, deadline=None, database=None, derandomize=True)
@given(st.integers(0, 10**9))
def test_under_every_combination_all_requests_end_and_the_first_goes_on(seed: int) -> None:
    rng = Random(seed)
    engine = _random_engine(rng)
    limit = 50 + 4 * _submit_some(engine, rng)
    while engine.has_requests:
        first = engine.scheduler.running[0].seq_id if engine.scheduler.running else None
        limit -= 1
        assert limit, f"requests are left that do not end: {engine.config}"
        out = engine.step()
        assert out.plan or out.finished, "a step in which nobody advanced"
        assert not (out.preempted and out.admitted), "somebody was admitted in a step that preempted"
        assert first not in out.preempted, "whoever ranks first among the running was preempted"


@pytest.mark.parametrize(("name", "kind"), [("victim", VICTIM), ("batch_policy", BATCH), ("policy", QUEUE)])
def test_the_random_runs_preempt_under_every_policy(name: str, kind: Any) -> None:
    # Without preemptions the test before would hold for anything.
    for policy in kind.meanings():
        total = 0
        for seed in range(12):
            rng = Random(seed)
            engine = _random_engine(rng, **{name: policy})
            _submit_some(engine, rng)
            engine.run()
            total += engine.counters().preemptions
        assert total >= 3, policy


# -- batches ---------------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None, database=None, derandomize=True)
@given(st.integers(0, 10**9))
def test_decode_first_gives_every_running_decode_its_token_in_every_step(seed: int) -> None:
    rng = Random(seed)
    engine = _random_engine(rng, batch_policy="decode-first")
    _submit_some(engine, rng)
    while engine.has_requests:
        decodes = [s for s in engine.scheduler.running if s.num_tokens - s.num_computed == 1]
        out = engine.step()
        for seq in decodes:
            assert seq.seq_id in out.tokens or seq.seq_id in out.preempted or seq.seq_id in out.finished


def _newcomer(batch_policy: str) -> tuple[int, list[int]]:
    """Four decodes run, then a prompt of 16 comes; budget 8. Steps to its first token, and the tokens of one decode."""
    engine = make_engine(32, 4, batch_policy=batch_policy, max_batched_tokens=8, max_num_seqs=5)
    for index in range(4):
        submit(engine, distinct(1, index), 40, f"d{index}")
    engine.step()
    submit(engine, distinct(16, 9), 1, "new")
    emitted = []
    while True:
        out = engine.step()
        emitted.append(len(out.tokens.get("d3", [])))
        if "new" in out.tokens:
            return len(emitted), emitted


def test_prefill_first_serves_a_newcomer_sooner_and_lets_decodes_pause() -> None:
    assert _newcomer("prefill-first") == (2, [0, 0])
    assert _newcomer("decode-first") == (4, [1, 1, 1, 1])
    assert _newcomer("mixed") == (4, [1, 1, 1, 1])


@pytest.mark.parametrize(
    ("batch_policy", "pauses"), [("mixed", True), ("decode-first", False), ("prefill-first", True)]
)
def test_mixed_lets_an_early_long_prompt_outrank_a_later_decode(batch_policy: str, pauses: bool) -> None:
    engine = make_engine(64, 4, batch_policy=batch_policy, max_batched_tokens=8)
    submit(engine, distinct(1, 0), 40, "later", priority=1)
    engine.step()
    submit(engine, distinct(40, 1), 1, "earlier", priority=0)
    emitted = []
    while "earlier" not in (out := engine.step()).tokens:
        emitted.append("later" in out.tokens)
    assert len(emitted) >= 4
    assert emitted[1:] == [not pauses] * (len(emitted) - 1)
    assert step_until(engine, lambda: not engine.has_requests) < 60


def test_under_prefill_first_seats_bound_how_long_decodes_pause() -> None:
    engine = make_engine(64, 4, batch_policy="prefill-first", max_batched_tokens=8, max_num_seqs=3)
    for index in range(30):
        submit(engine, distinct(16, index), 8, f"r{index}")
    gaps, last = [], 0
    while engine.has_requests:
        out = engine.step()
        if out.tokens:
            gaps.append(out.step - last)
            last = out.step
    assert max(gaps) <= 2 * 3 + 1
    events = [e for e in engine.recorder.drain() if isinstance(e, StepEvent)]
    assert len(events) == last + 1
