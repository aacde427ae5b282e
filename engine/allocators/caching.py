"""What allocators that share blocks do the same way: write rules, eviction, reset, preemption by swap.

A block belongs to one KV group while a sequence holds it or the cache knows it; the pool does not care which.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from collections.abc import Sequence as Seq
from itertools import repeat

from kvtop.engine.allocators.base import GROUP, Admission, Allocator
from kvtop.engine.config import EngineConfig
from kvtop.engine.errors import InvariantError
from kvtop.engine.host_pool import HostPool
from kvtop.engine.host_tier import HostTier
from kvtop.engine.published import Lookup, PublishedBlocks
from kvtop.engine.recorder import AnyRecorder
from kvtop.engine.sequence import Sequence
from kvtop.engine.types import EvictedRun, MissReason, Plan, ResetResult, Shortage, WaitReason


class CachingAllocator(Allocator):
    """Block tables over one pool, and blocks that outlive their owners in a cache of prefixes."""

    cache: PublishedBlocks

    def __init__(self, config: EngineConfig, recorder: AnyRecorder, cache: PublishedBlocks) -> None:
        super().__init__(config, recorder, cache)
        self.caching = config.caching
        self.host = HostPool(config.host_blocks)
        self.tier: HostTier | None = None  # where evicted prefixes go; its host blocks follow those of ``host``
        self._swap_out: list[tuple[int, int]] = []  # (block, host block)
        self._swap_in: list[tuple[Sequence, list[int], list[int]]] = []  # sequence, host blocks, blocks

    def writable(self, block: int) -> bool:
        """Exactly one table holds it, and the tree does not."""
        return self.pool.refcount[block] - self.pool.pins[block] == 1 and not self.cache.is_published(block)

    def _groups_of(self, blocks: Iterable[int]) -> Iterable[int]:
        """``group_of`` each of ``blocks``; may go on for ever."""
        return repeat(GROUP)

    def cached_tokens(self, seq: Sequence) -> int:
        return self.cache.num_matching(seq) if self._may_hit(seq) else 0

    def cached_path(self, seq: Sequence) -> list[int]:
        return self.cache.path(seq) if self._may_hit(seq) else []

    def _may_hit(self, seq: Sequence) -> bool:
        """Whether ``seq`` may take blocks from the cache."""
        return self.caching and not seq.request.unscored

    def _no_lookup(self) -> Lookup:
        """Of a sequence that may not: nothing was looked for."""
        return Lookup([], MissReason.PROMPT_LOGPROBS if self.caching else MissReason.CACHE_OFF)

    def fork(self, parent: Sequence, child: Sequence) -> Shortage | None:
        child.block_tables = [list(table) for table in parent.block_tables]
        child.num_dropped = list(parent.num_dropped)
        for group, table in enumerate(child.block_tables):
            for index in range(child.num_dropped[group], len(table)):
                self.pool.acquire(table[index], child.seq_id)
                self.recorder.decide(("share", child.seq_id, group, table[index], index * self.block_size, "fork"))
        child.saved_blocks = held = child.num_held
        child.peak_saved, child.peak_blocks = max(child.peak_saved, held), max(child.peak_blocks, held)
        child.num_computed = parent.num_computed
        child.num_published = parent.num_published
        child.cache_epoch = parent.cache_epoch
        return None

    # -- cache ---------------------------------------------------------------------------------------------------

    def reset(self) -> ResetResult:
        """Forget every prefix. Blocks in use stay with their owners and are never published again."""
        result = ResetResult.DONE
        gone = self.cache.unpublish(self.cache.leaves_first(), self.step, "reset")
        for block, key in zip(gone.blocks, gone.keys, strict=True):
            self.recorder.decide(("unpublish", self.group_of(block), block, key, "reset"))
            if self.pool.refcount[block]:
                result = ResetResult.PARTIAL
            else:
                self.pool.to_fresh(block)
        if self.tier is not None:
            self.tier.reset()
        self.cache.epoch += 1
        self.recorder.decide(("cleared", result.value))
        return result

    def evict(self, block: int, cause: str) -> None:
        """Take an idle block out of the tree: it becomes fresh."""
        parents = self._evict([block], cause)
        self.pool.to_fresh(block)
        self.pool.evictor.children_gone(parents)

    def _evict(self, blocks: list[int], cause: str) -> Seq[int | None]:
        """Take idle blocks out of the tree, children before parents; the caller takes them out of the evictor.

        Returns the blocks whose children they were: the evictor is told once they are gone.
        """
        stored = self.tier.store(blocks, cause, self.step) if self.tier is not None else ()
        gone = self.cache.unpublish(blocks, self.step, cause)
        ids, times = (blocks, gone.keys, gone.parent_keys), (gone.ages, gone.idle, gone.uses)
        self.evicted_runs.append(EvictedRun(cause, self.step, *ids, *times))
        self.num_evictions += len(blocks)
        self.recorder.decide_all(
            zip(repeat("evict"), repeat(cause), self._groups_of(blocks), *ids, *times, strict=False)
        )
        if stored:
            self.recorder.decide_all(stored)
        return gone.parents

    # -- limit ---------------------------------------------------------------------------------------------------

    def set_limit(self, size: int) -> None:
        """At most ``size`` blocks in circulation from now on, or as soon as enough have been given back."""
        pool = self.pool
        for block in pool.limit.set(size, pool.fresh):
            self.recorder.decide(("give_back", block))
        self._withhold()

    def begin_step(self, step: int) -> None:
        super().begin_step(step)
        if self.pool.limit.owed:
            self._withhold()

    @property
    def unsettled(self) -> bool:
        """Also: the limit is short of blocks that are available."""
        pool = self.pool
        return super().unsettled or bool(pool.limit.owed and (pool.num_fresh or pool.evictor.peek(1, ())))

    def _withhold(self) -> None:
        """Take what the limit is short of: fresh blocks first, then idle ones in the order of eviction."""
        limit, evictor = self.pool.limit, self.pool.evictor
        blocks = limit.take_fresh(self.pool.fresh)
        if limit.owed and len(evictor):
            idle = evictor.peek(limit.owed, ())
            parents = self._evict(idle, "limit") if idle else ()
            evictor.remove(idle)
            evictor.children_gone(parents)
            for block in idle:
                self.pool.filled[block] = 0
            limit.take(idle)
            blocks += idle
        for block in blocks:
            self.recorder.decide(("withhold", block))

    # -- swapping ------------------------------------------------------------------------------------------------

    @property
    def host_used(self) -> int:
        return self.host.num_used

    @property
    def host_cached(self) -> int:
        return self.tier.pool.num_used if self.tier is not None else 0

    def swap_out(self, seq: Sequence) -> bool:
        if self.tier is not None and self.tier.loading(seq):
            return False  # its blocks are not filled yet, and what they are filled with stays in the tier
        for index, (waiting, hosts, _) in enumerate(self._swap_in):
            if waiting is seq:  # preempted in the step that was to bring it back: its host blocks are still whole
                del self._swap_in[index]
                seq.host_table, seq.num_swapped = hosts, seq.num_computed
                return True
        stored = self._stored(seq)
        hosts = self.host.take(len(stored)) if self.config.preemption == "swap" else None
        if not hosts:
            return False
        pending = {dest: source for source, dest in self.copies}  # not copied yet: the source holds the content
        for (group, block), host in zip(stored, hosts, strict=True):
            self._swap_out.append((pending.get(block, block), host))
            self.recorder.decide(("swap_out", seq.seq_id, group, block, host))
        seq.host_table, seq.num_swapped = hosts, seq.num_computed
        return True

    @abstractmethod
    def _stored(self, seq: Sequence) -> list[tuple[int, int]]:
        """(group, block) of everything ``seq`` has computed and keeps, in the order in which it is brought back."""

    @abstractmethod
    def _swap_back(self, seq: Sequence, budget: int, running: list[Sequence]) -> Admission | Shortage:
        """Admit a swapped-out sequence into new blocks. Its epoch stays: what a reset forgot is not published again."""

    def _bring_back(self, seq: Sequence, back: list[tuple[int, int, int]]) -> int:
        """Plan the moves from host memory into ``back`` (group, block, tokens in it); returns the tokens restored."""
        for (group, block, filled), host in zip(back, seq.host_table, strict=True):
            self.pool.set_filled(block, filled)
            self.recorder.decide(("swap_in", seq.seq_id, group, block, host))
        self._swap_in.append((seq, seq.host_table, [block for _, block, _ in back]))
        restored, seq.host_table, seq.num_swapped = seq.num_swapped, [], 0
        return restored

    def fill(self, plan: Plan) -> None:
        super().fill(plan)
        plan.swap_out = self._swap_out
        plan.swap_in = [pair for _, hosts, blocks in self._swap_in for pair in zip(hosts, blocks, strict=True)]
        if self.tier is not None:
            outs, ins = self.tier.moves()
            plan.swap_out, plan.swap_in = self._swap_out + outs, plan.swap_in + ins

    def executed(self) -> None:
        super().executed()
        if self.tier is not None:
            self.tier.executed()
        self._swap_out = []
        for _, hosts, _ in self._swap_in:
            self.host.give(hosts)
        self._swap_in = []

    def end(self, seq: Sequence) -> None:
        super().end(seq)
        for index, (waiting, hosts, _) in enumerate(self._swap_in):
            if waiting is seq:  # the step that was to bring it back failed
                del self._swap_in[index]
                self.host.give(hosts)
                break
        self.host.give(seq.host_table)
        seq.host_table, seq.num_swapped = [], 0

    # -- inside --------------------------------------------------------------------------------------------------

    def _available(self, running: list[Sequence]) -> int:
        """Blocks an admission may count on; the reserve applies only while something runs."""
        reserve = self.config.reserve_blocks if running else 0
        return self.pool.num_fresh + self.pool.num_idle - self.promised - self.hold - reserve

    def _why_short(self, need: int, have: int) -> WaitReason:
        """Pinned, when the blocks that only pins hold would have been enough."""
        pool = self.pool
        held = 0
        if pool.num_pins:  # this is asked whenever somebody is refused: the pool is looked through for pins only
            held = sum(1 for b, pins in enumerate(pool.pins) if pins and pool.refcount[b] == pins)
        return WaitReason.PINNED if held and need <= have + held else WaitReason.NO_BLOCKS

    def _no_plan(self, need: int, have: int) -> Shortage:
        """The pool has the blocks in number and could not plan them: a fault, or pins hold their children."""
        return Shortage(WaitReason.FAULT if self.pool.fault else WaitReason.PINNED, need, max(0, have))

    def _cannot_grow(self, need: int) -> Shortage:
        have = self.pool.num_fresh + self.pool.num_idle
        return Shortage(WaitReason.FAULT if self.pool.fault else self._why_short(need, have), need, have)

    def _evict_and_take(self, plan: list[int], seq: Sequence, group: int = GROUP) -> None:
        """Planned blocks, idle ones among them, become the next of ``seq``."""
        parents = self._evict_idle(plan, seq)
        self._take(plan, seq, group)
        self.pool.evictor.children_gone(parents)

    def _evict_idle(self, plan: list[int], seq: Sequence) -> Seq[int | None]:
        keys = self.cache.key
        # In a full pool all are idle, which takes no Python to see.
        idle = plan if None not in map(keys.__getitem__, plan) else [block for block in plan if keys[block] is not None]
        return self._evict(idle, seq.seq_id) if idle else []

    def _copy_on_write(self, seq: Sequence, dest: int, group: int = GROUP) -> None:
        index = seq.num_computed // self.block_size
        table = seq.block_tables[group]
        source = table[index]
        parents = self._evict_idle([dest], seq)
        self.pool.take([dest], seq.seq_id)
        self.pool.evictor.children_gone(parents)
        table[index] = dest
        seq.saved_blocks -= 1
        seq.num_published = min(seq.num_published, index)
        self._copy_block(source, dest, seq, index, group)
        self.pool.release([source], seq.seq_id, self.step)

    def _switch_to(self, standing: int, seq: Sequence, index: int, group: int = GROUP) -> None:
        """Another sequence published the same tokens first: use its block and release the own copy.

        Otherwise the next block would hang under a parent that the tree does not know.
        """
        table = seq.block_tables[group]
        own = table[index]
        self.pool.acquire(standing, seq.seq_id)
        self.cache.last_use_step[standing] = self.step
        table[index] = standing
        seq.saved_blocks += 1
        seq.peak_saved = max(seq.peak_saved, seq.saved_blocks)
        self.recorder.decide(("share", seq.seq_id, group, standing, index * self.block_size, "dedup"))
        self.pool.release([own], seq.seq_id, self.step)
        self.recorder.decide(("free", seq.seq_id, group, own, "dedup"))

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
        if self.tier is not None:
            self.tier.check()
