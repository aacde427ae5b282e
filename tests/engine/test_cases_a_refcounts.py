"""Refcounts, leaks and double frees: the pool is whole after everything that can happen to a request."""

from __future__ import annotations

import pytest
from engine_helpers import distinct, kv_engine, make_engine, pool_state, request_rows, serve, steps_until_idle, submit

from kvtop.engine.allocators.base import Admission
from kvtop.engine.api import (
    BlockState,
    Engine,
    EngineConfig,
    FinishReason,
    InvalidRequest,
    InvariantError,
    NullExecutor,
    Recorder,
    RequestSpec,
    RequestState,
    SamplingParams,
    Shortage,
    WaitReason,
)
from kvtop.engine.block_pool import BlockPool
from kvtop.engine.evictors import LRUEvictor
from kvtop.engine.prefix_cache import PrefixCache
from kvtop.engine.sequence import Request, Sequence


def _pool(num_blocks: int) -> BlockPool:
    cache = PrefixCache(num_blocks, 4)
    return BlockPool(cache.key, 4, LRUEvictor(cache))


def _running(engine: Engine, rid: str) -> Sequence:
    return next(seq for seq in engine.scheduler.running if seq.seq_id == rid)


def test_every_request_returns_all_its_blocks() -> None:  # A1
    engine = make_engine(8, 4)
    for i in range(50):
        view = serve(engine, distinct(1 + i % 5, i), m=4)
        counters = engine.counters()
        assert view.finish_reason is FinishReason.LENGTH
        assert counters.used == 0
        assert counters.fresh + counters.idle == 8


def test_publishing_takes_no_reference_of_its_own() -> None:  # A2
    engine = make_engine(8, 4)
    prompt = distinct(13, 0)
    for i in range(10):
        rid = submit(engine, prompt)
        used = []
        while engine.has_requests:
            engine.step()
            used.append(engine.counters().used)
        assert max(used, default=0) <= 4
        assert engine.counters().used == 0
        assert engine.counters().idle == 3
        assert engine.request(rid).cached_tokens == (12 if i else 0)


def test_a_block_listed_twice_is_freed_once_and_never_again() -> None:  # A3
    pool = _pool(8)
    pool.take([3, 5], "a")
    pool.acquire(3, "a")
    pool.release([3, 3, 5], "a", step=0)
    fresh = list(pool.fresh)
    assert sorted(fresh) == list(range(8))
    with pytest.raises(InvariantError, match="block 3"):
        pool.release([3, 3, 5], "a", step=0)
    assert list(pool.fresh) == fresh
    pool.check()


def test_eviction_never_touches_a_block_in_use() -> None:  # A6
    # The case gives R1 a single output: then it would end in its first step. It decodes on here, to stay in its blocks.
    engine = kv_engine(6, 4)
    serve(engine, distinct(8, 0), rid="R0")
    assert engine.counters().idle == 2
    submit(engine, distinct(6, 1), m=3, rid="R1")  # 8 stored: two blocks to its end
    engine.step()
    assert engine.counters().used == 2
    submit(engine, distinct(13, 2), m=4, rid="R2")
    submit(engine, distinct(4, 3), rid="R3")
    out = engine.step()
    assert out.admitted == ["R2"]
    assert len(out.evicted) == 2
    assert not set(engine.request("R1").block_table) & set(engine.request("R2").block_table)
    assert engine.request("R3").state is RequestState.WAITING
    assert engine.request("R3").wait_reason is WaitReason.NO_BLOCKS
    engine.run()
    alone = serve(kv_engine(6, 4), distinct(6, 1), m=3)
    assert engine.request("R1").output == alone.output


def test_used_idle_and_fresh_add_up_when_a_prefix_is_shared_in_part() -> None:  # A7
    engine = make_engine(8, 4)
    tokens = list(range(1, 13))
    serve(engine, tokens)
    assert engine.counters().idle == 3
    # Two outputs instead of one, so that the request can be seen while it runs.
    submit(engine, [*tokens[:8], 99, 98, 97, 96], m=2, rid="R")
    engine.step()
    counters = engine.counters()
    assert (counters.used, counters.idle) == (3, 1)
    steps_until_idle(engine)
    counters = engine.counters()
    assert (counters.used, counters.idle, counters.fresh) == (0, 4, 4)


def test_a_fault_in_the_middle_of_an_admission_changes_nothing() -> None:  # A8
    engine = make_engine(8, 4)
    serve(engine, distinct(9, 0))
    serve(engine, distinct(9, 1))
    prompt = distinct(8, 0) + distinct(16, 2)  # two hits, four blocks more
    rid = submit(engine, prompt)
    before = pool_state(engine)
    engine.allocator.pool.fault = lambda k: k == 3
    out = engine.step()
    assert not out.plan
    assert pool_state(engine) == before
    assert engine.request(rid).state is RequestState.WAITING
    assert engine.request(rid).wait_reason is WaitReason.FAULT
    assert out.stalled is not None
    assert out.stalled.reason is WaitReason.FAULT
    engine.allocator.pool.fault = None
    engine.run()
    assert engine.request(rid).cached_tokens == 8


