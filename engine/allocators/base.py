"""What every allocator does the same way: hold the pool, write tables, release them, count and record.

An allocator answers three questions: may this sequence start (``try_admit``), may it grow (``grow``), may it branch
(``fork``). A refusal is a ``Shortage`` and changes nothing, the eviction order included.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import count as count_from
from itertools import repeat

from kvtop.engine.block_pool import BlockPool
from kvtop.engine.config import EngineConfig
from kvtop.engine.errors import InvariantError
from kvtop.engine.evictors import make_evictor
from kvtop.engine.prefix_cache import Lookup, PrefixCache
from kvtop.engine.published import PublishedBlocks
from kvtop.engine.recorder import AnyRecorder
from kvtop.engine.sequence import Sequence
from kvtop.engine.types import NULL_BLOCK, EvictedRun, Plan, Shortage

GROUP = 0  # the only KV group of most models


@dataclass(frozen=True, slots=True)
class Admission:
    """A sequence may start: ``cached`` tokens are there, blocks for ``count`` more are in its table."""

    cached: int
    count: int
    need_blocks: int
    have_blocks: int
    lookup: Lookup
    host: int = 0  # of ``cached``, tokens that come from the host tier


class Allocator(ABC):
    """Base of all allocators. ``step`` is set by the engine before anything else happens in a step."""

    def __init__(self, config: EngineConfig, recorder: AnyRecorder, cache: PublishedBlocks | None = None) -> None:
        self.config = config
        self.recorder = recorder
        self.block_size = config.block_size
        # Without prefix caching nothing is ever idle: the evictor stays empty over an empty tree.
        cache = cache or PrefixCache(config.num_blocks, config.block_size)
        evictor = make_evictor(config.eviction, cache)
        self.pool = BlockPool(cache.key, config.block_size, evictor, config.deferred_free_steps)
        self.step = 0
        self.num_settled = 0  # deferred frees that fell due in this step
        self.promised = 0  # blocks promised to admitted sequences and not allocated yet
        self.hold = 0  # blocks that must be left to decodes scheduled later in this step
        self.copies: list[tuple[int, int]] = []  # (source, destination) the executor has not done yet
        self.num_copies = 0
        self.num_evictions = 0
        self.evicted_runs: list[EvictedRun] = []  # of this step

    # -- questions -----------------------------------------------------------------------------------------------

    @abstractmethod
    def try_admit(self, seq: Sequence, budget: int, running: list[Sequence]) -> Admission | Shortage:
        """Start ``seq`` if its whole known length fits: touch the hits and allocate the first chunk, atomically.

        The first chunk is as much as ``budget`` tokens allow; the other blocks it will need are promised to it.
        """

    @abstractmethod
    def grow(self, seq: Sequence, end: int) -> Shortage | None:
        """Make positions ``num_computed .. end - 1`` writable: new blocks, and a copy of a shared last block."""

    @abstractmethod
    def fork(self, parent: Sequence, child: Sequence) -> Shortage | None:
        """Give ``child`` the computed tokens of ``parent``; on a Shortage the child has nothing and must wait."""

    def swap_out(self, seq: Sequence) -> bool:
        """Keep what ``seq`` has computed in host memory. False: not possible now, it will be computed again."""
        return False

    def room(self, seq: Sequence) -> int:
        """Tokens ``seq`` could compute now without taking anything from another sequence."""
        free_slots = len(seq.block_table) * self.block_size - seq.num_computed
        return free_slots + (self.pool.num_fresh + self.pool.num_idle) * self.block_size

    def ready(self, seq: Sequence, end: int) -> bool:
        """Positions ``num_computed .. end - 1`` can be written without taking a block: the common case, made cheap."""
        return end <= len(seq.block_tables[0]) * self.block_size

    def growth(self, seq: Sequence, end: int) -> int:
        """Blocks that ``grow(seq, end)`` would take from the pool, beyond those promised to ``seq``."""
        return 0

    def cached_tokens(self, seq: Sequence) -> int:
        """Tokens a lookup of ``seq`` would find now."""
        return 0

    def cached_path(self, seq: Sequence) -> list[int]:
        """The blocks of that lookup."""
        return []

    def commit(self, seq: Sequence, start: int) -> None:
        """Positions ``start .. num_computed - 1`` are computed: account the slots (and publish, with caching)."""
        for table in seq.block_tables:
            self.pool.fill(table, start, seq.num_computed)

    def release(self, seq: Sequence) -> None:
        """Give back every block of ``seq``, tail first, so that a chain's head outlives its tail."""
        table = seq.block_tables[0][::-1]
        self.pool.release(table, seq.seq_id, self.step)
        self.recorder.decide_all(zip(repeat("free"), repeat(seq.seq_id), repeat(GROUP), table, repeat("release")))
        self.promised -= seq.promised
        seq.promised = 0
        seq.block_table = []
        seq.num_published = seq.num_computed = seq.saved_blocks = 0

    @property
    def unsettled(self) -> bool:
        """The next step changes the pool even if nobody runs: blocks are in transfer."""
        return self.pool.num_in_transfer > 0

    @property
    def host_used(self) -> int:
        """Host blocks that hold swapped-out sequences."""
        return 0

    @property
    def host_cached(self) -> int:
        """Host blocks that hold evicted prefixes."""
        return 0

    def end(self, seq: Sequence) -> None:
        """``seq`` has finished: nothing of it is kept for a return."""
        self.release(seq)

    def group_of(self, block: int) -> int:
        """The KV group whose layers ``block`` holds."""
        return GROUP

    def executed(self) -> None:
        """The step's moves and copies are done."""
        self.copies = []

    def fill(self, plan: Plan) -> None:
        """Hand the step's moves and copies to the plan; they stay here until they are done."""
        plan.copies = self.copies

    def begin_step(self, step: int) -> None:
        self.step = step
        self.evicted_runs = []
        self.num_settled = self.pool.end_transfers(step)

    # -- inside --------------------------------------------------------------------------------------------------

    def _take(self, blocks: list[int], seq: Sequence, group: int = GROUP) -> None:
        """Take planned blocks and append them to the group's table."""
        self.pool.take(blocks, seq.seq_id)
        table = seq.block_tables[group]
        starts = count_from(len(table) * self.block_size, self.block_size)
        self.recorder.decide_all(zip(repeat("alloc"), repeat(seq.seq_id), repeat(group), blocks, starts))
        table += blocks
        seq.peak_blocks = max(seq.peak_blocks, seq.num_held)

    def _copy_block(self, source: int, dest: int, seq: Sequence, index: int, group: int = GROUP) -> None:
        """Ask the executor for a copy into ``dest`` (taken already), written slots included."""
        self.copies.append((source, dest))
        self.num_copies += 1
        if self.config.deferred_copy_steps:
            # Of a fork after the step's plan was made, the copy is part of the next one.
            self.pool.copying((source, dest), self.step + 1 + self.config.deferred_copy_steps)
        self.pool.set_filled(dest, self.pool.filled[source])
        self.recorder.decide(("copy", seq.seq_id, group, dest, source, index * self.block_size))

    def drop_moves(self, seq: Sequence) -> None:
        """``seq`` is preempted before the step ran: what it asked to be copied or moved is not needed any more."""
        own = {block for table in seq.block_tables for block in table}
        self.copies = [(source, dest) for source, dest in self.copies if dest not in own]

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def check(self, sequences: Iterable[Sequence]) -> None:
        """Raises InvariantError when the pool's references are not exactly the tables' entries and the pins."""
        self.pool.check()
        refs = list(self.pool.pins)
        promised = 0
        for seq in sequences:
            promised += seq.promised
            for table in seq.block_tables:
                if len(table) * self.block_size < seq.num_computed:
                    raise InvariantError(f"{seq.seq_id}: {seq.num_computed} computed, {len(table)} blocks")
                for block in table:
                    if block != NULL_BLOCK:
                        refs[block] += 1
        for block, count in enumerate(refs):
            if count != self.pool.refcount[block]:
                raise InvariantError(
                    f"block {block}: refcount {self.pool.refcount[block]}, tables and pins hold {count}"
                )
        if promised != self.promised:
            raise InvariantError(f"promised {self.promised} blocks, sequences hold promises for {promised}")
