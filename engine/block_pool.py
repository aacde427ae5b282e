"""The block pool: who holds what. Ids, refcounts, fill, and the five states.

    fresh        refcount 0, in the fresh list
    idle         refcount 0, published in the prefix cache, in the evictor
    used         refcount > 0: one reference a table entry, one a pin
    in transfer  refcount 0, but freed less than ``deferred_free_steps`` ago, or part of a copy that may not be done
                 yet; what was freed after it waits behind it
    withheld     refcount 0, taken out of circulation because a limit below N is set (``pool_limit.py``)

fresh + idle + used + in transfer + withheld = N, always. The pool knows no tokens and no sequences: the allocator does.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterable
from collections.abc import Sequence as Seq
from itertools import compress, islice
from operator import sub
from typing import Protocol

from kvtop.engine.columns import reader
from kvtop.engine.errors import InvariantError
from kvtop.engine.pool_limit import PoolLimit
from kvtop.engine.types import BlockState


class Evictor(Protocol):
    """The idle blocks, in the order in which they may be taken away."""

    def __len__(self) -> int: ...
    def __contains__(self, block: int) -> bool: ...

    def add(self, blocks: Seq[int]) -> None:
        """``blocks`` became idle, in this order."""
        ...

    def remove(self, blocks: Seq[int]) -> None: ...

    def children_gone(self, blocks: Iterable[int | None]) -> None:
        """A published child of each of ``blocks`` (idle or not) has left the tree. None: it had no parent."""
        ...

    def peek(self, k: int, exclude: Collection[int]) -> list[int]:
        """The next ``k`` blocks to evict (fewer if there are fewer), changing nothing.

        Only blocks without published children, counting those that come earlier in the answer as gone.
        """
        ...


class BlockPool:
    """N blocks with refcounts. Allocation is planned whole (``plan``), then applied (``take``).

    ``keys``: by block, the key under which it is published, or None; the prefix cache writes it.
    """

    def __init__(self, keys: Seq[int | None], block_size: int, evictor: Evictor, deferred_free_steps: int = 0) -> None:
        self.num_blocks = num_blocks = len(keys)
        self.block_size = block_size
        self.refcount = [0] * num_blocks
        self.pins = [0] * num_blocks
        self.num_pins = 0  # in all: the sum of ``pins``
        self.filled = [0] * num_blocks  # token slots written
        self.filled_used = 0  # sum of ``filled`` over used blocks
        self.num_used = 0
        # An ordered set: any block can be taken out, those at the front can be seen without taking them, both in O(1).
        self.fresh: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_blocks))
        self.limit = PoolLimit(num_blocks)
        self.evictor = evictor
        self.fault: Callable[[int], bool] | None = None  # injection: True at the k-th block (from 1) makes a plan fail
        self._keys = keys
        self._deferred_free_steps = deferred_free_steps
        self._transfer: dict[int, int] = {}  # block -> step at which it is fresh or idle, in order of release and of it
        self._copying: dict[int, int] = {}  # block of a copy -> step from which it may be reused
        self._last_due = 0  # of the last release
        self._last_owner = [""] * num_blocks

    @property
    def num_fresh(self) -> int:
        return len(self.fresh)

    @property
    def num_idle(self) -> int:
        return len(self.evictor)

    @property
    def num_in_transfer(self) -> int:
        return len(self._transfer)

    def in_transfer(self) -> list[int]:
        """In order of release."""
        return list(self._transfer)

    def state(self, block: int) -> BlockState:
        if self.refcount[block]:
            return BlockState.USED
        if block in self._transfer:
            return BlockState.IN_TRANSFER
        if block in self.limit.withheld:
            return BlockState.WITHHELD
        return BlockState.IDLE if block in self.evictor else BlockState.FRESH

    def plan(self, k: int, exclude: Collection[int] = ()) -> list[int] | None:
        """Ids of ``k`` blocks to take: fresh ones first, then idle ones in eviction order. None: no room now.

        Changes nothing, so a fault while planning needs no undo. ``exclude``: idle blocks that must stay (hits).
        """
        if self.fault is not None and any(self.fault(i + 1) for i in range(k)):
            return None
        blocks = list(islice(self.fresh, k))
        if len(blocks) < k:
            blocks += self.evictor.peek(k - len(blocks), exclude)
        return blocks if len(blocks) == k else None

    def take(self, blocks: Seq[int], owner: str) -> None:
        """Give planned blocks to ``owner`` with refcount 1: fresh ones, and idle ones that have been unpublished."""
        fresh, filled, refcount, last_owner = self.fresh, self.filled, self.refcount, self._last_owner
        idle = [block for block in blocks if block not in fresh] if fresh else blocks
        self.evictor.remove(idle)
        if len(idle) < len(blocks):
            for block in blocks:
                fresh.pop(block, None)
        for block in blocks:
            refcount[block] = 1
            filled[block] = 0
            last_owner[block] = owner
        self.num_used += len(blocks)

    def acquire(self, block: int, owner: str) -> None:
        """One more reference to a used, idle or in-transfer block."""
        if self.refcount[block] == 0:
            if self._transfer.pop(block, None) is None:
                self.evictor.remove((block,))
            self.num_used += 1
            self.filled_used += self.filled[block]
        self.refcount[block] += 1
        self._last_owner[block] = owner

    def release(self, blocks: Seq[int], owner: str, step: int) -> None:
        """Drop one reference an entry of ``blocks``, in the given order (callers go tail first).

        Raises:
            InvariantError: an id has fewer references than entries; nothing is changed.
        """
        refcount, read = self.refcount, reader(blocks)
        counts = read(refcount)
        by_tables = map(sub, counts, read(self.pins)) if self.num_pins else counts
        if len(set(blocks)) < len(blocks) or min(by_tables, default=1) < 1:
            self._check_held(blocks, owner)
            self._unref(blocks, step)
            return
        for block, count in zip(blocks, counts, strict=True):
            refcount[block] = count - 1
        self._let_go([*compress(blocks, map((1).__eq__, counts))], step)

    def _check_held(self, blocks: Seq[int], owner: str) -> None:
        for block, count in Counter(blocks).items():
            if self.refcount[block] < count + self.pins[block]:
                raise InvariantError(
                    f"{owner} releases block {block} {count} times, it has {self.refcount[block]} references "
                    f"({self.pins[block]} of them pins); last owner {self._last_owner[block] or 'nobody'}"
                )

    def copying(self, blocks: Iterable[int], until_step: int) -> None:
        """``blocks`` take part in a copy: freed, they stay in transfer until ``until_step``."""
        self._copying.update(dict.fromkeys(blocks, until_step))

    @property
    def last_due(self) -> int:
        """The step from which all blocks of the last release may be reused."""
        return self._last_due

    def pin(self, block: int) -> None:
        """Hold a published or used block, whoever else does.

        Raises:
            InvariantError: the block holds nothing to keep (fresh or withheld).
        """
        if block in self.fresh or block in self.limit.withheld:
            raise InvariantError(f"block {block} is {self.state(block)}: there is nothing to pin")
        self.acquire(block, "pin")
        self.pins[block] += 1
        self.num_pins += 1

    def unpin(self, block: int, step: int) -> None:
        """Undo one ``pin``.

        Raises:
            InvariantError: the block is not pinned.
        """
        if not self.pins[block]:
            raise InvariantError(f"block {block} is not pinned")
        self.pins[block] -= 1
        self.num_pins -= 1
        self._unref((block,), step)

    def fill(self, table: Seq[int], start: int, end: int) -> None:
        """Positions ``start .. end - 1`` of a sequence are written now, in the used blocks of its table."""
        size, filled = self.block_size, self.filled
        last = (end - 1) // size
        begin = last * size
        if start < begin:
            whole = table[start // size : last]
            self.filled_used += size * len(whole) - sum(map(filled.__getitem__, whole))
            for block in whole:
                filled[block] = size
        block = table[last]
        more = end - begin - filled[block]
        if more > 0:
            self.filled_used += more
            filled[block] += more

    def set_filled(self, block: int, num_tokens: int) -> None:
        """``num_tokens`` slots of a used block are written now; never fewer than before."""
        if num_tokens > self.filled[block]:
            self.filled_used += num_tokens - self.filled[block]
            self.filled[block] = num_tokens

    def to_fresh(self, block: int) -> None:
        """An idle block lost its publication: it is fresh. (One in transfer will be.)"""
        if block not in self._transfer:
            self.evictor.remove((block,))
            self._make_fresh(block)

    def end_transfers(self, step: int) -> int:
        """Blocks whose deferred free is due become fresh or idle; returns how many. The dict is in order of release."""
        settled: list[int] = []
        for block, due in self._transfer.items():
            if due > step:
                break
            settled.append(block)
        for block in settled:
            del self._transfer[block]
        if self._copying:
            self._copying = {block: due for block, due in self._copying.items() if due > step}
        self._settle(settled)
        return len(settled)

    def _unref(self, blocks: Iterable[int], step: int) -> None:
        refcount = self.refcount
        gone: list[int] = []
        for block in blocks:
            left = refcount[block] = refcount[block] - 1
            if not left:
                gone.append(block)
        self._let_go(gone, step)

    def _let_go(self, gone: Seq[int], step: int) -> None:
        """Nobody holds ``gone`` any more, in this order."""
        self.num_used -= len(gone)
        self.filled_used -= sum(reader(gone)(self.filled))
        if self._deferred_free_steps or self._copying or self._transfer:
            self._defer(gone, step)
        else:
            self._settle(gone)

    def _defer(self, gone: Seq[int], step: int) -> None:
        """Transfers end in the order of their release: whoever follows the stream of events counts on it."""
        due = next(reversed(self._transfer.values()), step)
        for block in gone:
            due = max(due, step + self._deferred_free_steps, self._copying.get(block, step))
            if due <= step:
                self._settle([block])
            else:
                self._transfer[block] = due
        self._last_due = due

    def _settle(self, blocks: Seq[int]) -> None:
        keys = reader(blocks)(self._keys)
        if num := keys.count(None):
            if keys[:num].count(None) < num:  # of one release the unpublished come first: its tail
                blocks = sorted(blocks, key=lambda block: self._keys[block] is not None)  # the others in their order
            for block in blocks[:num]:
                self._make_fresh(block)
            blocks = blocks[num:]
        self.evictor.add(blocks)

    def _make_fresh(self, block: int) -> None:
        self.filled[block] = 0
        # Last freed, first reused: its lines are the likeliest to be in the CPU's cache, and the pool stays compact.
        self.fresh[block] = None
        self.fresh.move_to_end(block, last=False)

    def check(self) -> None:
        """Raises InvariantError when states, counts and lists disagree."""
        n, withheld = self.num_blocks, self.limit.withheld
        if self.num_used + self.num_idle + self.num_fresh + self.num_in_transfer + len(withheld) != n:
            raise InvariantError(
                f"used {self.num_used} + idle {self.num_idle} + fresh {self.num_fresh} "
                f"+ in transfer {self.num_in_transfer} + withheld {len(withheld)} is not {n}"
            )
        self.limit.check()
        for block in range(n):
            places = (block in self.fresh) + (block in self.evictor) + (block in self._transfer)
            places += (self.refcount[block] > 0) + (block in withheld)
            if places != 1:
                raise InvariantError(f"block {block} is in {places} states at once")
            if not 0 <= self.pins[block] <= self.refcount[block]:
                raise InvariantError(f"block {block}: {self.pins[block]} pins, {self.refcount[block]} references")
            if not 0 <= self.filled[block] <= self.block_size or (block in self.fresh and self.filled[block]):
                raise InvariantError(f"block {block}: {self.filled[block]} slots filled in state {self.state(block)}")
        filled = sum(self.filled[b] for b in range(n) if self.refcount[b])
        if filled != self.filled_used:
            raise InvariantError(f"filled slots of used blocks are {filled}, counted {self.filled_used}")
