"""Orders of the map against plain sorting, and the history of a block against its own decisions."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_reduce_follows_engine import CONFIGS, Driver

from kvtop.engine.events import StepEvent
from kvtop.engine.types import NULL_BLOCK
from kvtop.state import ring as ring_module
from kvtop.state.block_history import BlockHistory
from kvtop.state.block_orders import MEANING, ORDERS
from kvtop.state.model import FRESH, IDLE, IN_TRANSFER, USED, WITHHELD, PoolState, RunState
from kvtop.state.prefix_tree import PrefixTree
from kvtop.state.reduce import reduce
from kvtop.state.ring import Ring
from kvtop.state.timeline import Timeline


def pool_of(state: RunState) -> PoolState:
    assert state.pool is not None
    return state.pool


def run(seed: int, steps: int = 40, **config) -> tuple[RunState, PrefixTree, Driver]:
    driver = Driver(seed, **config)
    state, tree = reduce(RunState(), driver.engine.keyframe()), PrefixTree()
    for events in driver.steps(steps):
        for event in events:
            reduce(state, event)
    tree.update(state.pool, ())
    return state, tree, driver


@settings(max_examples=25, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10_000), name=st.sampled_from(["paged", "tight", "no cache", "two groups", "window"]))
def test_every_order_shows_every_block_once(seed: int, name: str) -> None:
    state, tree, _ = run(seed, steps=25, **CONFIGS[name])
    for order, make in ORDERS.items():
        blocks = make(state, tree)
        if blocks is None:
            assert order == "eviction"
            continue
        assert sorted(blocks.tolist()) == list(range(pool_of(state).num_blocks)), order


@settings(max_examples=15, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10_000))
def test_orders_are_what_they_say(seed: int) -> None:
    state, tree, driver = run(seed, num_blocks=24)
    pool = pool_of(state)
    found = {name: make(state, tree).tolist() for name, make in ORDERS.items()}  # type: ignore[union-attr]
    idle = [b for b in found["eviction"] if pool.state[b] == IDLE]
    expected = driver.engine.allocator.pool.evictor.peek(24, ())  # type: ignore[attr-defined]
    assert idle[: len(expected)] == expected
    states = [pool.state[b] for b in found["eviction"]]
    assert states == sorted(states, key=[FRESH, IDLE, IN_TRANSFER, USED, WITHHELD].index) or driver.pinned
    held = dict.fromkeys(b for seq in state.sequences.values() for t in seq.tables for b in t if b != NULL_BLOCK)
    assert found["owner"][: len(held)] == list(held)
    ages = [pool.since_step[b] for b in found["age"] if pool.state[b] not in (FRESH, WITHHELD)]
    assert ages == sorted(ages)
    published = [b for b in range(24) if pool.key[b] is not None]
    assert set(found["prefix"][: len(published)]) == set(published)
    place = {b: i for i, b in enumerate(found["prefix"])}
    for block in published:
        above = int(tree.parent[block])
        assert above < 0 or place[above] < place[block]


def test_every_order_is_explained():
    assert set(MEANING) == set(ORDERS)


@pytest.mark.parametrize("name", ["tight", "swap", "host tier"])
def test_the_history_of_a_block_is_every_decision_that_names_it(name, monkeypatch):
    monkeypatch.setattr(ring_module, "SEGMENT_WORK", 400)
    driver = Driver(7, **CONFIGS[name])
    line = Timeline(Ring(None))
    line.fold(driver.engine.keyframe())
    histories = {block: BlockHistory(line.ring) for block in (0, 3, 5)}
    for block, history in histories.items():
        history.look_at(block)
    expected: dict[int, list[tuple]] = {block: [] for block in histories}
    for number, events in enumerate(driver.steps(120)):
        for event in events:
            line.fold(event)
            if not isinstance(event, StepEvent):
                continue
            for decision in event.decisions:
                fields = ring_of(decision)
                for block in histories:
                    if block in fields:
                        expected[block].append((event.step, tuple(decision)))
        if number > 60 and number % 9 == 0:  # it begins late, and must find what was before
            for history in histories.values():
                history.update()
    assert len(line.ring.segments) > 4
    late = BlockHistory(line.ring)
    for block, history in [*histories.items(), (3, late)]:
        history.look_at(block)
        for _ in range(len(line.ring.segments) + 1):
            history.update()
        assert history.is_whole
        got = [(entry.step, tuple(entry.decision)) for entry in history.entries(line.live.step)]
        assert got == expected[block]
        assert [row for row in got if row[0] <= 50] == [
            (entry.step, tuple(entry.decision)) for entry in history.entries(50)
        ]


def ring_of(decision: tuple) -> tuple[int, ...]:
    """The device blocks that a decision names, written out kind by kind."""
    match decision[0]:
        case "alloc" | "share" | "free" | "publish" | "evict" | "swap_out" | "swap_in" | "host_store" | "host_load":
            return (decision[3],)
        case "copy":
            return (decision[3], decision[4])
        case "unpublish" | "pin" | "unpin":
            return (decision[2],)
        case "withhold" | "give_back":
            return (decision[1],)
    return ()