def test_branches_copy_lazily_and_a_refused_copy_changes_nothing() -> None:  # A9, lazy
    engine = make_engine(4, 4)
    submit(engine, distinct(10, 0), m=6, rid="a")
    engine.step()
    engine.fork("a", 4)
    table = engine.request("a").block_table
    assert [engine.block(b).refcount for b in table] == [4, 4, 4]
    assert engine.counters().fresh == 1
    allocator = engine.allocator
    assert allocator.grow(_running(engine, "a"), 11) is None
    assert engine.counters().fresh == 0
    assert [engine.block(b).refcount for b in table] == [4, 4, 3]
    before, copies = pool_state(engine), list(allocator.copies)
    shortage = allocator.grow(_running(engine, "a#1"), 11)
    assert shortage == Shortage(WaitReason.NO_BLOCKS, need=1, have=0)
    assert pool_state(engine) == before
    assert allocator.copies == copies
    engine.check()


def test_an_eager_fork_without_room_is_refused_whole() -> None:  # A9, eager
    engine = make_engine(4, 4, allocator="contiguous-max", max_model_len=13)  # a reservation is three blocks
    submit(engine, distinct(10, 0), m=3, rid="a")
    engine.step()
    parent, before = _running(engine, "a"), pool_state(engine)
    child = Sequence("a#1", 1, parent.request, (0, 0, 0, 1), list(parent.tokens), parent.num_prompt)
    shortage = engine.allocator.fork(parent, child)
    assert shortage is not None
    assert (shortage.need, shortage.have) == (3, 1)
    assert pool_state(engine) == before
    assert [engine.block(b).refcount for b in parent.block_table] == [1, 1, 1]
    assert engine.counters().fresh == 1
    assert child.block_table == []


def test_nothing_that_is_kept_by_request_grows_for_ever() -> None:  # A10
    config = EngineConfig(num_blocks=64, block_size=4, max_num_seqs=64, max_batched_tokens=512, keep_finished=10)
    recorder = Recorder(max_events=1000)
    engine = Engine(config, NullExecutor(), recorder=recorder)
    for start in range(0, 10_000, 100):
        for i in range(start, start + 100):
            submit(engine, [i % 7, i % 11], m=1, rid=f"q{i}")
        engine.run()
    # What the last step admitted stays readable until the next one, so one request follows; of 10 000, none is left.
    submit(engine, [1, 2], m=1, rid="last")
    engine.run()
    kept = {item.request_id if isinstance(item, Request) else item.seq_id for item in _reachable(engine)}
    assert kept <= {"last", "q9999"}
    assert not engine._requests
    assert not engine._sequences
    assert not len(engine.scheduler.waiting)
    assert not engine.scheduler.waiting._keys
    assert not engine.scheduler.running
    with pytest.raises(InvalidRequest, match="no request 'q0'"):
        engine.request("q0")
    assert engine.request("last").finish_reason is FinishReason.LENGTH
    assert len(engine._finished) == 10
    assert recorder.num_dropped > 0
    assert len(recorder.drain()) == 1000


def _reachable(root: object) -> list[Sequence | Request]:
    """Sequences and requests that ``root`` holds through containers and attributes."""
    found, seen, stack = [], set(), [root]
    while stack:
        item = stack.pop()
        if id(item) in seen or isinstance(item, str | int | float | type(None)):
            continue
        seen.add(id(item))
        if isinstance(item, Sequence | Request):
            found.append(item)
        if isinstance(item, dict):
            stack += [*item.keys(), *item.values()]
        elif isinstance(item, list | tuple | set):
            stack += item
        elif not isinstance(item, type) and type(item).__module__.startswith("kvtop"):
            stack += getattr(item, "__dict__", {}).values()
            stack += [getattr(item, name, None) for c in type(item).__mro__ for name in getattr(c, "__slots__", ())]
    return found


def test_a_release_below_zero_names_the_block_and_its_last_owner() -> None:  # A11
    pool = _pool(8)
    pool.take([2], "somebody")
    pool.release([2], "somebody", step=0)
    fresh = list(pool.fresh)
    with pytest.raises(InvariantError, match=r"block 2.*somebody"):
        pool.release([2], "other", step=0)
    assert (pool.refcount[2], list(pool.fresh)) == (0, fresh)


def test_the_context_limit_inside_a_block_strands_no_slot() -> None:  # A12
    engine = make_engine(8, 4, max_model_len=10)
    rid = submit(engine, distinct(7, 0), m=100)
    steps_until_idle(engine)
    view = engine.request(rid)
    assert len(view.output) == 3
    assert view.finish_reason is FinishReason.LENGTH
    assert view.computed_tokens + view.cached_tokens == 9
    assert max(row.peak_blocks for row in request_rows(engine).values()) == 3
    assert engine.counters().used == 0


def test_admission_state_is_only_what_the_allocator_says() -> None:
    # The allocator alone, without the scheduler: an admission is atomic, and a refusal leaves an empty table.
    engine = make_engine(2, 4)
    request = Request("x", RequestSpec(distinct(8, 0), SamplingParams(max_tokens=1)), 0, 0, 0)
    seq = Sequence("x", 0, request, (0, 0, 0, 0), distinct(8, 0), 8)
    answer = engine.allocator.try_admit(seq, 5, [])
    assert isinstance(answer, Admission)
    assert (answer.cached, answer.count, len(seq.block_table), seq.promised) == (0, 5, 2, 0)
    other = Sequence("y", 0, request, (0, 0, 1, 0), distinct(4, 1), 4)
    assert engine.allocator.try_admit(other, 5, []) == Shortage(WaitReason.NO_BLOCKS, need=1, have=0)
    assert other.block_table == []
    assert engine.block(seq.block_table[0]).state is BlockState.USED
