"""Paged allocation over KV groups: one table a group, and of a sliding window only what can still be read.

When a step is computed, the blocks that fell out of a group's window go back to the pool; their entries in the table
stay as NULL_BLOCK, which is no reference. So of a window of W tokens a sequence holds at most ``span_blocks(W)``
blocks while it decodes, and as much more as its chunk needs while it is prefilled.

Admission counts what the whole known sequence holds at most: every block of a group that keeps all, the span of a
windowed one. That is enough to go on token by token, so nobody stalls. Longer chunks take up to half of what nobody is
promised: with all of it, a long prompt would keep everybody else out until its end.
"""

from __future__ import annotations

from collections.abc import Iterable

from kvtop.engine.allocators.base import GROUP, Admission
from kvtop.engine.allocators.caching import CachingAllocator
from kvtop.engine.config import EngineConfig
from kvtop.engine.errors import InvariantError
from kvtop.engine.prefix_cache import KeyFn, Lookup
from kvtop.engine.recorder import AnyRecorder
from kvtop.engine.sequence import Sequence
from kvtop.engine.types import NULL_BLOCK, MissReason, ResetResult, Shortage
from kvtop.engine.windowed_cache import Match, WindowedCache
from kvtop.engine.windows import KVGroups, largest_that


class WindowedAllocator(CachingAllocator):
    """Block tables of several KV groups, or of one that has a window, over one pool."""

    cache: WindowedCache

    def __init__(self, config: EngineConfig, recorder: AnyRecorder, key_fn: KeyFn | None = None) -> None:
        self.groups = KVGroups(config.kv_groups, config.block_size)
        self.cache = WindowedCache(
            config.num_blocks, config.block_size, self.groups, key_fn=key_fn, ghost_entries=config.ghost_entries
        )
        super().__init__(config, recorder, self.cache)
        self._group = [GROUP] * config.num_blocks  # whose layers a block holds, by block
        self._windowed = [(g, w) for g, w in enumerate(config.kv_groups) if w is not None]

    def group_of(self, block: int) -> int:
        return self._group[block]

    def _groups_of(self, blocks: Iterable[int]) -> Iterable[int]:
        return map(self._group.__getitem__, blocks)

    # -- admission -----------------------------------------------------------------------------------------------

    def try_admit(self, seq: Sequence, budget: int, running: list[Sequence]) -> Admission | Shortage:
        if seq.host_table:
            return self._swap_back(seq, budget, running)
        may_hit = self._may_hit(seq)
        match = self.cache.match(seq) if may_hit else Match(0, [[] for _ in self.groups.windows], [])
        hits = [block for table in match.tables for block in table if block != NULL_BLOCK]
        idle_hits = {block for block in hits if not self.pool.refcount[block]}
        cached = match.num_blocks * self.block_size
        in_use = len(hits) - len(idle_hits)  # these cost nothing; an idle one stops being evictable
        need, have, count = self._first_chunk(seq, cached, in_use, budget, running)
        if not count:
            return Shortage(self._why_short(need, have), need, max(0, have))
        new = [self.blocks_for(cached + count) - match.num_blocks] * len(self.groups)
        plan = self.pool.plan(sum(new), idle_hits)
        if plan is None:
            return self._no_plan(need, have)
        lookup = self.cache.explain(seq, match, running) if may_hit else self._no_lookup()
        self._share_hits(seq, match)
        seq.saved_blocks = in_use
        seq.peak_saved = max(seq.peak_saved, in_use)
        self._distribute(plan, new, seq)
        seq.cache_epoch = self.cache.epoch
        self._promise(seq)
        return Admission(cached, count, need, have, lookup)

    def _first_chunk(
        self, seq: Sequence, start: int, hits_in_use: int, budget: int, running: list[Sequence]
    ) -> tuple[int, int, int]:
        """(need, have, tokens of the first chunk) of a sequence that begins at ``start``; 0 tokens: not now."""
        known, have = seq.num_tokens, self._available(running)
        least = self.groups.most_held(known)
        need = sum(least) - hits_in_use

        def beyond(count: int) -> int:
            """Blocks of windowed groups that a first chunk of ``count`` holds on top of what ``need`` has for them."""
            end = self.blocks_for(start + count)
            return sum(max(0, end - self.groups.first_kept(start, g) - most) for g, most in enumerate(least))

        longest = min(known - start, budget)
        if not self.config.chunked_prefill:
            need += beyond(longest)
            return need, have, longest if need <= have else 0
        if need > have:
            return need, have, 0
        return need, have, largest_that(longest, lambda count: 2 * beyond(count) <= have - need)

    def _share_hits(self, seq: Sequence, match: Match) -> None:
        self._open(seq)
        for group, hits in enumerate(match.tables):
            for index, block in enumerate(hits):
                if block == NULL_BLOCK:
                    continue
                self.pool.acquire(block, seq.seq_id)
                self.cache.touch(block, self.step)
                self.recorder.decide(("share", seq.seq_id, group, block, index * self.block_size, "hit"))
            seq.block_tables[group] = hits
            seq.num_dropped[group] = hits.count(NULL_BLOCK)
        seq.num_published = match.num_blocks
        if match.num_blocks:
            self.cache.stand(seq, match.path[match.num_blocks - 1])

    def _open(self, seq: Sequence) -> None:
        """Empty tables, one a group."""
        seq.block_tables = [[] for _ in self.groups.windows]
        seq.num_dropped = [0] * len(self.groups)

    def _lacks(self, seq: Sequence) -> list[int]:
        """Blocks of each group that ``seq`` does not hold of the most it will as far as it is known."""
        most, tables, dropped = self.groups.most_held(len(seq.tokens)), seq.block_tables, seq.num_dropped
        return [max(0, most[g] - len(table) + dropped[g]) for g, table in enumerate(tables)]

    def _promise(self, seq: Sequence) -> None:
        """Promise what ``seq`` lacks: a window's span stays its own while blocks come and go."""
        self.promised -= seq.promised
        seq.promised = sum(self._lacks(seq))
        self.promised += seq.promised

    # -- growth --------------------------------------------------------------------------------------------------

    def ready(self, seq: Sequence, end: int) -> bool:
        size, index, pool = self.block_size, seq.num_computed // self.block_size, self.pool
        for table in seq.block_tables:
            if end > len(table) * size:
                return False
            block = table[index]
            if pool.refcount[block] - pool.pins[block] != 1 or self.cache.key[block] is not None:
                return False
        return True

    def growth(self, seq: Sequence, end: int) -> int:
        return max(0, sum(self._new_blocks(seq, end)) + len(self._to_copy(seq)) - seq.promised)

    def _new_blocks(self, seq: Sequence, end: int) -> list[int]:
        """Blocks that each table lacks up to position ``end``."""
        want = self.blocks_for(end)
        return [max(0, want - len(table)) for table in seq.block_tables]

    def _to_copy(self, seq: Sequence) -> list[int]:
        """Groups in which the next position lies in a block that others hold too."""
        index, tables = seq.num_computed // self.block_size, seq.block_tables
        return [g for g, table in enumerate(tables) if index < len(table) and not self.writable(table[index])]

    def grow(self, seq: Sequence, end: int) -> Shortage | None:
        copies, new = self._to_copy(seq), self._new_blocks(seq, end)
        need = sum(new) + len(copies)
        if not need:
            return None
        plan = self.pool.plan(need)
        if plan is None:
            return self._cannot_grow(need)
        for group, dest in zip(copies, plan, strict=False):
            self._copy_on_write(seq, dest, group)
        self._distribute(plan[len(copies) :], new, seq)
        self._promise(seq)
        return None

    def room(self, seq: Sequence) -> int:
        """Tokens that ``seq`` could compute now: to the end of a block with any block, further with the unpromised."""
        free = self.pool.num_fresh + self.pool.num_idle
        start, copies, own = seq.num_computed, len(self._to_copy(seq)), self._lacks(seq)
        spare = free - self.promised - self.hold - copies
        next_end = (start // self.block_size + 1) * self.block_size - start

        def fits(count: int) -> bool:
            new = self._new_blocks(seq, start + count)
            if sum(new) + copies > free:
                return False
            beyond = sum(max(0, blocks - mine) for blocks, mine in zip(new, own, strict=True))
            return count <= next_end or 2 * beyond <= spare

        return largest_that(seq.num_tokens - start, fits)

    def _distribute(self, plan: list[int], counts: list[int], seq: Sequence) -> None:
        """Take planned blocks, ``counts`` of them for each group in turn."""
        begin = 0
        for group, count in enumerate(counts):
            if count:
                self._evict_and_take(plan[begin : begin + count], seq, group)
            begin += count

    def _take(self, blocks: list[int], seq: Sequence, group: int = GROUP) -> None:
        for block in blocks:
            self._group[block] = group
        super()._take(blocks, seq, group)

    def _copy_on_write(self, seq: Sequence, dest: int, group: int = GROUP) -> None:
        super()._copy_on_write(seq, dest, group)
        self._group[dest] = group

    def fork(self, parent: Sequence, child: Sequence) -> Shortage | None:
        self.cache.stand_beside(child, parent)
        return super().fork(parent, child)

    # -- after a step --------------------------------------------------------------------------------------------

    def commit(self, seq: Sequence, start: int) -> None:
        super().commit(seq, start)
        computed = seq.num_computed
        if seq.num_published < computed // self.block_size and self.caching and seq.cache_epoch == self.cache.epoch:
            self._publish(seq)
        for group, window in self._windowed:
            # Most steps drop nothing: this line is all they pay (negative below the window).
            if (computed - window + 1) // self.block_size > seq.num_dropped[group]:
                self._drop(seq, group)

    def _publish(self, seq: Sequence) -> None:
        """Enter every whole block, those included that are about to fall out of their windows."""
        self.cache.extend_keys(seq)
        for index in range(seq.num_published, seq.num_computed // self.block_size):
            standing = self.cache.publish(seq, index, self.step)
            if standing is None:  # the key belongs to other tokens: nothing behind this block can be found either
                seq.cache_epoch = -1
                return
            for group, block in enumerate(standing):
                own = seq.block_tables[group][index]
                if own == NULL_BLOCK:
                    continue
                if own != block:
                    self._switch_to(block, seq, index, group)
                    continue
                key, parent_key = self.cache.key[own], self.cache.parent_key(own)
                self.recorder.decide(("publish", seq.seq_id, group, own, key, parent_key))
            seq.num_published = index + 1

    def _drop(self, seq: Sequence, group: int) -> None:
        """Give back what the next query does not see any more."""
        table, before = seq.block_tables[group], seq.num_dropped[group]
        first = self.groups.first_kept(seq.num_computed, group)
        gone = [(group, block) for block in reversed(table[before:first])]
        table[before:first] = [NULL_BLOCK] * (first - before)
        seq.num_dropped[group] = first
        self._give_back(gone, seq, "window")
        self._promise(seq)

    def _give_back(self, held: list[tuple[int, int]], seq: Sequence, reason: str) -> None:
        for _, block in held:
            if self.cache.is_published(block):
                self.cache.last_use_step[block] = self.step
        self.pool.release([block for _, block in held], seq.seq_id, self.step)
        for group, block in held:
            self.recorder.decide(("free", seq.seq_id, group, block, reason))

    def release(self, seq: Sequence) -> None:
        self._give_back(seq.held_blocks(), seq, "release")
        self.promised -= seq.promised
        seq.promised = 0
        self._open(seq)
        seq.num_published = seq.num_computed = seq.saved_blocks = 0
        self.cache.stand(seq, None)

    def reset(self) -> ResetResult:
        result = super().reset()
        self.cache.forget_chains()
        return result

    # -- swapping ------------------------------------------------------------------------------------------------

    def _stored(self, seq: Sequence) -> list[tuple[int, int]]:
        end, tables = self.blocks_for(seq.num_computed), seq.block_tables
        return [(g, table[i]) for g, table in enumerate(tables) for i in range(seq.num_dropped[g], end)]

    def _swap_back(self, seq: Sequence, budget: int, running: list[Sequence]) -> Admission | Shortage:
        start = seq.num_swapped
        need, have, count = self._first_chunk(seq, start, 0, budget, running)
        if not count:
            return Shortage(self._why_short(need, have), need, max(0, have))
        first = [self.groups.first_kept(start, group) for group in range(len(self.groups))]
        new = [self.blocks_for(start + count) - index for index in first]
        plan = self.pool.plan(sum(new))
        if plan is None:
            return self._no_plan(need, have)
        seq.block_tables = [[NULL_BLOCK] * index for index in first]
        seq.num_dropped = first
        self._distribute(plan, new, seq)
        size, tables, end = self.block_size, seq.block_tables, self.blocks_for(start)
        back = [
            (g, table[i], min(size, start - i * size)) for g, table in enumerate(tables) for i in range(first[g], end)
        ]
        self._bring_back(seq, back)
        self._promise(seq)
        return Admission(start, count, need, have, Lookup([], MissReason.LAST_TOKEN))

    def check(self, sequences: Iterable[Sequence]) -> None:
        sequences = list(sequences)
        super().check(sequences)
        for seq in sequences:
            for group, table in enumerate(seq.block_tables):
                dropped = seq.num_dropped[group]
                if table and dropped != self.groups.first_kept(seq.num_computed, group):
                    raise InvariantError(f"{seq.seq_id}: {dropped} blocks dropped at {seq.num_computed} computed")
                if table.count(NULL_BLOCK) != dropped or NULL_BLOCK in table[dropped:]:
                    raise InvariantError(f"{seq.seq_id}: table {table} of group {group}, {dropped} blocks dropped")
                if any(self._group[block] != group for block in table[dropped:]):
                    raise InvariantError(f"{seq.seq_id}: table {table} of group {group} has a block of another group")
                unknown = [b for b in table[dropped : seq.num_published] if not self.cache.is_published(b)]
                if unknown and seq.cache_epoch == self.cache.epoch:
                    raise InvariantError(f"{seq.seq_id}: blocks {unknown} count as published and are not")
