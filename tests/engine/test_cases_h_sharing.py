"""Sharing and copy-on-write between the branches of a request."""

from __future__ import annotations

import pytest
from engine_helpers import decisions, distinct, expected_output, kv_engine, steps_until_idle, submit

from kvtop.engine.allocators.paged import PagedAllocator
from kvtop.engine.api import InvalidRequest


def test_branches_that_part_at_a_block_boundary_copy_nothing() -> None:  # H2
    engine = kv_engine(16, 4)
    submit(engine, distinct(8, 0), m=3, rid="a")
    engine.step()
    assert engine.fork("a", 2) == ["a#1"]
    engine.step()
    assert engine.counters().copies == 0
    assert engine.counters().used == 4
    assert engine.request("a").block_table[:2] == engine.request("a#1").block_table[:2]
    steps_until_idle(engine)


@pytest.mark.parametrize("n", [2, 3, 5])
def test_branches_that_part_inside_a_block_make_one_copy_less_than_there_are_branches(n: int) -> None:
    engine = kv_engine(32, 4)
    submit(engine, distinct(10, 0), m=6, rid="a", n=n)
    steps_until_idle(engine)
    assert engine.counters().copies == n - 1
    for branch in range(n):
        name = f"a#{branch}" if branch else "a"
        assert list(engine.request(name).output) == expected_output(distinct(10, 0), 6, branch)


def test_a_published_block_is_never_written_even_by_its_only_owner() -> None:  # H4
    engine = kv_engine(16, 4)
    submit(engine, distinct(8, 0), m=4, rid="a")
    engine.step()
    table = engine.request("a").block_table
    assert [engine.block(b).refcount for b in table] == [1, 1]
    assert all(engine.block(b).published_key is not None for b in table)
    allocator = engine.allocator
    assert isinstance(allocator, PagedAllocator)
    assert not any(allocator.writable(b) for b in table)
    # Pretend its last token had to be written again: the block is replaced by a copy, not written.
    seq = engine.scheduler.running[0]
    seq.num_computed = 7
    assert allocator.grow(seq, 8) is None
    assert allocator.copies == [(table[1], seq.block_table[1])]
    assert seq.block_table[1] != table[1]
    assert allocator.writable(seq.block_table[1])
    assert engine.block(table[1]).refcount == 0
    assert engine.block(table[1]).published_key is not None
    engine.check()


def test_a_branch_alone_with_its_block_writes_in_place() -> None:
    engine = kv_engine(16, 4)
    submit(engine, distinct(10, 0), m=6, rid="a")
    engine.step()
    engine.fork("a", 2)
    assert engine.abort("a#1")
    engine.step()
    assert engine.counters().copies == 0
    steps_until_idle(engine)


def test_sharing_halves_the_blocks_of_four_branches() -> None:  # H5
    engine = kv_engine(16, 4)
    submit(engine, distinct(8, 0), m=4, rid="a", n=4)
    engine.step()
    shared, separate = 0, 0
    while engine.has_requests:
        engine.step()
        if engine.counters().used > shared:
            shared = engine.counters().used
            separate = sum(len(seq.block_table) for seq in engine.scheduler.running)
    assert (shared, separate) == (6, 12)
    assert (separate - shared) / separate == 0.5


def test_the_prompt_of_a_parallel_request_is_counted_once() -> None:  # H6
    engine = kv_engine(16, 4)
    submit(engine, distinct(8, 0), m=4, rid="a", n=3)
    engine.step()
    counters = engine.counters()
    assert (counters.query_tokens, counters.hit_tokens) == (8, 0)
    assert counters.computed_tokens == 8
    steps_until_idle(engine)
    assert [engine.request(name).cached_tokens for name in ("a", "a#1", "a#2")] == [0, 0, 0]
    assert engine.request("a").computed_tokens == 8 + 3
    assert engine.request("a#1").computed_tokens == engine.request("a#2").computed_tokens == 3
    counters = engine.counters()
    assert (counters.query_tokens, counters.hit_tokens) == (8, 0)
    assert counters.computed_tokens == 8 + 3 * 3


def test_all_first_tokens_come_from_one_row_of_logits() -> None:
    engine = kv_engine(16, 4, max_batched_tokens=8)
    submit(engine, distinct(10, 0), m=2, rid="a", n=3)
    first, second, *_ = steps_until_idle(engine)
    assert first.tokens == {}
    assert [chunk.num_samples for chunk in second.plan] == [3]
    assert sorted(second.tokens) == ["a", "a#1", "a#2"]
    assert [row["request_id"] for row in decisions(engine, "forked")] == ["a#1", "a#2"]


def test_a_branch_without_a_seat_waits_alone_and_finishes_later() -> None:
    engine = kv_engine(32, 4, max_num_seqs=2)
    submit(engine, distinct(9, 0), m=5, rid="a", n=4)
    outs = steps_until_idle(engine)
    assert max(len(out.plan) for out in outs) <= 2
    for branch, name in enumerate(("a", "a#1", "a#2", "a#3")):
        assert list(engine.request(name).output) == expected_output(distinct(9, 0), 5, branch)


def test_fork_needs_a_running_sequence_with_a_computed_prompt() -> None:
    engine = kv_engine(16, 4, max_batched_tokens=8)
    submit(engine, distinct(12, 0), m=3, rid="a")
    with pytest.raises(InvalidRequest, match="not running"):
        engine.fork("a", 2)
    engine.step()
    with pytest.raises(InvalidRequest, match="prompt is not computed"):
        engine.fork("a", 2)
    engine.step()
    with pytest.raises(InvalidRequest, match="total and at least 2"):
        engine.fork("a", 1)
    with pytest.raises(InvalidRequest, match="not running"):
        engine.fork("nobody", 2)
    assert engine.fork("a", 3) == ["a#1", "a#2"]
    assert engine.fork("a#1", 2) == ["a#3"]
    steps_until_idle(engine)
    assert list(engine.request("a").output) == expected_output(distinct(12, 0), 3)
