"""Paged allocation: blocks on demand, shared by refcount, found again through the prefix cache.

(Kwon et al., "Efficient Memory Management for Large Language Model Serving with PagedAttention", SOSP 2023, §4;
the tree over prefixes is that of Zheng et al., "SGLang", 2024, with whole blocks as edges.)
"""

from __future__ import annotations

from collections.abc import Iterable

from kvtop.engine.allocators.base import GROUP, Admission, Allocator
from kvtop.engine.config import EngineConfig
from kvtop.engine.errors import InvariantError
from kvtop.engine.host_pool import HostPool
from kvtop.engine.prefix_cache import KeyFn, Lookup, PrefixCache
from kvtop.engine.recorder import AnyRecorder
from kvtop.engine.sequence import Sequence
from kvtop.engine.types import Eviction, MissReason, Plan, ResetResult, Shortage, WaitReason


class PagedAllocator(Allocator):
    """Block tables over one pool."""

    def __init__(self, config: EngineConfig, recorder: AnyRecorder, key_fn: KeyFn | None = None) -> None:
        self.cache = PrefixCache(
            config.num_blocks, config.block_size, key_fn=key_fn, ghost_entries=config.ghost_entries
        )
        super().__init__(config, recorder, self.cache)
        self.caching = config.caching
        self.host = HostPool(config.host_blocks)
        self._swap_out: list[tuple[int, int]] = []  # (block, host block)
        self._swap_in: list[tuple[Sequence, list[int], list[int]]] = []  # sequence, host blocks, blocks

    def is_published(self, block: int) -> bool:
        return self.cache.is_published(block)

    # -- questions -----------------------------------------------------------------------------------------------

    def try_admit(self, seq: Sequence, budget: int, running: list[Sequence]) -> Admission | Shortage:
        if seq.host_table:
            return self._swap_back(seq, budget, running)
        pool = self.pool
        hits = self.cache.match(seq) if self.caching else []
        missing = self.blocks_for(seq.num_tokens) - len(hits)
        idle_hits = {b for b in hits if not pool.refcount[b]}
        # An idle hit stops being evictable, so it costs one block of what is free; a hit in use costs nothing.
        need = missing + len(idle_hits)
        have = self._available(running)
        if need > have:
            return Shortage(self._why_short(need, have), need, max(0, have))
        cached = len(hits) * self.block_size
        count = min(seq.num_tokens - cached, budget)
        first = self.blocks_for(cached + count) - len(hits)
        plan = pool.plan(first, idle_hits)
        if plan is None:
            return Shortage(WaitReason.FAULT if pool.fault else WaitReason.PINNED, need, max(0, have))
        lookup = self._explain(seq, hits, running)
        seq.saved_blocks = len(hits) - len(idle_hits)
        seq.peak_saved = max(seq.peak_saved, seq.saved_blocks)
        for index, block in enumerate(hits):
            pool.acquire(block, seq.seq_id)
            self.cache.touch(block, self.step)
            seq.block_table.append(block)
            self.recorder.decide(("share", seq.seq_id, GROUP, block, index * self.block_size, "hit"))
        self._evict_and_take(plan, seq)
        seq.num_published = len(hits)
        seq.cache_epoch = self.cache.epoch
        seq.promised = missing - first
        self.promised += seq.promised
        return Admission(cached, count, need, have, lookup)

    def ready(self, seq: Sequence, end: int) -> bool:
        size, table, start = self.block_size, seq.block_tables[0], seq.num_computed
        if end > len(table) * size:
            return False
        block = table[start // size]
        return self.pool.refcount[block] - self.pool.pins[block] == 1 and self.cache.key[block] is None

    def growth(self, seq: Sequence, end: int) -> int:
        return max(0, self.blocks_for(end) - len(seq.block_table)) + self._must_copy(seq)

    def _must_copy(self, seq: Sequence) -> bool:
        """The next position lies in a block that others hold too."""
        index = seq.num_computed // self.block_size
        return index < len(seq.block_table) and not self.writable(seq.block_table[index])

    def grow(self, seq: Sequence, end: int) -> Shortage | None:
        copy = self._must_copy(seq)
        new = max(0, self.blocks_for(end) - len(seq.block_table))
        if not new and not copy:
            return None
        plan = self.pool.plan(new + copy)
        if plan is None:
            have = self.pool.num_fresh + self.pool.num_idle
            reason = WaitReason.FAULT if self.pool.fault else self._why_short(new + copy, have)
            return Shortage(reason, new + copy, have)
        if copy:
            self._copy_on_write(seq, plan.pop(0))
        self._evict_and_take(plan, seq)
        kept = min(seq.promised, new)
        seq.promised -= kept
        self.promised -= kept
        return None

    def room(self, seq: Sequence) -> int:
        room = super().room(seq)
        if self._must_copy(seq):
            # The shared last block must be copied first: without a block for the copy its free slots are no use.
            spare = self.pool.num_fresh + self.pool.num_idle
            return room - self.block_size if spare else 0
        return room

    def cached_tokens(self, seq: Sequence) -> int:
        return self.cache.num_matching(seq) if self.caching else 0

    def cached_path(self, seq: Sequence) -> list[int]:
        return self.cache.match(seq) if self.caching else []

    def fork(self, parent: Sequence, child: Sequence) -> Shortage | None:
        for index, block in enumerate(parent.block_table):
            self.pool.acquire(block, child.seq_id)
            child.block_table.append(block)
            self.recorder.decide(("share", child.seq_id, GROUP, block, index * self.block_size, "fork"))
        child.saved_blocks = child.peak_saved = len(child.block_table)
        child.num_computed = parent.num_computed
        child.num_published = parent.num_published
        child.cache_epoch = parent.cache_epoch
        child.peak_blocks = len(child.block_table)
        return None

    def writable(self, block: int) -> bool:
        """Exactly one table holds it, and the tree does not."""
        return self.pool.refcount[block] - self.pool.pins[block] == 1 and not self.cache.is_published(block)

    # -- swapping ------------------------------------------------------------------------------------------------

    def swap_out(self, seq: Sequence) -> bool:
        for index, (waiting, hosts, _) in enumerate(self._swap_in):
            if waiting is seq:  # preempted in the step that was to bring it back: its host blocks are still whole
                del self._swap_in[index]
                seq.host_table, seq.num_swapped = hosts, seq.num_computed
                return True
        blocks = seq.block_table[: self.blocks_for(seq.num_computed)]
        hosts = self.host.take(len(blocks)) if self.config.preemption == "swap" else None
        if not hosts:
            return False
        pending = {dest: source for source, dest in self.copies}  # not copied yet: the source holds the content
        for block, host in zip(blocks, hosts, strict=True):
            self._swap_out.append((pending.get(block, block), host))
            self.recorder.decide(("swap_out", seq.seq_id, GROUP, block, host))
        seq.host_table, seq.num_swapped = hosts, seq.num_computed
        return True

    def _swap_back(self, seq: Sequence, budget: int, running: list[Sequence]) -> Admission | Shortage:
        """Admit a swapped-out sequence into new blocks. Its epoch stays: what a reset forgot is not published again."""
        need, have = self.blocks_for(seq.num_tokens), self._available(running)
        if need > have:
            return Shortage(self._why_short(need, have), need, max(0, have))
        count = min(seq.num_tokens - seq.num_swapped, budget)
        first = self.blocks_for(seq.num_swapped + count)
        plan = self.pool.plan(first)
        if plan is None:
            return Shortage(WaitReason.FAULT if self.pool.fault else WaitReason.PINNED, need, max(0, have))
        self._evict_and_take(plan, seq)
        back = seq.block_table[: len(seq.host_table)]
        for index, (block, host) in enumerate(zip(back, seq.host_table, strict=True)):
            self.pool.set_filled(block, min(self.block_size, seq.num_swapped - index * self.block_size))
            self.recorder.decide(("swap_in", seq.seq_id, GROUP, block, host))
        self._swap_in.append((seq, seq.host_table, back))
        cached, seq.host_table, seq.num_swapped = seq.num_swapped, [], 0
        seq.promised = need - first
        self.promised += seq.promised
        return Admission(cached, count, need, have, Lookup([], MissReason.LAST_TOKEN))

    def fill(self, plan: Plan) -> None:
        super().fill(plan)
        plan.swap_out = self._swap_out
        plan.swap_in = [pair for _, hosts, blocks in self._swap_in for pair in zip(hosts, blocks, strict=True)]

    def executed(self) -> None:
        super().executed()
        self._swap_out = []
        for _, hosts, _ in self._swap_in:
            self.host.give(hosts)
        self._swap_in = []

    # -- publishing ----------------------------------------------------------------------------------------------

    def commit(self, seq: Sequence, start: int) -> None:
        super().commit(seq, start)
        full = seq.num_computed // self.block_size
        if seq.num_published >= full or not self.caching or seq.cache_epoch != self.cache.epoch:
            return
        self.cache.extend_keys(seq)
        for index in range(seq.num_published, full):
            own = seq.block_table[index]
            standing = self.cache.publish(seq, index, self.step)
            if standing is None:  # the key belongs to other tokens: nothing behind this block can be found either
                seq.cache_epoch = -1
                return
            if standing == own:
                self.recorder.decide(
                    ("publish", seq.seq_id, GROUP, own, self.cache.key[own], self.cache.parent_key(own))
                )
            else:
                self._switch_to(standing, seq, index)
            seq.num_published = index + 1

    def _switch_to(self, standing: int, seq: Sequence, index: int) -> None:
        """Another sequence published the same tokens first: use its block and release the own copy.

        Otherwise the next block would hang under a parent that the tree does not know.
        """
        own = seq.block_table[index]
        self.pool.acquire(standing, seq.seq_id)
        self.cache.last_use_step[standing] = self.step
        seq.block_table[index] = standing
        seq.saved_blocks += 1
        seq.peak_saved = max(seq.peak_saved, seq.saved_blocks)
        self.recorder.decide(("share", seq.seq_id, GROUP, standing, index * self.block_size, "dedup"))
        self.pool.release([own], seq.seq_id, self.is_published, self.step)
        self.recorder.decide(("free", seq.seq_id, GROUP, own, "dedup"))

    def release(self, seq: Sequence) -> None:
        for block in seq.block_table[: seq.num_published]:
            self.cache.last_use_step[block] = self.step
        super().release(seq)

    @property
    def host_used(self) -> int:
        return self.host.num_used

    def end(self, seq: Sequence) -> None:
        super().end(seq)
        self.host.give(seq.host_table)
        seq.host_table, seq.num_swapped = [], 0

    def reset(self) -> ResetResult:
        """Forget every prefix. Blocks in use stay with their owners and are never published again."""
        result = ResetResult.DONE
        for block in self.cache.leaves_first():
            key = self.cache.key[block]
            self.cache.unpublish(block, self.step, "reset")
            self.recorder.decide(("unpublish", GROUP, block, key, "reset"))
            if self.pool.refcount[block]:
                result = ResetResult.PARTIAL
            else:
                self.pool.to_fresh(block)
        self.cache.epoch += 1
        self.recorder.decide(("cleared", result.value))
        return result

    def evict(self, block: int, cause: str) -> None:
        """Take an idle block out of the tree: it becomes fresh."""
        cache = self.cache
        key, parent_key = cache.key[block], cache.parent_key(block)
        assert key is not None
        age, idle = self.step - cache.published_step[block], self.step - cache.last_use_step[block]
        eviction = Eviction(block, key, parent_key, cause, self.step, age, idle, cache.uses[block])
        parent = cache.parent(block)
        cache.unpublish(block, self.step, cause)
        self.pool.to_fresh(block)
        if parent is not None:
            self.pool.evictor.child_gone(parent)
        self.evictions.append(eviction)
        self.num_evictions += 1
        self.recorder.decide(("evict", cause, GROUP, block, key, parent_key, age, idle, eviction.uses))

    def _available(self, running: list[Sequence]) -> int:
        """Blocks an admission may count on; the reserve applies only while something runs."""
        reserve = self.config.reserve_blocks if running else 0
        return self.pool.num_fresh + self.pool.num_idle - self.promised - self.hold - reserve

    # -- inside --------------------------------------------------------------------------------------------------

    def _evict_and_take(self, plan: list[int], seq: Sequence) -> None:
        for block in plan:
            if self.cache.is_published(block):
                self.evict(block, seq.seq_id)
        self._take(plan, seq)

    def _copy_on_write(self, seq: Sequence, dest: int) -> None:
        index = seq.num_computed // self.block_size
        source = seq.block_table[index]
        if self.cache.is_published(dest):
            self.evict(dest, seq.seq_id)
        self.pool.take([dest], seq.seq_id)
        seq.block_table[index] = dest
        seq.saved_blocks -= 1
        seq.num_published = min(seq.num_published, index)
        self._copy_block(source, dest, seq, index)
        self.pool.release([source], seq.seq_id, self.is_published, self.step)

    def _why_short(self, need: int, have: int) -> WaitReason:
        """Pinned, when the blocks that only pins hold would have been enough."""
        pool = self.pool
        held = sum(1 for b, pins in enumerate(pool.pins) if pins and pool.refcount[b] == pins) if any(pool.pins) else 0
        return WaitReason.PINNED if held and need <= have + held else WaitReason.NO_BLOCKS

    def _explain(self, seq: Sequence, hits: list[int], running: list[Sequence]) -> Lookup:
        if not self.caching:
            return Lookup([], MissReason.CACHE_OFF)
        return self.cache.explain(seq, hits, running)

    def check(self, sequences: Iterable[Sequence]) -> None:
        sequences = list(sequences)
        super().check(sequences)
        self.cache.check()
        for block in range(self.config.num_blocks):
            idle_or_used = self.pool.refcount[block] or block in self.pool.evictor
            if self.cache.is_published(block) and block in self.pool.fresh:
                raise InvariantError(f"block {block} is published and fresh")
            if not self.cache.is_published(block) and idle_or_used and not self.pool.refcount[block]:
                raise InvariantError(f"block {block} is idle but not published")
        held = sum(len(seq.host_table) for seq in sequences) + sum(len(hosts) for _, hosts, _ in self._swap_in)
        if held != self.host.num_used:
            raise InvariantError(f"{self.host.num_used} host blocks are used, sequences hold {held}")
        for seq in sequences:
            for block in seq.block_table[: seq.num_published]:
                # A reset unpublishes under running sequences; their epoch is old then.
                if not self.cache.is_published(block) and seq.cache_epoch == self.cache.epoch:
                    raise InvariantError(f"{seq.seq_id}: block {block} counts as published and is not")
