"""What is published in a prefix cache: keys, uses, and why a lookup ended where it did. The tree is a subclass's."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

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


class PublishedBlocks(ABC):
    """What is published, block by block, and what evictors, policies and views ask about it."""

    def __init__(
        self, num_blocks: int, block_size: int, *, key_fn: KeyFn | None = None, ghost_entries: int = 0
    ) -> None:
        self.block_size = block_size
        self.epoch = 0
        self.version = 0  # grows with every change of what can be hit
        self.key: list[int | None] = [None] * num_blocks
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
    def num_children(self, block: int) -> int:
        """Published blocks that must leave before ``block`` may."""

    @abstractmethod
    def parent(self, block: int) -> int | None:
        """The block that counts ``block`` among its children."""

    @abstractmethod
    def parent_key(self, block: int) -> int:
        """Key of the block before; a root's own number at the top."""

    @abstractmethod
    def path(self, seq: Sequence) -> list[int]:
        """What a lookup would find now: a number for each whole block, equal for equal prefixes. Changes nothing."""

    @abstractmethod
    def unpublish(self, block: int, step: int, cause: str) -> None:
        """Take ``block`` out of the tree (eviction or reset) and remember who did it.

        Raises:
            InvariantError: it has published children, which would hang under a stranger.
        """

    @abstractmethod
    def leaves_first(self) -> list[int]:
        """Every published block, children before parents."""

    @abstractmethod
    def check(self) -> None:
        """Raises InvariantError when keys, parents and children disagree."""

    def is_published(self, block: int) -> bool:
        return self.key[block] is not None

    def num_matching(self, seq: Sequence) -> int:
        """Tokens that a lookup would find now; remembered until the tree changes."""
        if seq.match_memo[0] != self.version:
            seq.match_memo = (self.version, len(self.path(seq)) * self.block_size)
        return seq.match_memo[1]

    def touch(self, block: int, step: int) -> None:
        """``block`` is handed out as a hit."""
        self.last_use_step[block] = step
        self.uses[block] += 1

    # -- keys ----------------------------------------------------------------------------------------------------

    def extend_keys(self, seq: Sequence) -> None:
        """Compute the keys of all whole blocks of ``seq`` that have none yet: once a block, ever."""
        keys, tokens, size = seq.keys, seq.tokens, self.block_size
        total = len(tokens) // size
        if len(keys) == total:
            return
        extras = seq.request.spec.block_keys
        key = keys[-1] if keys else self._root_key(seq.request.extra)
        for i in range(len(keys), total):
            extra = extras.get(i) if extras else None
            key = self._key_fn(key, tuple(tokens[i * size : (i + 1) * size]), extra)
            keys.append(key)

    @staticmethod
    def _root_key(root: Hashable) -> int:
        return stable_int(root) if root else 0

    # -- inside --------------------------------------------------------------------------------------------------

    def _tokens_at(self, seq: Sequence, index: int) -> Tokens:
        return tuple(seq.tokens[index * self.block_size : (index + 1) * self.block_size])

    def _enter(self, block: int, key: int, index: int, step: int) -> None:
        """``block`` is published from now on."""
        self.key[block] = key
        self.published_step[block] = self.last_use_step[block] = step
        self.uses[block] = 0
        self.depth[block] = index
        self.version += 1

    def _leave(self, block: int, ghost: Hashable, step: int, cause: str) -> None:
        """``block`` is published no longer; ``ghost`` is what a later miss will ask for."""
        self.key[block] = None
        self.version += 1
        if self._ghost_entries:
            self._ghosts[ghost] = (step, cause)
            self._ghosts.move_to_end(ghost)
            if len(self._ghosts) > self._ghost_entries:
                self._ghosts.popitem(last=False)

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
        if missed == 0 and self._first_tokens.get(self._tokens_at(seq, 0)):
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
