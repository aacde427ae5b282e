"""Which block is evicted, and which never is."""

from __future__ import annotations

import pytest
from engine_helpers import decisions, distinct, make_engine, serve, steps_until_idle, submit

from kvtop.engine.api import BlockState, Engine, EngineStalled, WaitReason

PROMPTS = {"X": distinct(5, 1), "Y": distinct(5, 2), "Z": distinct(5, 3)}


def _victim(policy: str, requests: str) -> str:
    """Serve one request a letter (one published block each), then one that needs one block more than is fresh."""
    engine = make_engine(4, 4, eviction=policy)
    where = {}
    for name in requests:
        serve(engine, PROMPTS[name])
        idle = {b for b in range(4) if engine.block(b).state is BlockState.IDLE}
        where.update((block, name) for block in idle - where.keys())
    assert engine.counters().evictions == 0
    submit(engine, distinct(8, 9))
    out = engine.step()
    assert len(out.evicted) == 1
    return where[out.evicted[0].block]


@pytest.mark.parametrize(("policy", "victim"), [("lru", "X"), ("fifo", "X"), ("lfu", "Y")])
def test_a_policy_has_an_effect_after_early_hits(policy: str, victim: str) -> None:  # F4
    assert _victim(policy, "XXXYZ") == victim


@pytest.mark.parametrize(("policy", "victim"), [("fifo", "X"), ("lru", "Y"), ("lfu", "Y")])
def test_a_policy_has_an_effect_after_a_late_hit(policy: str, victim: str) -> None:  # F4
    assert _victim(policy, "XYZX") == victim


def test_a_pinned_block_survives_and_whoever_needs_it_is_told() -> None:  # F5
    engine = make_engine(4, 4)
    serve(engine, distinct(5, 0))
    pinned = next(b for b in range(4) if engine.block(b).state is BlockState.IDLE)
    key = engine.block(pinned).published_key
    engine.pin(pinned)
    engine.check()
    serve(engine, distinct(9, 1))  # fills what is left
    rid = submit(engine, distinct(16, 2))
    with pytest.raises(EngineStalled, match=r"pinned.*needs 4, has 3"):
        engine.run()
    assert engine.request(rid).wait_reason is WaitReason.PINNED
    assert engine.block(pinned).published_key == key
    assert engine.block(pinned).pins == 1
    engine.unpin(pinned)
    engine.run()
    assert engine.block(pinned).published_key != key
    assert len(engine.request(rid).output) == 1
    engine.check()


def test_a_full_cache_is_seen_beside_an_empty_pool() -> None:  # F6
    engine = make_engine(10, 4)
    serve(engine, distinct(12, 0))
    counters = engine.counters()
    assert (counters.used, counters.idle, counters.fresh) == (0, 3, 7)
    assert counters.used + counters.idle + counters.fresh == 10


def test_of_one_chain_deeper_blocks_go_first_and_only_as_many_as_needed() -> None:
    engine = make_engine(6, 4)
    first = serve(engine, distinct(12, 0))
    chain = _chain(engine)
    assert len(chain) == 3
    submit(engine, distinct(16, 1))  # three fresh blocks and one idle one
    out = engine.step()
    assert [e.block for e in out.evicted] == [chain[2]]
    assert serve(engine, list(first.prompt)).cached_tokens == 8


def _chain(engine: Engine) -> list[int]:
    """Published blocks of the only cached request, by depth."""
    rows = decisions(engine, "publish")
    return [row["block"] for row in rows]


def test_a_parent_unpinned_after_its_child_still_goes_after_it() -> None:
    engine = make_engine(4, 4)
    serve(engine, distinct(9, 0))
    parent, child = _chain(engine)
    engine.pin(child)
    engine.unpin(child)  # the child is the more recently used one now
    submit(engine, distinct(16, 1))
    out = engine.step()
    assert [e.block for e in out.evicted] == [child, parent]


def test_room_taken_at_once_or_block_by_block_costs_the_same_blocks() -> None:
    # Chain A, then the unrelated B, are idle; a pin put A's child behind its parent but ahead of B.
    def evicted(prompts: list[list[int]]) -> list[int]:
        engine = make_engine(4, 4)
        serve(engine, distinct(9, 0))
        _, child = _chain(engine)
        engine.pin(child)
        engine.unpin(child)
        serve(engine, distinct(5, 1))
        for block in (b for b in range(4) if engine.block(b).state is BlockState.FRESH):
            assert block not in _chain(engine)
        for i, prompt in enumerate(prompts):
            submit(engine, prompt, m=5, rid=f"taker{i}")
        return [e.block for e in engine.step().evicted]

    together = evicted([distinct(12, 2)])
    apart = evicted([distinct(4, 3), distinct(4, 4), distinct(4, 5)])
    assert together == apart
    assert len(together) == 2


def test_eviction_names_its_cause_and_the_life_of_the_block() -> None:
    engine = make_engine(4, 4)
    prompt = distinct(5, 0)
    serve(engine, prompt, rid="first")  # step 0 publishes
    serve(engine, prompt, rid="second")  # step 1 hits
    serve(engine, distinct(3, 1), rid="other")  # step 2
    submit(engine, distinct(16, 2), rid="taker")  # step 3
    (eviction,) = steps_until_idle(engine)[0].evicted
    assert (eviction.cause, eviction.step) == ("taker", 3)
    assert (eviction.age_steps, eviction.idle_steps, eviction.uses) == (3, 2, 1)
    (row,) = decisions(engine, "evict")
    assert (row["request_id"], row["block"], row["block_key"]) == ("taker", eviction.block, eviction.key)
    assert (row["age_steps"], row["idle_steps"], row["uses"]) == (3, 2, 1)
