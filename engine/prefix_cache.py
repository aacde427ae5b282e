"""The prefix cache: a radix tree whose edges are whole blocks of token ids.

A node *is* a published block: its key, tokens, parent and children are kept by block id. The tree owns no references:
a block nobody holds is idle and may be evicted, once it has no published children. Roots are one per extra key
(adapter, salt, ...), so two requests with different extra keys never meet. Keys only speed the search up: tokens are
compared on a hit, and a collision can only be a miss.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

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


class PublishedBlocks(ABC):
    """What is published, block by block, and what evictors, policies and views ask about it. A subclass keeps the tree."""

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
    def num_hits(self, seq: Sequence) -> int:
        """Whole blocks that a lookup would find now."""

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
            seq.match_memo = (self.version, self.num_hits(seq) * self.block_size)
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


class PrefixCache(PublishedBlocks):
    """Published blocks as a tree. Complexity of every operation: the number of blocks it touches."""

    def __init__(
        self, num_blocks: int, block_size: int, *, key_fn: KeyFn | None = None, ghost_entries: int = 0
    ) -> None:
        super().__init__(num_blocks, block_size, key_fn=key_fn, ghost_entries=ghost_entries)
        self._parent: list[int | None] = [None] * num_blocks
        self._tokens: list[Tokens] = [()] * num_blocks
        self._extra: list[BlockExtra] = [None] * num_blocks
        self._children: list[dict[int, int] | None] = [None] * num_blocks
        self._roots: dict[Hashable, dict[int, int]] = {}
        self._root_of: dict[int, Hashable] = {}  # top-level block -> its root

    def num_children(self, block: int) -> int:
        children = self._children[block]
        return len(children) if children else 0

    def parent(self, block: int) -> int | None:
        return self._parent[block]

    def parent_key(self, block: int) -> int:
        parent = self._parent[block]
        if parent is None:
            return self._root_key(self._root_of[block])
        key = self.key[parent]
        assert key is not None
        return key

    # -- lookup --------------------------------------------------------------------------------------------------

    def match(self, seq: Sequence) -> list[int]:
        """The longest chain of published blocks from position 0, at most known tokens - 1. Changes no block.

        A block that cannot be hit whole is computed again: reuse is by full blocks only.
        """
        self.extend_keys(seq)
        hits: list[int] = []
        level = self._roots.get(seq.request.extra)
        for i in range((seq.num_tokens - 1) // self.block_size):
            block = level.get(seq.keys[i]) if level else None
            if block is None or not self._same(block, seq, i):
                break
            hits.append(block)
            level = self._children[block]
        return hits

    def num_hits(self, seq: Sequence) -> int:
        return len(self.match(seq))

    def explain(self, seq: Sequence, hits: list[int], running: Iterable[Sequence]) -> Lookup:
        """Why the match of ``seq`` ended after ``hits``. Complexity: O(running sequences), once an admission."""
        i = len(hits)
        if i == (seq.num_tokens - 1) // self.block_size:
            return Lookup(hits, MissReason.LAST_TOKEN)
        return self._explain(seq, hits, i, seq.keys[i], running)

    # -- change --------------------------------------------------------------------------------------------------

    def publish(self, seq: Sequence, index: int, step: int) -> int | None:
        """Enter block ``index`` of ``seq``'s table, whose predecessors are published.

        Returns the block that now stands for these tokens: the sequence's own, or the one published before with the
        same tokens (the caller switches to it). None: the key belongs to other tokens; the chain ends here.
        """
        block, key = seq.block_table[index], seq.keys[index]
        parent = seq.block_table[index - 1] if index else None
        level = self._level(parent, seq.request.extra)
        known = level.get(key)
        if known is not None:
            return known if self._same(known, seq, index) else None
        level[key] = block
        self._parent[block] = parent
        self._tokens[block] = self._tokens_at(seq, index)
        self._extra[block] = (seq.request.spec.block_keys or {}).get(index)
        if parent is None:
            self._root_of[block] = seq.request.extra
            self._note_first_tokens(self._tokens[block])
        self._ghosts.pop(key, None)
        self._enter(block, key, index, step)
        return block

    def unpublish(self, block: int, step: int, cause: str) -> None:
        key, parent = self.key[block], self._parent[block]
        if key is None or self.num_children(block):
            raise InvariantError(f"block {block} cannot leave the tree: key {key}, {self.num_children(block)} children")
        if parent is None:
            root = self._root_of.pop(block)
            level = self._roots[root]
            self._forget_first_tokens(self._tokens[block])
        else:
            level = self._children[parent]
            assert level is not None
        del level[key]
        if parent is None and not level:
            del self._roots[root]
        self._parent[block] = self._extra[block] = None
        self._tokens[block] = ()
        self._children[block] = None
        self._leave(block, key, step, cause)

    def leaves_first(self) -> list[int]:
        order: list[int] = []
        stack = [b for level in self._roots.values() for b in level.values()]
        while stack:
            block = stack.pop()
            order.append(block)
            stack.extend((self._children[block] or {}).values())
        return order[::-1]

    # -- inside --------------------------------------------------------------------------------------------------

    def _same(self, block: int, seq: Sequence, index: int) -> bool:
        extras = seq.request.spec.block_keys
        if self._extra[block] != (extras.get(index) if extras else None):
            return False
        return self._tokens[block] == self._tokens_at(seq, index)

    def _level(self, parent: int | None, root: Hashable) -> dict[int, int]:
        if parent is None:
            return self._roots.setdefault(root, {})
        if self.key[parent] is None:
            raise InvariantError(f"block {parent} is not published: nothing may hang under it")
        level = self._children[parent]
        if level is None:
            level = self._children[parent] = {}
        return level

    def check(self) -> None:
        published = set(self.leaves_first())
        for block, key in enumerate(self.key):
            if (key is not None) != (block in published):
                raise InvariantError(
                    f"block {block} has key {key} but is {'' if block in published else 'not '}in the tree"
                )
            for child_key, child in (self._children[block] or {}).items():
                if key is None or self.key[child] != child_key or self._parent[child] != block:
                    raise InvariantError(f"block {child} hangs under {block} but disagrees about it")
