"""The prefix cache: a radix tree whose edges are whole blocks of token ids.

A node *is* a published block: its key, tokens, parent and children are kept by block id. The tree owns no references:
a block nobody holds is idle and may be evicted, once it has no published children. Roots are one per extra key
(adapter, salt, ...), so two requests with different extra keys never meet. Keys only speed the search up: tokens are
compared on a hit, and a collision can only be a miss.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable

from kvtop.engine.errors import InvariantError
from kvtop.engine.published import BlockExtra, KeyFn, Lookup, PublishedBlocks, Tokens, default_key, stable_int
from kvtop.engine.sequence import Sequence
from kvtop.engine.types import MissReason

__all__ = ["KeyFn", "Lookup", "PrefixCache", "default_key", "stable_int"]


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

    def path(self, seq: Sequence) -> list[int]:
        return self.match(seq)

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
