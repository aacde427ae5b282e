"""Paged allocation: blocks on demand, shared by refcount, found again through the prefix cache.

(Kwon et al., "Efficient Memory Management for Large Language Model Serving with PagedAttention", SOSP 2023, §4;
the tree over prefixes is that of Zheng et al., "SGLang", 2024, with whole blocks as edges.)
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable
from itertools import repeat

from kvtop.engine.allocators.base import GROUP, Admission
from kvtop.engine.allocators.caching import CachingAllocator
from kvtop.engine.config import EngineConfig
from kvtop.engine.errors import InvariantError
from kvtop.engine.host_tier import HostTier
from kvtop.engine.prefix_cache import KeyFn, Lookup, PrefixCache
from kvtop.engine.recorder import AnyRecorder
from kvtop.engine.sequence import Sequence
from kvtop.engine.types import MissReason, Shortage


class PagedAllocator(CachingAllocator):
    """One block table a sequence: every token is kept. (With sliding windows: ``allocators/windowed.py``.)"""

    cache: PrefixCache

    def __init__(self, config: EngineConfig, recorder: AnyRecorder, key_fn: KeyFn | None = None) -> None:
        self.cache = PrefixCache(
            config.num_blocks, config.block_size, key_fn=key_fn, ghost_entries=config.ghost_entries
        )
        super().__init__(config, recorder, self.cache)
        if config.host_cache_blocks:
            self.tier = HostTier(config.host_cache_blocks, config.host_blocks, self.cache)
        self._unpublished: list[Sequence] | None = None  # ``_computing``, once it was asked for in this step

    def begin_step(self, step: int) -> None:
        super().begin_step(step)
        self._unpublished = None

    # -- questions -----------------------------------------------------------------------------------------------

    def try_admit(self, seq: Sequence, budget: int, running: list[Sequence]) -> Admission | Shortage:
        if seq.host_table:
            return self._swap_back(seq, budget, running)
        pool = self.pool
        may_hit = self._may_hit(seq)
        hits = self.cache.match(seq) if may_hit else []
        # What the host tier has is brought into blocks of its own: they are as many as if it had to be computed.
        host = self.tier.match(seq, len(hits)) if self.tier is not None and may_hit else []
        missing = self.blocks_for(seq.num_tokens) - len(hits)
        idle_hits = {b for b in hits if not pool.refcount[b]}
        # An idle hit stops being evictable, so it costs one block of what is free; a hit in use costs nothing.
        need = missing + len(idle_hits)
        have = self._available(running)
        if need > have:
            return Shortage(self._why_short(need, have), need, max(0, have))
        cached = (len(hits) + len(host)) * self.block_size
        count = min(seq.num_tokens - cached, budget)
        first = self.blocks_for(cached + count) - len(hits)
        plan = pool.plan(first, idle_hits)
        if plan is None:
            return self._no_plan(need, have)
        lookup = self.cache.explain(seq, hits, self._computing(running), len(host)) if may_hit else self._no_lookup()
        seq.saved_blocks = len(hits) - len(idle_hits)
        seq.peak_saved = max(seq.peak_saved, seq.saved_blocks)
        for index, block in enumerate(hits):
            pool.acquire(block, seq.seq_id)
            self.cache.touch(block, self.step)
            seq.block_table.append(block)
            self.recorder.decide(("share", seq.seq_id, GROUP, block, index * self.block_size, "hit"))
        if host:
            self._load(seq, host, plan)
        else:
            self._evict_and_take(plan, seq)
        seq.num_published = len(hits)
        seq.cache_epoch = self.cache.epoch
        self._promise(seq, missing - first)
        return Admission(cached, count, need, have, lookup, len(host) * self.block_size)

    def _load(self, seq: Sequence, host: list[int], plan: list[int]) -> None:
        """Take ``plan``, and fill the first of its blocks from host blocks ``host``: these outlive what is evicted."""
        assert self.tier is not None
        self.tier.load(seq, host, plan[: len(host)], self.step)
        self._evict_and_take(plan, seq)
        for source, block in zip(host, plan, strict=False):
            self.pool.set_filled(block, self.block_size)
            self.recorder.decide(("host_load", seq.seq_id, GROUP, block, source))
        self.recorder.decide(("host_hit", seq.seq_id, len(host) * self.block_size))

    def _promise(self, seq: Sequence, num_blocks: int) -> None:
        """``seq`` starts, and ``num_blocks`` of what it will need are not allocated yet."""
        seq.promised = num_blocks
        self.promised += num_blocks
        if self._unpublished is not None:
            insort(self._unpublished, seq, key=lambda s: s.order)

    def ready(self, seq: Sequence, end: int) -> bool:
        size, table = self.block_size, seq.block_tables[0]
        if end > len(table) * size:
            return False
        block = table[seq.num_computed // size]
        # A block that is pinned too can be written as well: ``grow`` will find that out.
        return self.pool.refcount[block] == 1 and self.cache.key[block] is None

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
            return self._cannot_grow(new + copy)
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

    # -- swapping ------------------------------------------------------------------------------------------------

    def _stored(self, seq: Sequence) -> list[tuple[int, int]]:
        return [(GROUP, block) for block in seq.block_table[: self.blocks_for(seq.num_computed)]]

    def _swap_back(self, seq: Sequence, budget: int, running: list[Sequence]) -> Admission | Shortage:
        need, have = self.blocks_for(seq.num_tokens), self._available(running)
        if need > have:
            return Shortage(self._why_short(need, have), need, max(0, have))
        count = min(seq.num_tokens - seq.num_swapped, budget)
        first = self.blocks_for(seq.num_swapped + count)
        plan = self.pool.plan(first)
        if plan is None:
            return self._no_plan(need, have)
        self._evict_and_take(plan, seq)
        size, held = self.block_size, len(seq.host_table)
        back = [(GROUP, seq.block_table[i], min(size, seq.num_swapped - i * size)) for i in range(held)]
        cached = self._bring_back(seq, back)
        self._promise(seq, need - first)
        return Admission(cached, count, need, have, Lookup([], MissReason.LAST_TOKEN))

    # -- publishing ----------------------------------------------------------------------------------------------

    def commit(self, seq: Sequence, start: int) -> None:
        end, size, table = seq.num_computed, self.block_size, seq.block_tables[0]
        if end - start == 1:  # a decode
            self.pool.set_filled(table[start // size], start % size + 1)
        else:
            self.pool.fill(table, start, end)
        full = end // size
        if seq.num_published >= full or not self.caching or seq.cache_epoch != self.cache.epoch:
            return
        self.cache.extend_keys(seq)
        while (first := seq.num_published) < full:
            end = self.cache.publish(seq, first, full, self.step)
            self._record_published(seq, first, end)
            seq.num_published = end
            if end == full:
                return
            standing = self.cache.standing(seq, end)
            if standing is None:  # the key belongs to other tokens: nothing behind this block can be found either
                seq.cache_epoch = -1
                return
            if standing == seq.block_table[end]:
                self._record_published(seq, end, end + 1)
            else:
                self._switch_to(standing, seq, end)
            seq.num_published = end + 1

    def _record_published(self, seq: Sequence, first: int, end: int) -> None:
        if first < end:
            blocks, keys = seq.block_table[first:end], seq.keys[first:end]
            parent_keys = [self.cache.parent_key(blocks[0]), *keys]
            self.recorder.decide_all(
                zip(repeat("publish"), repeat(seq.seq_id), repeat(GROUP), blocks, keys, parent_keys, strict=False)
            )

    def release(self, seq: Sequence) -> None:
        last_use, step = self.cache.last_use_step, self.step
        for block in seq.block_table[: seq.num_published]:
            last_use[block] = step
        if self.tier is not None:
            self.tier.drop(seq)
        super().release(seq)

    # -- inside --------------------------------------------------------------------------------------------------

    def _computing(self, running: list[Sequence]) -> list[Sequence]:
        """Running sequences with whole blocks that are not published yet, in static order.

        Made once a step: admissions that each walk over all who run cost as much as all else at 2,000 of them.
        """
        if self._unpublished is None:
            self._unpublished = [seq for seq in running if seq.num_published < len(seq.keys)]
        return self._unpublished

    def check(self, sequences: Iterable[Sequence]) -> None:
        sequences = list(sequences)
        super().check(sequences)
        for seq in sequences:
            for block in seq.block_table[: seq.num_published]:
                # A reset unpublishes under running sequences; their epoch is old then.
                if not self.cache.is_published(block) and seq.cache_epoch == self.cache.epoch:
                    raise InvariantError(f"{seq.seq_id}: block {block} counts as published and is not")
