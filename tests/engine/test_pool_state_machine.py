"""Pool, radix tree and paged allocator under random operations, held to a plain model after each of them.

The KV memory is simulated slot by slot: copies and writes are applied as an executor would, and every block table of
every live sequence must read back exactly its own prefix. Aliasing of any kind shows up there.
"""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, note, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from pool_model import ModelSequence, PoolModel

from kvtop.engine.allocators.base import Admission
from kvtop.engine.allocators.paged import PagedAllocator
from kvtop.engine.api import (
    EngineConfig,
    InvariantError,
    MissReason,
    NullRecorder,
    RequestSpec,
    ResetResult,
    SamplingParams,
    Shortage,
    WaitReason,
)
from kvtop.engine.prefix_cache import default_key
from kvtop.engine.sequence import Request, Sequence

EXTRAS = [None, None, None, {"salt": "x"}, {"adapter": "x"}]
STEMS = [[0] * 12, [1] * 12, [0, 1] * 6]
BLOCK_KEYS: list[dict[int, str]] = [{}, {}, {}, {0: "image"}, {1: "image"}]
FAULTS = [0, 0, 0, 0, 0, 0, 1, 2, 3]  # the k-th block of a plan fails; 0: none does

KEY_FUNCTIONS = {
    "default": default_key,
    "colliding": lambda parent, tokens, extra: (parent + sum(tokens) + len(str(extra))) % 3,
    "constant": lambda parent, tokens, extra: 7,
}


# How often each operation is tried. One rule chooses from this list, by a seed: were they rules of their own,
# hypothesis would leave some of them out of most runs (without admissions nothing happens), and would prefer small
# values, under which blocks never run short.
OPERATIONS = (
    ["compute"] * 8
    + ["admit_new"] * 5
    + ["release"] * 3
    + ["next_step", "admit_again", "fork"] * 2
    + ["pin", "unpin", "force_eviction", "reset", "release_too_much", "set_limit"]
)


