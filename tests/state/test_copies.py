"""Copies of a state that are kept up to date give back what was copied, whatever the keys and names are."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from kvtop.state import copies
from kvtop.state.copies import Copier, thaw
from kvtop.state.model import PoolState, RunState

KEYS = st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1), st.integers(2**63, 2**256))
CHANGES = st.lists(st.tuples(st.integers(0, 7), KEYS, KEYS, st.text(max_size=3), st.sampled_from(["", "a", "b"])))


@settings(max_examples=60, deadline=None)
@given(rounds=st.lists(CHANGES, max_size=4), most=st.integers(0, 3))
def test_every_copy_is_the_pool_of_that_moment(rounds, most):
    state, copier = RunState(pool=PoolState.empty(8, 16)), Copier()
    taken = []
    before, copies._MOST_NAMES = copies._MOST_NAMES, most - 8  # names no block has any more are forgotten early
    try:
        for changes in [[], *rounds]:
            pool = state.pool
            assert pool is not None
            for block, key, parent_key, publisher, tenant in changes:
                pool.key[block], pool.parent_key[block] = key, parent_key
                pool.publisher[block], pool.tenant[block] = publisher, tenant
                pool.rekeyed.add(block)
            want = list(pool.key), list(pool.parent_key), list(pool.publisher), list(pool.tenant)
            taken.append((copier.freeze(state), want))
    finally:
        copies._MOST_NAMES = before
    for frozen, want in taken:
        pool = thaw(frozen).pool
        assert pool is not None
        assert (pool.key, pool.parent_key, pool.publisher, pool.tenant) == want


def test_a_pool_from_a_new_keyframe_is_copied_whole():
    state, copier = RunState(pool=PoolState.empty(4, 16)), Copier()
    copier.freeze(state)
    state.pool = PoolState.empty(6, 16)
    state.pool.key[5] = 7
    thawed = thaw(copier.freeze(state)).pool
    assert thawed is not None
    assert thawed.key == [None] * 5 + [7]
    assert thawed.owners == [[]] * 6


def test_a_copy_is_much_smaller_than_the_columns_it_holds():
    """It stays in memory until its segment is on disk, and what is copied in full is paid for at every segment."""
    state, copier = RunState(pool=PoolState.empty(10_000, 16)), Copier()
    assert state.pool is not None
    state.pool.last_use_step[7], state.pool.state[7] = 12, 2
    frozen = copier.freeze(state)
    assert len(frozen) < 8 * 10_000
    thawed = thaw(frozen).pool
    assert thawed is not None
    assert (thawed.last_use_step, thawed.state) == (state.pool.last_use_step, state.pool.state)
