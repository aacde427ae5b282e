"""The block pool: who holds what. Ids, refcounts, fill, and the four states.

    fresh        refcount 0, in the fresh list
    idle         refcount 0, published in the prefix cache, in the evictor
    used         refcount > 0: one reference a table entry, one a pin
    in transfer  refcount 0, but freed less than ``deferred_free_steps`` ago

fresh + idle + used + in transfer = N, always. The pool knows no tokens and no sequences: the allocator does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from collections.abc import Sequence as Seq
from typing import Protocol

from kvtop.engine.block_list import BlockList
from kvtop.engine.errors import InvariantError
from kvtop.engine.types import BlockState


class Evictor(Protocol):
    """The idle blocks, in the order in which they may be taken away."""

    def __len__(self) -> int: ...
    def __contains__(self, block: int) -> bool: ...
    def add(self, block: int) -> None: ...
    def remove(self, block: int) -> None: ...

    def child_gone(self, block: int) -> None:
        """A published child of ``block`` (idle or not) has left the tree."""
        ...

    def peek(self, k: int, exclude: Collection[int]) -> list[int]:
        """The next ``k`` blocks to evict (fewer if there are fewer), changing nothing.

        Only blocks without published children, counting those that come earlier in the answer as gone.
        """
        ...


class BlockPool:
    """N blocks with refcounts. Allocation is planned whole (``plan``), then applied (``take``)."""

    def __init__(self, num_blocks: int, block_size: int, evictor: Evictor, deferred_free_steps: int = 0) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.refcount = [0] * num_blocks
        self.pins = [0] * num_blocks
        self.filled = [0] * num_blocks  # token slots written
        self.filled_used = 0  # sum of ``filled`` over used blocks
        self.num_used = 0
        self.fresh = BlockList(num_blocks)
        self.evictor = evictor
        self.fault: Callable[[int], bool] | None = None  # injection: True at the k-th block (from 1) makes a plan fail
        self._deferred_free_steps = deferred_free_steps
        self._transfer: dict[int, tuple[int, bool]] = {}  # block -> (step at which it is free, published)
        self._last_owner = [""] * num_blocks
        for block in range(num_blocks):
            self.fresh.push_back(block)

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
        return BlockState.IDLE if block in self.evictor else BlockState.FRESH

    def plan(self, k: int, exclude: Collection[int] = ()) -> list[int] | None:
        """Ids of ``k`` blocks to take: fresh ones first, then idle ones in eviction order. None: no room now.

        Changes nothing, so a fault while planning needs no undo. ``exclude``: idle blocks that must stay (hits).
        """
        if self.fault is not None and any(self.fault(i + 1) for i in range(k)):
            return None
        blocks: list[int] = []
        if k:
            for block in self.fresh:
                blocks.append(block)
                if len(blocks) == k:
                    return blocks
            blocks += self.evictor.peek(k - len(blocks), exclude)
        return blocks if len(blocks) == k else None

    def take(self, blocks: Iterable[int], owner: str) -> None:
        """Give fresh blocks to ``owner`` with refcount 1 (an idle one must have been unpublished first)."""
        for block in blocks:
            self.fresh.remove(block)
            self.refcount[block] = 1
            self._last_owner[block] = owner
            self.num_used += 1

    def acquire(self, block: int, owner: str) -> None:
        """One more reference to a used, idle or in-transfer block."""
        if self.refcount[block] == 0:
            if self._transfer.pop(block, None) is None:
                self.evictor.remove(block)
            self.num_used += 1
            self.filled_used += self.filled[block]
        self.refcount[block] += 1
        self._last_owner[block] = owner

    def release(self, blocks: Seq[int], owner: str, published: Callable[[int], bool], step: int) -> None:
        """Drop one reference an entry of ``blocks``, in the given order (callers go tail first).

        Raises:
            InvariantError: an id has fewer references than entries; nothing is changed.
        """
        for block, count in Counter(blocks).items():
            if self.refcount[block] < count + self.pins[block]:
                raise InvariantError(
                    f"{owner} releases block {block} {count} times, it has {self.refcount[block]} references "
                    f"({self.pins[block]} of them pins); last owner {self._last_owner[block] or 'nobody'}"
                )
        for block in blocks:
            self._unref(block, published(block), step)

    def pin(self, block: int) -> None:
        """Hold a published or used block, whoever else does.

        Raises:
            InvariantError: the block holds nothing to keep (fresh).
        """
        if block in self.fresh:
            raise InvariantError(f"block {block} is fresh: there is nothing to pin")
        self.acquire(block, "pin")
        self.pins[block] += 1

    def unpin(self, block: int, published: bool, step: int) -> None:
        """Undo one ``pin``.

        Raises:
            InvariantError: the block is not pinned.
        """
        if not self.pins[block]:
            raise InvariantError(f"block {block} is not pinned")
        self.pins[block] -= 1
        self._unref(block, published, step)

    def set_filled(self, block: int, num_tokens: int) -> None:
        """``num_tokens`` slots of a used block are written now; never fewer than before."""
        if num_tokens > self.filled[block]:
            self.filled_used += num_tokens - self.filled[block]
            self.filled[block] = num_tokens

    def to_fresh(self, block: int) -> None:
        """An idle or in-transfer block lost its publication: it is fresh (in transfer: will be)."""
        if block in self._transfer:
            self._transfer[block] = (self._transfer[block][0], False)
        else:
            self.evictor.remove(block)
            self._make_fresh(block)

    def end_transfers(self, step: int) -> int:
        """Blocks whose deferred free is due become fresh or idle; returns how many. The dict is in order of release."""
        num_settled = 0
        while self._transfer:
            block, (due, published) = next(iter(self._transfer.items()))
            if due > step:
                break
            del self._transfer[block]
            self._settle(block, published)
            num_settled += 1
        return num_settled

    def _unref(self, block: int, published: bool, step: int) -> None:
        self.refcount[block] -= 1
        if self.refcount[block]:
            return
        self.num_used -= 1
        self.filled_used -= self.filled[block]
        if self._deferred_free_steps:
            self._transfer[block] = (step + self._deferred_free_steps, published)
        else:
            self._settle(block, published)

    def _settle(self, block: int, published: bool) -> None:
        if published:
            self.evictor.add(block)
        else:
            self._make_fresh(block)

    def _make_fresh(self, block: int) -> None:
        self.filled[block] = 0
        # Last freed, first reused: its lines are the likeliest to be in the CPU's cache, and the pool stays compact.
        self.fresh.push_front(block)

    def check(self) -> None:
        """Raises InvariantError when states, counts and lists disagree."""
        n = self.num_blocks
        if self.num_used + self.num_idle + self.num_fresh + self.num_in_transfer != n:
            raise InvariantError(
                f"used {self.num_used} + idle {self.num_idle} + fresh {self.num_fresh} "
                f"+ in transfer {self.num_in_transfer} is not {n}"
            )
        for block in range(n):
            places = (block in self.fresh) + (block in self.evictor) + (block in self._transfer)
            places += self.refcount[block] > 0
            if places != 1:
                raise InvariantError(f"block {block} is in {places} states at once")
            if not 0 <= self.pins[block] <= self.refcount[block]:
                raise InvariantError(f"block {block}: {self.pins[block]} pins, {self.refcount[block]} references")
            if not 0 <= self.filled[block] <= self.block_size or (block in self.fresh and self.filled[block]):
                raise InvariantError(f"block {block}: {self.filled[block]} slots filled in state {self.state(block)}")
        filled = sum(self.filled[b] for b in range(n) if self.refcount[b])
        if filled != self.filled_used:
            raise InvariantError(f"filled slots of used blocks are {filled}, counted {self.filled_used}")