class PoolMachine(RuleBasedStateMachine):
    """Real objects beside the model; ``live`` and ``parked`` map a name to (real sequence, model sequence)."""

    @initialize(seed=st.integers(0, 2**32 - 1))
    def build(self, seed: int) -> None:
        rng = Random(seed)
        num_blocks, block_size = rng.randint(2, 9), rng.randint(1, 4)
        deferred, reserve = rng.choice([0, 0, 0, 1, 2]), rng.choice([0, 0, 1])
        keys = rng.choice(["default", "default", "default", "colliding", "constant"])
        note(f"{num_blocks} blocks of {block_size}, deferred {deferred}, reserve {reserve}, {keys} keys")
        config = EngineConfig(
            num_blocks=num_blocks, block_size=block_size, deferred_free_steps=deferred, reserve_blocks=reserve
        )
        self.keys = keys
        self.reserve = reserve
        self.real = PagedAllocator(config, NullRecorder(), KEY_FUNCTIONS[keys])
        self.model = PoolModel(num_blocks, block_size, deferred)
        self.live: dict[str, tuple[Sequence, ModelSequence]] = {}
        self.parked: dict[str, tuple[Sequence, ModelSequence]] = {}
        self.num_made = self.num_operations = 0

    # -- helpers -------------------------------------------------------------------------------------------------

    def snapshot(self) -> tuple[Any, ...]:
        """Everything a refused operation must leave as it was, order included."""
        pool, cache = self.real.pool, self.real.cache
        everyone = [*self.live.values(), *self.parked.values()]
        return (
            [list(x) for x in (pool.refcount, pool.pins, pool.filled, pool.fresh, pool.evictor)],  # pyright: ignore
            [list(x) for x in (cache.key, cache.uses, cache.last_use_step, cache.published_step)],
            [(s.seq_id, list(s.block_table), s.promised, s.num_computed, s.num_published) for s, _ in everyone],
            (list(self.real.copies), self.real.num_copies, self.real.num_evictions, self.real.promised, cache.version),
        )

    def evicted(self) -> list[int]:
        return [block for run in self.real.evicted_runs for block in run.blocks]

    def with_fault(self, at: int) -> None:
        self.real.pool.fault = (lambda k: k == at) if at else None

    def available(self, k: int, exclude: set[int]) -> bool:
        missing = max(0, k - len(self.model.fresh))
        return len(self.model.victims(missing, exclude)) == missing

    def took(self, blocks: list[int], evicted_before: int, exclude: set[int]) -> None:
        """``blocks`` were taken from the pool: check where from, and follow in the model."""
        model = self.model
        expected = model.victims(max(0, len(blocks) - len(model.fresh)), exclude)
        evicted = self.evicted()[evicted_before:]
        assert evicted == expected, f"evicted {evicted}, least recently used leaves first would be {expected}"
        for block in expected:
            model.evict(block)
        assert len(set(blocks)) == len(blocks)
        assert set(blocks) <= model.fresh
        for block in blocks:
            model.acquire(block)

    def names(self, rng: Random, most: int = 3) -> list[str]:
        return rng.sample(sorted(self.live), rng.randint(1, min(most, len(self.live))))

    # -- operations ---------------------------------------------------------------------------------------------------

    @rule(seed=st.integers(0, 2**32 - 1))
    def operate(self, seed: int) -> None:
        self.num_operations += 1
        rng = Random(seed + self.num_operations * 2**32)
        name = rng.choice(OPERATIONS) if self.live else "admit_new"
        note(name)
        getattr(self, name)(rng)

    def prompt(self, rng: Random) -> list[int]:
        """A beginning that others are likely to have too, and a tail."""
        longest = self.model.num_blocks * self.model.size // 2
        tail = [rng.randint(0, 1) for _ in range(rng.randint(0, 3))]
        return (rng.choice(STEMS)[: rng.randint(0, min(12, longest))] + tail) or [0]

    def admit_new(self, rng: Random) -> None:
        tokens, extra, block_keys = self.prompt(rng), rng.choice(EXTRAS), rng.choice(BLOCK_KEYS)
        name = f"s{self.num_made}"
        self.num_made += 1
        key = tuple(sorted(extra.items())) if extra else ()
        spec = RequestSpec(tokens, SamplingParams(max_tokens=100), name, extra_key=extra, block_keys=block_keys)
        request = Request(name, spec, self.num_made, 0, 0, extra=key)
        seq = Sequence(name, 0, request, (0, 0, self.num_made, 0), list(tokens), len(tokens))
        self.admit(seq, ModelSequence(name, key, block_keys, list(tokens)), rng)

    def admit_again(self, rng: Random) -> None:
        if self.parked:
            self.admit(*self.parked[rng.choice(sorted(self.parked))], rng)

    def admit(self, seq: Sequence, want: ModelSequence, rng: Random) -> None:
        budget, fault = rng.randint(1, 12), rng.choice(FAULTS)
        model, before = self.model, self.snapshot()
        hits = model.hits(want)
        idle_hits = {b for b in hits if not model.refs[b]}
        missing = model.blocks_for(len(want.tokens)) - len(hits)
        promised = sum(m.promised for _, m in self.live.values())
        have = len(model.fresh) + len(model.idle) - promised - (self.reserve if self.live else 0)
        cached = len(hits) * model.size
        count = min(len(want.tokens) - cached, budget)
        first = model.blocks_for(cached + count) - len(hits)
        fits = missing + len(idle_hits) <= have and self.available(first, idle_hits)
        evicted = len(self.evicted())
        self.with_fault(fault)
        answer = self.real.try_admit(seq, budget, [s for s, _ in self.live.values()])
        self.with_fault(0)
        if not fits or 0 < fault <= first:
            assert isinstance(answer, Shortage)
            assert answer.need == missing + len(idle_hits)
            assert self.snapshot() == before
            assert seq.block_table == []
            return
        assert isinstance(answer, Admission), f"{answer}, the model has room"
        assert (answer.cached, answer.count) == (cached, count)
        assert seq.block_table[: len(hits)] == hits
        for position in range(cached):
            slot = hits[position // model.size] * model.size + position % model.size
            assert model.memory[slot] == (model.epoch, want.content(position, model.size)), "a hit on other content"
        assert (answer.lookup.reason is MissReason.LAST_TOKEN) == (len(hits) == (len(want.tokens) - 1) // model.size)
        for block in hits:
            model.acquire(block)
        self.took(seq.block_table[len(hits) :], evicted, set())
        seq.num_computed = want.computed = cached
        want.table, want.promised, want.may_publish = list(seq.block_table), missing - first, True
        self.parked.pop(want.name, None)
        self.live[want.name] = (seq, want)

    def compute(self, rng: Random) -> None:
        """One step: several sequences grow, one of them may be preempted again, copies are made, tokens written."""
        fault, preempt = rng.choice(FAULTS), rng.randint(0, 4) == 4
        planned: list[tuple[str, int]] = []
        for name in self.names(rng):
            seq, _ = self.live[name]
            count = rng.randint(1, len(seq.tokens) - seq.num_computed)
            if self.grow(name, count, fault):
                planned.append((name, count))
        if preempt and planned:
            name, _ = planned.pop(rng.randint(0, len(planned) - 1))
            self.real.drop_moves(self.live[name][0])
            self.give_back(name)
            self.parked[name] = self.live.pop(name)
        self.execute(planned)
        for name, count in planned:
            self.commit(name, count, rng)

    def grow(self, name: str, count: int, fault: int) -> bool:
        (seq, want), model, before = self.live[name], self.model, self.snapshot()
        index, end = want.computed // model.size, want.computed + count
        copy = index < len(want.table) and (
            model.refs[want.table[index]] - model.pins[want.table[index]] != 1 or model.is_published(want.table[index])
        )
        new = max(0, model.blocks_for(end) - len(want.table))
        fits = self.available(new + copy, set())
        if len(model.victims(len(model.idle), set())) == len(model.idle):
            # A block that only a pin held, or that is still in transfer after one, keeps its idle parents from leaving.
            assert (self.real.room(seq) >= count) == fits
        evicted = len(self.evicted())
        self.with_fault(fault)
        shortage = self.real.grow(seq, end)
        self.with_fault(0)
        if not fits or 0 < fault <= new + copy:
            assert shortage is not None
            assert shortage.reason in (WaitReason.FAULT, WaitReason.NO_BLOCKS, WaitReason.PINNED)
            assert shortage.need == new + copy
            assert self.snapshot() == before
            return False
        assert shortage is None, f"{shortage}, the model has room"
        taken = seq.block_table[len(want.table) :]
        if copy:
            source, dest = want.table[index], seq.block_table[index]
            assert self.real.copies[-1] == (source, dest)
            self.took([dest, *taken], evicted, set())
            model.drop(source)
            want.table[index] = dest
        else:
            self.took(taken, evicted, set())
        want.table += taken
        want.promised -= min(want.promised, new)
        assert seq.block_table == want.table
        return True

    def execute(self, planned: list[tuple[str, int]]) -> None:
        model, size = self.model, self.model.size
        for source, dest in self.real.copies:
            for offset in range(size):
                if source * size + offset in model.memory:
                    model.memory[dest * size + offset] = model.memory[source * size + offset]
        self.real.executed()
        for name, count in planned:
            _, want = self.live[name]
            for position in range(want.computed, want.computed + count):
                block = want.table[position // size]
                assert model.refs[block] - model.pins[block] == 1, f"{name} writes a shared block {block}"
                assert not model.is_published(block), f"{name} writes a published block {block}"
                model.memory[block * size + position % size] = (model.epoch, want.content(position, size))

    def commit(self, name: str, count: int, rng: Random) -> None:
        (seq, want), model = self.live[name], self.model
        first_new = want.computed // model.size
        want.computed += count
        seq.num_computed = want.computed
        self.real.commit(seq, want.computed - count)
        for index in range(first_new, want.computed // model.size):
            prefix, own, stands = want.prefix(index + 1, model.size), want.table[index], seq.block_table[index]
            if not want.may_publish:
                assert stands == own
                continue
            if self.keys != "default" and not self.real.cache.is_published(stands):
                want.may_publish = False  # a collision: it can only be a miss, for all that follows
                continue
            expected = model.published.setdefault(prefix, own)
            assert stands == expected, f"{name}: block {stands} at {index}, {expected} is published with that content"
            if expected != own:
                model.acquire(expected)
                model.drop(own)
                want.table[index] = expected
        assert seq.block_table == want.table
        if want.computed == len(want.tokens):
            token = rng.randint(0, 1)
            seq.tokens.append(token)
            want.tokens.append(token)

    def give_back(self, name: str) -> None:
        seq, want = self.live[name]
        self.real.release(seq)
        for block in reversed(want.table):
            self.model.drop(block)
        want.table, want.computed, want.promised = [], 0, 0
        assert (seq.block_table, seq.num_computed, seq.promised) == ([], 0, 0)

    def release(self, rng: Random) -> None:
        """A sequence ends, or is preempted and may come back."""
        again = rng.random() < 0.5
        for name in self.names(rng, most=2):
            self.give_back(name)
            pair = self.live.pop(name)
            if again:
                self.parked[name] = pair

    def fork(self, rng: Random) -> None:
        if not any(len(s.tokens) - s.num_computed == 1 for s, _ in self.live.values()):
            return
        ready = sorted(n for n, (s, _) in self.live.items() if len(s.tokens) - s.num_computed == 1)
        parent, want = self.live[rng.choice(ready)]
        name = f"s{self.num_made}"
        self.num_made += 1
        child = Sequence(
            name,
            1,
            parent.request,
            (0, 0, self.num_made, 1),
            list(parent.tokens),
            parent.num_prompt,
            keys=list(parent.keys),
            key_tokens=list(parent.key_tokens),
        )
        assert self.real.fork(parent, child) is None
        for block in want.table:
            self.model.acquire(block)
        assert child.block_table == want.table
        twin = ModelSequence(name, want.extra, want.block_keys, list(want.tokens), want.computed, list(want.table))
        twin.may_publish = want.may_publish
        self.live[name] = (child, twin)

    def pin(self, rng: Random) -> None:
        block = rng.randint(0, self.model.num_blocks - 1)
        if block in self.model.fresh | self.model.withheld:
            before = self.snapshot()
            with pytest.raises(InvariantError, match=f"block {block} is (fresh|withheld)"):
                self.real.pool.pin(block)
            assert self.snapshot() == before
            return
        self.real.pool.pin(block)
        self.model.acquire(block)
        self.model.pins[block] += 1

    def unpin(self, rng: Random) -> None:
        pinned = [b for b, count in self.model.pins.items() if count]
        block = rng.choice(pinned or [0])
        if not pinned:
            with pytest.raises(InvariantError, match="not pinned"):
                self.real.pool.unpin(block, self.real.step)
            return
        self.model.pins[block] -= 1
        self.real.pool.unpin(block, self.real.step)
        self.model.drop(block)

    def force_eviction(self, rng: Random) -> None:
        model = self.model
        parents = {prefix[:-1] for prefix in model.published}
        leaves = [b for b in model.idle if model.prefix_of(b) not in parents]
        if not leaves:
            return
        block = rng.choice(leaves)
        self.real.evict(block, "forced")
        assert self.evicted()[-1] == block
        model.evict(block)

    def next_step(self, rng: Random) -> None:
        self.real.begin_step(self.real.step + 1)
        self.model.advance(self.real.step)
        self.withhold(0)

    def set_limit(self, rng: Random) -> None:
        model, before = self.model, len(self.evicted())
        model.limit = rng.choice([model.num_blocks, rng.randint(1, model.num_blocks)])
        self.real.set_limit(model.limit)
        surplus = len(model.withheld) - (model.num_blocks - model.limit)
        back = model.withheld - set(self.real.pool.limit.withheld)
        assert len(back) == max(0, surplus), f"{back} were given back"
        model.withheld -= back
        model.fresh |= back
        self.withhold(before)

    def withhold(self, evicted_before: int) -> None:
        """Follow what the real pool has taken out of circulation: fresh blocks, then the next to be evicted."""
        model = self.model
        owed = model.num_blocks - model.limit - len(model.withheld)
        taken = set(self.real.pool.limit.withheld) - model.withheld
        num_fresh = min(owed, len(model.fresh))
        expected = model.victims(owed - num_fresh, set())
        assert self.evicted()[evicted_before:] == expected
        assert len(taken & model.fresh) == num_fresh
        for block in expected:
            model.evict(block)
        assert len(taken) == num_fresh + len(expected)
        assert taken <= model.fresh
        model.fresh -= taken
        model.withheld |= taken

    def reset(self, rng: Random) -> None:
        if rng.randint(0, 3):  # rarely, or nothing is ever found
            return
        done = self.model.reset()
        assert self.real.reset() is (ResetResult.DONE if done else ResetResult.PARTIAL)
        for _, want in self.live.values():
            want.may_publish = False

    def release_too_much(self, rng: Random) -> None:
        seq, want = self.live[self.names(rng, most=1)[0]]
        if not want.table:
            return
        block, before = want.table[0], self.snapshot()
        too_many = [block] * (self.model.refs[block] - self.model.pins[block] + 1)
        with pytest.raises(InvariantError, match=f"block {block}"):
            self.real.pool.release(too_many, seq.seq_id, self.real.step)
        assert self.snapshot() == before

    # -- after each rule -----------------------------------------------------------------------------------------

    @invariant()
    def the_engine_finds_no_fault(self) -> None:
        if hasattr(self, "real"):
            self.real.check([s for s, _ in self.live.values()])

    @invariant()
    def blocks_are_where_the_model_has_them(self) -> None:
        if not hasattr(self, "real"):
            return
        model, pool = self.model, self.real.pool
        assert dict(enumerate(pool.refcount)) == model.refs
        assert set(pool.fresh) == model.fresh
        assert set(pool.limit.withheld) == model.withheld
        assert list(pool.evictor) == model.idle  # pyright: ignore[reportArgumentType]
        assert pool.num_in_transfer == len(model.transfer)
        published = {b for b in range(model.num_blocks) if self.real.cache.is_published(b)}
        assert published == set(model.published.values())
        for prefix in model.published:
            assert len(prefix) == 2 or prefix[:-1] in model.published, "a child outlived its parent"
        holds = dict(model.pins)
        for _, want in self.live.values():
            for block in want.table:
                holds[block] += 1
        assert holds == model.refs

    @invariant()
    def every_table_reads_back_exactly_its_own_tokens(self) -> None:
        if not hasattr(self, "real"):
            return
        size = self.model.size
        for seq, want in self.live.values():
            assert seq.block_table == want.table
            assert seq.num_computed == want.computed
            for position in range(want.computed):
                slot = seq.block_table[position // size] * size + position % size
                stored = self.model.memory.get(slot)
                assert stored is not None, f"{seq.seq_id} reads slot {slot}, never written"
                assert stored[1] == want.content(position, size), f"{seq.seq_id} reads another's slot at {position}"

    def teardown(self) -> None:
        if not hasattr(self, "real"):
            return
        for name in list(self.live):
            self.give_back(name)
        for block, pins in self.model.pins.items():
            for _ in range(pins):
                self.real.pool.unpin(block, self.real.step)
        self.real.begin_step(self.real.step + 10)
        self.real.check([])
        pool = self.real.pool
        assert (pool.num_used, pool.num_in_transfer, self.real.promised) == (0, 0, 0)
        assert pool.num_fresh + pool.num_idle == self.model.limit
        self.real.set_limit(self.model.num_blocks)
        assert pool.num_fresh + pool.num_idle == self.model.num_blocks


QUICK = settings(
    max_examples=300,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)


def test_pool_tree_and_allocator_agree_with_a_plain_model() -> None:
    run_state_machine_as_test(PoolMachine, settings=QUICK)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_pool_tree_and_allocator_agree_with_a_plain_model_for_long() -> None:
    long = settings(QUICK, max_examples=3000, stateful_step_count=80, derandomize=False)
    run_state_machine_as_test(PoolMachine, settings=long)


@pytest.mark.nightly
@pytest.mark.timeout(8 * 3600)
def test_pool_tree_and_allocator_agree_with_a_plain_model_over_a_million_rules() -> None:
    # Other lives every night: a failure is printed with the choices that lead to it.
    night = settings(QUICK, max_examples=12_500, stateful_step_count=80, derandomize=False)
    run_state_machine_as_test(PoolMachine, settings=night)
