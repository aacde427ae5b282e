"""What is published in a prefix cache: keys, uses, and why a lookup ended where it did. The tree is a subclass's."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from itertools import chain, repeat
from itertools import count as count_from
from typing import TYPE_CHECKING, Any

from kvtop.engine.errors import InvariantError
from kvtop.engine.sequence import Sequence
from kvtop.engine.types import MissReason

if TYPE_CHECKING:
    from kvtop.engine.policies.future import FutureUses

Tokens = tuple[int, ...]
BlockExtra = str | int | None
KeyFn = Callable[[int, Tokens, BlockExtra], int]


def stable_int(value: Hashable) -> int:
    """A 63-bit number for ``value``, equal in every process (``hash`` of a string is not)."""
    digest = hashlib.blake2b(repr(value).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def default_key(parent_key: int, tokens: Tokens, extra: BlockExtra) -> int:
    """Key of a block behind ``parent_key``. Hashes of integers do not depend on the hash seed."""
    return hash((parent_key, tokens) if extra is None else (parent_key, tokens, stable_int(extra)))


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
    keys: list[int]
    parents: list[int | None]
    parent_keys: list[int]
    ages: list[int]  # since publication
    idle: list[int]  # since the last use
    uses: list[int]


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
        self._first_tokens: dict[Tokens, int] = {}  # how many roots have a first block of these tokens
        self._ghosts: OrderedDict[Hashable, tuple[int, str]] = OrderedDict()
        self._ghost_entries = ghost_entries
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

    def unpublish(self, blocks: Seq[int], step: int, cause: str) -> Unpublished:
        """Take ``blocks`` out of the tree in this order (eviction or reset), and remember who did it.

        Raises:
            InvariantError: one has published children left, which would hang under a stranger.
        """
        key_of, parent_of = self.key, self.parent
        keys: list[Any] = list(map(key_of.__getitem__, blocks))
        parents = list(map(parent_of.__getitem__, blocks))
        if None in keys:
            raise InvariantError(f"block {blocks[keys.index(None)]} cannot leave the tree: it is not in it")
        parent_keys, ghosts = self._detach(blocks, keys, parents)
        for block in blocks:
            key_of[block] = parent_of[block] = None
        self._remember(ghosts, (step, cause))
        self.version += 1
        ages = [step - published for published in map(self.published_step.__getitem__, blocks)]
        idle = [step - used for used in map(self.last_use_step.__getitem__, blocks)]
        uses = list(map(self.uses.__getitem__, blocks))
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
        tokens = tuple(seq.tokens[first * size : total * size])  # of a tuple a slice is a tuple at once
        blocks = [tokens[at : at + size] for at in range(0, len(tokens), size)]
        for block, extra in zip(blocks, map(extras.get, range(first, total)) if extras else repeat(None), strict=False):
            key = key_fn(key, block, extra)
            keys.append(key)
        seq.key_tokens += blocks

    @staticmethod
    def _root_key(root: Hashable) -> int:
        return stable_int(root) if root else 0

    # -- inside --------------------------------------------------------------------------------------------------

    def _enter(self, blocks: Seq[int], keys: Seq[int], parent: int | None, depth: int, step: int) -> None:
        """``blocks`` are published from now on: a chain, the first of them under ``parent``, ``depth`` blocks deep."""
        key_of, parent_of, num_children = self.key, self.parent, self.num_children
        published_step, last_use_step, depth_of = self.published_step, self.last_use_step, self.depth
        if parent is not None:
            num_children[parent] += 1
        for block, key, above, at in zip(blocks, keys, chain((parent,), blocks), count_from(depth), strict=False):
            key_of[block] = key
            parent_of[block] = above
            published_step[block] = last_use_step[block] = step
            depth_of[block] = at
            num_children[block] = 1  # the next one; of the last, none
        num_children[blocks[-1]] = 0
        self.version += 1

    @abstractmethod
    def _detach(
        self, blocks: Seq[int], keys: list[int], parents: list[int | None]
    ) -> tuple[list[int], Iterable[Hashable]]:
        """Take ``blocks`` out of the tree, children first, and count them off their parents.

        ``self.key`` and ``self.parent`` still stand. Raises InvariantError: one has children left.
        Returns of each the key of the block before it, and what a later miss will ask for.
        """

    def _has_children(self, block: int) -> InvariantError:
        return InvariantError(f"block {block} cannot leave the tree: {self.num_children[block]} children are left")

    def _remember(self, ghosts: Iterable[Hashable], end: tuple[int, str]) -> None:
        known = self._ghosts
        for ghost in ghosts:
            if ghost in known:  # only where keys collide
                del known[ghost]
            known[ghost] = end
        while len(known) > self._ghost_entries:
            known.popitem(last=False)

    def _explain(
        self, seq: Sequence, hits: list[int], missed: int, ghost: Hashable, running: Iterable[Sequence]
    ) -> Lookup:
        """Why block ``missed`` of ``seq`` is not there. Complexity: O(running sequences)."""
        key = seq.keys[missed]
        if ghost in self._ghosts:
            step, by = self._ghosts[ghost]
            return Lookup(hits, MissReason.EVICTED, key, by, step)
        for other in running:
            if other is seq or len(other.keys) <= missed or other.keys[missed] != key:
                continue
            if other.cache_epoch == self.epoch:
                return Lookup(hits, MissReason.NOT_YET_COMPUTED, key, other.seq_id)
        if missed == 0 and self._first_tokens.get(seq.key_tokens[0]):
            return Lookup(hits, MissReason.OTHER_SALT, key)
        return Lookup(hits, MissReason.NEVER_SEEN, key)

    def _note_first_tokens(self, tokens: Tokens) -> None:
        self._first_tokens[tokens] = self._first_tokens.get(tokens, 0) + 1

    def _forget_first_tokens(self, tokens: Tokens) -> None:
        left = self._first_tokens[tokens] - 1
        if left:
            self._first_tokens[tokens] = left
        else:
            del self._first_tokens[tokens]
