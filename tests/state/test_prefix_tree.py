"""The folded prefix tree against the engine's own prefix cache, and its runs against a walk over every block."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_reduce_follows_engine import CONFIGS, Driver

from kvtop.engine.api import Engine
from kvtop.state.model import RunState
from kvtop.state.prefix_tree import ABSENT, TOP, PrefixTree
from kvtop.state.reduce import reduce

ONE_GROUP = ["paged", "tight", "deferred", "no cache", "swap", "host tier", "lpm", "block size 1", "beams"]


def follow(driver: Driver, tree: PrefixTree, state: RunState, steps: int = 60):
    """The tree is given the changed blocks of one step at a time, as a screen would be."""
    for number, events in enumerate(driver.steps(steps)):
        for event in events:
            reduce(state, event)
        assert state.pool is not None
        tree.update(state.pool, state.pool.dirty)
        state.pool.dirty.clear()
        yield number


def walk(tree: PrefixTree, block: int) -> list[int]:
    """Blocks from the top down to ``block``."""
    chain = [block]
    while tree.parent[chain[0]] >= 0:
        chain.insert(0, int(tree.parent[chain[0]]))
    return chain


def assert_runs(tree: PrefixTree) -> None:
    """Every column of the runs, recounted block by block."""
    pool, runs = tree.pool, tree.runs
    assert pool is not None
    nodes = [block for block in range(pool.num_blocks) if tree.parent[block] != ABSENT]
    below: dict[int, list[int]] = {}
    for block in nodes:
        below.setdefault(int(tree.parent[block]), []).append(block)
    assert tree.num_children == [len(below.get(b, ())) for b in range(pool.num_blocks)]
    heads = [b for b in nodes if tree.parent[b] == TOP or len(below[int(tree.parent[b])]) > 1]
    assert runs.head.tolist() == heads
    same = {b: [b, *(o for o, first in tree.twin_of.items() if first == b)] for b in nodes}

    def most(block: int, values) -> int:
        return max(values[b] for b in same[block])

    held = [count - pins for count, pins in zip(pool.refcount, pool.pins, strict=True)]
    sums = {}
    for number in reversed(range(len(heads))):
        chain = [heads[number]]
        while len(below.get(chain[-1], ())) == 1:
            chain += below[chain[-1]]
        assert runs.tail[number] == chain[-1]
        assert set(runs.blocks(number).tolist()) == {b for block in chain for b in same[block]}
        own = (
            sum(len(same[b]) for b in chain),
            len(chain),
            sum(most(b, pool.uses) for b in chain),
            sum(most(b, pool.uses) == 0 for b in chain),
            max(most(b, pool.last_use_step) for b in chain),
        )
        columns = (runs.num_blocks, runs.length, runs.saved, runs.never_hit, runs.last_use)
        assert tuple(int(column[number]) for column in columns) == own
        assert runs.hits[number] == max(most(b, pool.uses) for b in chain)
        assert runs.readers[number] == max(most(b, held) for b in chain)
        assert runs.depth[number] == len(walk(tree, chain[0])) - 1 == tree.depth(chain[0])
        sums[number] = (chain, own)
    for number, (chain, _) in sums.items():
        inside = [n for n, (other, _) in sums.items() if chain[0] in walk(tree, other[0])]
        totals = [sum(sums[n][1][i] for n in inside) for i in range(4)]
        assert [
            int(c[number]) for c in (runs.all_blocks, runs.all_length, runs.all_saved, runs.all_never_hit)
        ] == totals
        assert runs.all_last_use[number] == max(sums[n][1][4] for n in inside)
        expected = [n for n, (other, _) in sums.items() if tree.parent[other[0]] == chain[-1]]
        assert sorted(runs.below(number).tolist()) == sorted(expected)
    assert sorted(runs.below(TOP).tolist()) == [n for n, head in enumerate(heads) if tree.parent[head] == TOP]


def assert_is_the_engines(tree: PrefixTree, engine: Engine, where: str) -> None:
    cache = engine.allocator.cache  # type: ignore[attr-defined]
    for block in range(engine.config.num_blocks):
        if cache.key[block] is None:
            assert tree.parent[block] == ABSENT, f"{where}, block {block}"
            continue
        above = cache.parent[block]
        assert tree.parent[block] == (TOP if above is None else above), f"{where}, block {block}"
        assert tree.num_children[block] == cache.num_children[block], f"{where}, block {block}"
        assert tree.depth(block) == cache.depth[block], f"{where}, block {block}"
        assert tree.block_of[cache.key[block]] == block, f"{where}, block {block}"


@pytest.mark.parametrize("name", ONE_GROUP)
@settings(max_examples=4, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10_000))
def test_the_tree_is_that_of_the_engines_prefix_cache_after_every_step(name: str, seed: int) -> None:
    driver = Driver(seed, **CONFIGS[name])
    state, tree = reduce(RunState(), driver.engine.keyframe()), PrefixTree()
    for number in follow(driver, tree, state):
        assert_is_the_engines(tree, driver.engine, f"seed {seed}, step {number}")


@pytest.mark.parametrize("name", ["paged", "tight", "block size 1", "two groups", "three groups", "window"])
@settings(max_examples=4, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10_000))
def test_runs_are_what_a_walk_over_every_block_counts(name: str, seed: int) -> None:
    driver = Driver(seed, **CONFIGS[name])
    state, tree = reduce(RunState(), driver.engine.keyframe()), PrefixTree()
    for number in follow(driver, tree, state):
        if number % 4 == 0:
            assert_runs(tree)


def above(tree: PrefixTree) -> dict[int | None, int | None]:
    """Key -> key above it: which of several groups' blocks stands for a position may differ."""
    pool = tree.pool
    assert pool is not None
    nodes = (tree.parent != ABSENT).nonzero()[0]
    return {pool.key[b]: None if tree.parent[b] == TOP else pool.key[tree.parent[b]] for b in nodes}


@pytest.mark.parametrize("name", ["paged", "two groups", "three groups", "window"])
@settings(max_examples=4, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10_000))
def test_a_tree_kept_from_changes_is_one_built_at_once(name: str, seed: int) -> None:
    driver = Driver(seed, **CONFIGS[name])
    state, tree = reduce(RunState(), driver.engine.keyframe()), PrefixTree()
    for _ in follow(driver, tree, state):
        pool = state.pool
        assert pool is not None
        fresh = PrefixTree()
        fresh.update(pool, ())
        published = [b for b in range(pool.num_blocks) if pool.key[b] is not None]
        assert tree.num_published == fresh.num_published == len(published)
        assert above(tree) == above(fresh)
        assert len(tree.runs) == len(fresh.runs)
        assert np.array_equal(np.sort(tree.runs.all_saved), np.sort(fresh.runs.all_saved))
