"""Every eviction policy against an oracle that sorts the leaves again and again, and a few orders by hand."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from policy_helpers import distinct, eviction_order, future_of, make_engine, serve, submit, tree_prompts

from kvtop.engine.api import Engine, RequestSpec
from kvtop.engine.evictors import KeyedEvictor, make_evictor
from kvtop.engine.policies.registry import EVICTION
from kvtop.engine.prefix_cache import PrefixCache
from kvtop.engine.sequence import Request, Sequence

POLICIES = sorted(EVICTION.meanings())


class Cache:
    """One evictor over one tree, driven by hand: ``insert`` publishes and releases, ``hit`` takes and releases."""

    def __init__(self, policy: str) -> None:
        self.tree = PrefixCache(16, 2)
        self.evictor = make_evictor(policy, self.tree)
        self.block_of: dict[str, int] = {}
        self.step = 0

    def insert(self, name: str) -> None:
        self.step += 1
        block = len(self.block_of)
        tokens = [ord(name), ord(name), 0]
        request = Request(name, RequestSpec(tokens), block, 0, 0)
        seq = Sequence(name, 0, request, (0, 0, block, 0), tokens, len(tokens))
        seq.block_table = [block]
        self.tree.extend_keys(seq)
        assert self.tree.publish(seq, 0, 1, self.step) == 1
        self.evictor.add([block])
        self.block_of[name] = block

    def hit(self, name: str) -> None:
        self.step += 1
        block = self.block_of[name]
        self.evictor.remove([block])
        self.tree.touch(block, self.step)
        self.evictor.add([block])

    def order(self) -> str:
        names = {block: name for name, block in self.block_of.items()}
        return "".join(names[block] for block in self.evictor.peek(16, ()))


@pytest.mark.parametrize(("policy", "order"), [("lru", "XYZ"), ("fifo", "XYZ"), ("lfu", "YZX"), ("2q", "YZX")])
def test_the_victim_after_two_early_hits(policy: str, order: str) -> None:  # F4
    cache = Cache(policy)
    cache.insert("X")
    cache.hit("X")
    cache.hit("X")
    cache.insert("Y")
    cache.insert("Z")
    assert cache.order() == order


@pytest.mark.parametrize(("policy", "order"), [("fifo", "XYZ"), ("lru", "YZX"), ("lfu", "YZX"), ("2q", "YZX")])
def test_the_victim_after_one_late_hit(policy: str, order: str) -> None:  # F4
    cache = Cache(policy)
    for name in "XYZ":
        cache.insert(name)
    cache.hit("X")
    assert cache.order() == order


def test_two_queues_forget_how_often_and_lfu_does_not() -> None:
    for policy, order in (("2q", "YXZ"), ("lfu", "YZX"), ("lru", "YXZ")):
        cache = Cache(policy)
        for name in "XYZ":
            cache.insert(name)
        for name in "XXXZ":
            cache.hit(name)
        assert cache.order() == order, policy


def test_two_queues_resist_a_scan_and_lru_does_not() -> None:
    for policy, survives in (("2q", True), ("lfu", True), ("lru", False), ("fifo", False)):
        cache = Cache(policy)
        cache.insert("X")
        cache.hit("X")
        for name in "abcdefgh":
            cache.insert(name)
        assert ("X" not in cache.order()[:8]) is survives, policy


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_is_the_oracle_whatever_happened_before(policy: str) -> None:
    @settings(max_examples=25, deadline=None, database=None, derandomize=True)
    @given(st.integers(0, 10**6))
    def follow(seed: int) -> None:
        rng = Random(seed)
        prompts = tree_prompts(rng, 12, 2, inside=rng.random() < 0.5)
        future = future_of(prompts, 2, m=3) if policy == "belady" else None
        queue = rng.choice(["fcfs", "sjf"])  # sjf: the future comes in another order than foreseen, and keys go stale
        sizes = {"max_num_seqs": rng.randint(1, 3), "max_batched_tokens": 8}
        engine = make_engine(rng.randint(5, 14), 2, eviction=policy, future=future, policy=queue, **sizes)
        pinned: list[int] = []
        while prompts or engine.has_requests:
            if prompts and rng.random() < 0.5:
                submit(engine, prompts.pop(0), 3)
            _pin_and_unpin(engine, rng, pinned)
            _same_as_oracle(engine, policy, rng)
            engine.step()
            engine.check()
            if pinned and not engine.scheduler.running:
                engine.unpin(pinned.pop())

    follow()


def _pin_and_unpin(engine: Engine, rng: Random, pinned: list[int]) -> None:
    """Pins are what puts a child behind its parent in order of release."""
    if rng.random() < 0.2:
        block = rng.randrange(engine.config.num_blocks)
        if block not in engine.allocator.pool.fresh and len(pinned) < 2:
            engine.pin(block)
            pinned.append(block)
    elif pinned and rng.random() < 0.3:
        engine.unpin(pinned.pop())


def _same_as_oracle(engine: Engine, policy: str, rng: Random) -> None:
    evictor, cache = engine.allocator.pool.evictor, engine.allocator.cache  # pyright: ignore[reportAttributeAccessIssue]
    idle = list(evictor)  # pyright: ignore[reportArgumentType]
    exclude = {block for block in idle if rng.random() < 0.2}
    k = rng.randint(0, len(idle) + 1)
    expected = eviction_order(policy, idle, exclude, k, cache)
    for _ in range(2):  # asking changes nothing
        assert evictor.peek(k, exclude) == expected
    assert list(evictor) == idle  # pyright: ignore[reportArgumentType]
    assert not exclude & set(expected)


def test_the_oracle_runs_meet_what_they_are_to_check() -> None:
    # Deep trees, excluded leaves and pinned children must really occur, or any order would pass.
    seen = {"evicted": 0, "parents freed": 0, "excluded": 0}
    for seed in range(40):
        rng = Random(seed)
        engine = make_engine(rng.randint(5, 9), 2, eviction="lfu", max_num_seqs=2, max_batched_tokens=8)
        for prompt in tree_prompts(rng, 12, 2, inside=True):
            serve(engine, prompt, 3)
            idle = list(engine.allocator.pool.evictor)  # pyright: ignore[reportArgumentType]
            cache = engine.allocator.cache  # pyright: ignore[reportAttributeAccessIssue]
            order = eviction_order("lfu", idle, set(), len(idle), cache)
            seen["parents freed"] += any(cache.parent[block] in order for block in order)
            seen["excluded"] += len(eviction_order("lfu", idle, set(order[:1]), len(idle), cache)) < len(order)
        seen["evicted"] += engine.counters().evictions > 0
    assert min(seen.values()) >= 20, seen


@pytest.mark.parametrize("policy", [name for name in POLICIES if name not in ("lru", "belady")])
def test_a_block_hit_again_and_again_costs_no_memory(policy: str) -> None:
    engine = make_engine(8, 4, eviction=policy)
    for _ in range(1000):
        serve(engine, distinct(5, 0))
    evictor = engine.allocator.pool.evictor
    assert isinstance(evictor, KeyedEvictor)
    assert len(evictor._heap) <= 2 * len(evictor) + 64
