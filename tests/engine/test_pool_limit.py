"""A pool that may use fewer blocks than it has, worked by hand."""

from __future__ import annotations

import pytest
from engine_helpers import decisions, distinct, kv_engine, submit

from kvtop.engine.api import FinishReason, InvalidRequest, InvariantError


def test_a_lower_limit_takes_fresh_blocks_then_idle_ones_then_what_is_given_back() -> None:
    """Eight blocks of four. a (4 full blocks: idle when it ends), then b holds three of the four fresh ones."""
    engine = kv_engine(8, 4)
    submit(engine, distinct(15, 0), m=2, rid="a")
    engine.run()
    a = decisions(engine, "alloc")
    assert [row["block"] for row in a] == [0, 1, 2, 3]
    submit(engine, distinct(11, 1), m=2, rid="b")
    engine.step()
    counts = engine.counters()
    assert (counts.used, counts.idle, counts.fresh) == (3, 4, 1)
    assert engine.request("b").block_table == (4, 5, 6)
    engine.set_pool_size(2)
    engine.flush()
    # Fresh block 7, then a's chain from its end; b's three blocks are more than two: one is still owed.
    told = decisions(engine, "withhold", "evict")
    assert [row["block"] for row in told if row["kind"] == "withhold"] == [7, 3, 2, 1, 0]
    assert [row["block"] for row in told if row["kind"] == "evict"] == [3, 2, 1, 0]
    assert {row["request_id"] for row in told if row["kind"] == "evict"} == {"limit"}
    assert engine.allocator.pool.limit.owed == 1
    engine.check()
    engine.run()  # b ends: its three blocks are available, and one of them goes
    engine.step()
    engine.check()
    counts = engine.counters()
    assert (counts.used, counts.idle + counts.fresh, counts.withheld) == (0, 2, 6)
    engine.set_pool_size(8)
    engine.flush()
    counts = engine.counters()
    assert (counts.withheld, counts.idle + counts.fresh) == (0, 8)
    assert [row["block"] for row in decisions(engine, "give_back")][-5:] == [0, 1, 2, 3, 7]
    engine.check()


def test_lowering_and_raising_an_unused_pool_leaves_its_order_as_it_was() -> None:
    engine = kv_engine(8, 4)
    before = list(engine.allocator.pool.fresh)
    for size in (5, 1, 6, 8):
        engine.set_pool_size(size)
        engine.check()
    assert list(engine.allocator.pool.fresh) == before


def test_who_alone_needs_more_than_the_limit_ends_as_in_a_pool_of_that_size() -> None:
    ends = []
    for num_blocks in (2, 8):
        engine = kv_engine(num_blocks, 4, max_model_len=32)
        submit(engine, distinct(6, 0), m=20, rid="a")
        engine.set_pool_size(2)
        engine.run()
        view = engine.request("a")
        ends.append((view.finish_reason, len(view.output)))
    assert ends == [(FinishReason.CAPACITY, 3)] * 2


@pytest.mark.parametrize("size", [0, 9, -1, True, 2.0, "4", None])
def test_a_size_that_cannot_be_is_refused_and_nothing_changes(size: object) -> None:
    engine = kv_engine(8, 4)
    with pytest.raises(InvalidRequest, match="expected an integer from 1 to 8"):
        engine.set_pool_size(size)  # type: ignore[arg-type]
    assert engine.allocator.pool.limit.size == 8


def test_a_withheld_block_cannot_be_pinned() -> None:
    engine = kv_engine(8, 4)
    engine.set_pool_size(7)
    with pytest.raises(InvariantError, match="block 7 is withheld"):
        engine.pin(7)
