"""What is published in a prefix cache: keys, uses, and why a lookup ended where it did. The tree is a subclass's."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from itertools import repeat
from operator import eq
from typing import TYPE_CHECKING

from kvtop.engine.columns import Reader, reader
from kvtop.engine.errors import InvariantError
from kvtop.engine.ghosts import Ghosts
from kvtop.engine.keys import KeyFn, Packed, default_key, default_keys, pack, stable_int
from kvtop.engine.sequence import Sequence
from kvtop.engine.types import MissReason

if TYPE_CHECKING:
    from kvtop.engine.policies.future import FutureUses


@dataclass(frozen=True, slots=True)
class Lookup:
    """Where a match ended and why. ``evicted_by`` and ``evicted_step`` belong to the first block that was missed."""

    hits: list[int]
    reason: MissReason
    missed_key: int | None = None
    evicted_by: str | None = None
    evicted_step: int | None = None


@dataclass(slots=True)
class Unpublished:
    """Blocks that have left the tree, in order, as columns. Steps are counted; uses are those as a hit."""

    blocks: Seq[int]
    keys: Seq[int]
    parents: Seq[int | None]
    parent_keys: Seq[int]
    ages: Seq[int]  # since publication
    idle: Seq[int]  # since the last use
    uses: Seq[int]


class PublishedBlocks(ABC):
    """What is published, block by block, and what evictors, policies and views ask about it.

    Flat lists by block id; of a block that is not published ``key`` and ``parent`` are None and ``num_children`` is 0.
    """

    def __init__(
        self, num_blocks: int, block_size: int, *, key_fn: KeyFn | None = None, ghost_entries: int = 0
    ) -> None:
        self.block_size = block_size
        self.epoch = 0
        self.version = 0  # grows with every change of what can be hit
        self.key: list[int | None] = [None] * num_blocks
        self.parent: list[int | None] = [None] * num_blocks  # the block that counts it among its children
        self.num_children = [0] * num_blocks  # published blocks that must leave before it may
        self.published_step = [0] * num_blocks
        self.last_use_step = [0] * num_blocks
        self.uses = [0] * num_blocks
        self.depth = [0] * num_blocks  # blocks before it in its chain
        self.future: FutureUses | None = None  # what a recorded workload will ask for (eviction policy belady)
        self._first_tokens: dict[Packed, int] = {}  # how many roots have a first block of these tokens
        self._ghosts = Ghosts(ghost_entries)
        self._key_fn = key_fn or default_key

    @abstractmethod
    def parent_key(self, block: int) -> int:
        """Key of the block before; a root's own number at the top."""

    @abstractmethod
    def path(self, seq: Sequence) -> list[int]:
        """What a lookup would find now: a number for each whole block, equal for equal prefixes. Changes nothing."""

    @abstractmethod
    def leaves_first(self) -> list[int]:
        """Every published block, children before parents."""

    @abstractmethod
    def check(self) -> None:
        """Raises InvariantError when keys, parents and children disagree."""

    def is_published(self, block: int) -> bool:
        return self.key[block] is not None

    def num_matching(self, seq: Sequence) -> int:
        """Tokens that a lookup would find now; remembered until the tree or the sequence changes."""
        version, known, found = seq.match_memo
        if version != self.version or known != len(seq.tokens):
            found = len(self.path(seq)) * self.block_size
            seq.match_memo = (self.version, len(seq.tokens), found)
        return found

    def leaves_in_order(self, blocks: Seq[int], read: Reader) -> bool:
        """Each of ``blocks`` has no published children, or only the one right before it. ``read`` reads at them."""
        is_parent = map(eq, blocks[1:], read(self.parent))  # of the block before
        return read(self.num_children) == (0, *is_parent)

    def unpublish(self, blocks: Seq[int], step: int, cause: str) -> Unpublished:
        """Take ``blocks`` out of the tree in this order (eviction or reset), and remember who did it.

        Raises:
            InvariantError: one has published children left, which would hang under a stranger.
        """
        if not blocks:
            return Unpublished((), (), (), (), (), (), ())
        key_of, parent_of, read = self.key, self.parent, reader(blocks)
        keys, parents = read(key_of), read(parent_of)
        if None in keys:
            raise InvariantError(f"block {blocks[keys.index(None)]} cannot leave the tree: it is not in it")
        parent_keys, ghosts = self._detach(blocks, keys, parents)
        for block in blocks:
            key_of[block] = parent_of[block] = None
        self._ghosts.remember(ghosts, step, cause)
        self.version += 1
        ages = [step - published for published in read(self.published_step)]
        idle = [step - used for used in read(self.last_use_step)]
        uses = read(self.uses)
        if any(uses):
            for block in blocks:
                self.uses[block] = 0
        return Unpublished(blocks, keys, parents, parent_keys, ages, idle, uses)

    def touch(self, block: int, step: int) -> None:
        """``block`` is handed out as a hit."""
        self.last_use_step[block] = step
        self.uses[block] += 1

    # -- keys ----------------------------------------------------------------------------------------------------

    def extend_keys(self, seq: Sequence) -> None:
        """Compute the keys of all whole blocks of ``seq`` that have none yet: once a block, ever."""
        keys, size = seq.keys, self.block_size
        first, total = len(keys), len(seq.tokens) // size
        if first == total:
            return
        key_fn, extras = self._key_fn, seq.request.spec.block_keys
        key = keys[-1] if keys else self._root_key(seq.request.extra)
        tokens = seq.tokens[first * size : total * size]
        blocks = zip(*[iter(tokens)] * size, strict=True)  # one at a time: an array's numbers are objects only here
        seq.key_tokens += pack(tokens, size)
        if key_fn is default_key and not extras:
            keys += default_keys(key, blocks)
            return
        for block, extra in zip(blocks, map(extras.get, range(first, total)) if extras else repeat(None), strict=False):
            key = key_fn(key, block, extra)
            keys.append(key)

    @staticmethod
    def _root_key(root: Hashable) -> int:
        return stable_int(root) if root else 0

    # -- inside --------------------------------------------------------------------------------------------------

    def _enter(self, block: int, key: int, parent: int | None, depth: int, step: int) -> None:
        """``block`` is published from now on, under ``parent``, behind ``depth`` blocks."""
        if parent is not None:
            self.num_children[parent] += 1
        self.key[block], self.parent[block], self.num_children[block] = key, parent, 0
        self.published_step[block] = self.last_use_step[block] = step
        self.depth[block] = depth
        self.version += 1

    @abstractmethod
    def _detach(self, blocks: Seq[int], keys: Seq[int], parents: Seq[int | None]) -> tuple[list[int], Seq[Hashable]]:
        """Take ``blocks`` out of the tree, children first, and count them off their parents.

        ``self.key`` and ``self.parent`` still stand. Raises InvariantError: one has children left.
        Returns of each the key of the block before it, and what a later miss will ask for.
        """

    def _has_children(self, block: int) -> InvariantError:
        return InvariantError(f"block {block} cannot leave the tree: {self.num_children[block]} children are left")

    def _explain(
        self, seq: Sequence, hits: list[int], missed: int, ghost: Hashable, running: Iterable[Sequence]
    ) -> Lookup:
        """Why block ``missed`` of ``seq`` is not there. Complexity: O(running sequences)."""
        key = seq.keys[missed]
        if (end := self._ghosts.get(ghost)) is not None:
            return Lookup(hits, MissReason.EVICTED, key, end.cause, end.step)
        for other in running:
            if other is seq or len(other.keys) <= missed or other.keys[missed] != key:
                continue
            if other.cache_epoch == self.epoch:
                return Lookup(hits, MissReason.NOT_YET_COMPUTED, key, other.seq_id)
        if missed == 0 and self._first_tokens.get(seq.key_tokens[0]):
            return Lookup(hits, MissReason.OTHER_SALT, key)
        return Lookup(hits, MissReason.NEVER_SEEN, key)

    def _note_first_tokens(self, tokens: Packed) -> None:
        self._first_tokens[tokens] = self._first_tokens.get(tokens, 0) + 1

    def _forget_first_tokens(self, tokens: Packed) -> None:
        left = self._first_tokens[tokens] - 1
        if left:
            self._first_tokens[tokens] = left
        else:
            del self._first_tokens[tokens]
