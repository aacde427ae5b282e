"""The order of eviction read off the log against what the engine's own evictor would give up, block by block."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_reduce_follows_engine import Driver

from kvtop.state.eviction_order import KEYS, eviction_order, seconds_until
from kvtop.state.model import PoolState, RunState
from kvtop.state.prefix_tree import PrefixTree
from kvtop.state.reduce import reduce


@pytest.mark.parametrize("policy", KEYS)
@settings(max_examples=10, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10_000), num_blocks=st.sampled_from([8, 12, 24]))
def test_the_order_is_the_one_in_which_the_engine_would_evict(policy: str, seed: int, num_blocks: int) -> None:
    driver = Driver(seed, calm=True, eviction=policy, num_blocks=num_blocks)
    state, tree = reduce(RunState(), driver.engine.keyframe()), PrefixTree()
    seen = 0
    for number, events in enumerate(driver.steps(60)):
        for event in events:
            reduce(state, event)
        pool = state.pool
        assert pool is not None
        tree.update(pool, pool.dirty)
        pool.dirty.clear()
        order = eviction_order(pool, tree, policy)
        assert order is not None
        expected = driver.engine.allocator.pool.evictor.peek(num_blocks, ())  # type: ignore[attr-defined]
        assert order.tolist() == expected, f"seed {seed}, step {number}"
        seen += len(expected)
    assert seen


@settings(max_examples=10, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10_000))
def test_pins_aborts_and_resets_leave_lru_exact(seed: int) -> None:
    driver = Driver(seed, deferred_free_steps=seed % 3)
    state, tree = reduce(RunState(), driver.engine.keyframe()), PrefixTree()
    for number, events in enumerate(driver.steps(60)):
        for event in events:
            reduce(state, event)
        pool = state.pool
        assert pool is not None
        tree.update(pool, pool.dirty)
        order = eviction_order(pool, tree, "lru")
        assert order is not None
        expected = driver.engine.allocator.pool.evictor.peek(pool.num_blocks, ())  # type: ignore[attr-defined]
        assert order.tolist() == expected, f"seed {seed}, step {number}"


def test_where_the_log_does_not_tell_the_order_there_is_none():
    pool, tree = PoolState.empty(4, 16), PrefixTree()
    tree.update(pool, ())
    assert eviction_order(pool, tree, "belady") is None
    assert eviction_order(pool, tree, "mine.py:key") is None
    assert eviction_order(pool, tree, "lru").tolist() == []  # type: ignore[union-attr]


def test_the_estimate_is_blocks_before_it_over_the_rate():
    assert seconds_until(0, 4.0) == 0.25
    assert seconds_until(99, 50.0) == 2.0
    assert seconds_until(5, 0.0) is None
    assert seconds_until(5, None) is None
