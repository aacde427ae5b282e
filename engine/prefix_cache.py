"""The prefix cache: a radix tree whose edges are whole blocks of token ids.

A node *is* a published block: its key, tokens, parent and children are kept by block id. The tree owns no references:
a block nobody holds is idle and may be evicted, once it has no published children. Roots are one per extra key
(adapter, salt, ...), so two requests with different extra keys never meet. Keys only speed the search up: tokens are
compared on a hit, and a collision can only be a miss.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from collections.abc import Sequence as Seq
from itertools import compress
from itertools import count as count_from
from operator import ne

from kvtop.engine.columns import reader
from kvtop.engine.errors import InvariantError
from kvtop.engine.keys import BlockExtra, KeyFn, Packed, default_key, stable_int
from kvtop.engine.published import Lookup, PublishedBlocks
from kvtop.engine.sequence import Sequence
from kvtop.engine.types import MissReason

__all__ = ["KeyFn", "Lookup", "PrefixCache", "default_key", "stable_int"]

Level = int | dict[int, int] | None
"""The children of a block: most have one, which is then here itself; else by key, in order of publication."""


class PrefixCache(PublishedBlocks):
    """Published blocks as a tree. Complexity of every operation: the number of blocks it touches."""

    def __init__(
        self, num_blocks: int, block_size: int, *, key_fn: KeyFn | None = None, ghost_entries: int = 0
    ) -> None:
        super().__init__(num_blocks, block_size, key_fn=key_fn, ghost_entries=ghost_entries)
        self._tokens: list[Packed] = [()] * num_blocks  # of a block that has left the tree: until it enters again
        self._extra: dict[int, BlockExtra] = {}  # of blocks that have one
        self._children: list[Level] = [None] * num_blocks
        self._roots: dict[Hashable, dict[int, int]] = {}
        self._root_of: dict[int, Hashable] = {}  # top-level block -> its root

    def parent_key(self, block: int) -> int:
        parent = self.parent[block]
        if parent is None:
            return self._root_key(self._root_of[block])
        key = self.key[parent]
        assert key is not None
        return key

    def content(self, block: int) -> tuple[int, Packed, BlockExtra]:
        """Key, tokens and extra key of a published block."""
        key = self.key[block]
        assert key is not None
        return key, self._tokens[block], self._extra.get(block)

    def root_of(self, block: int) -> Hashable:
        """The extra key under which a block at the top is published."""
        return self._root_of[block]

    # -- lookup --------------------------------------------------------------------------------------------------

    def match(self, seq: Sequence) -> list[int]:
        """The longest chain of published blocks from position 0, at most known tokens - 1. Changes no block.

        A block that cannot be hit whole is computed again: reuse is by full blocks only.
        """
        self.extend_keys(seq)
        hits: list[int] = []
        above: int | None = None
        for i in range((seq.num_tokens - 1) // self.block_size):
            block = self._child(above, seq, i)
            if block is None or not self._same(block, seq, i):
                break
            hits.append(block)
            above = block
        return hits

    def path(self, seq: Sequence) -> list[int]:
        return self.match(seq)

    def explain(self, seq: Sequence, hits: list[int], running: Iterable[Sequence], num_host: int = 0) -> Lookup:
        """Why the match of ``seq`` ended after ``hits``, and ``num_host`` blocks of the host tier behind them.

        Complexity: O(running sequences), once an admission.
        """
        i = len(hits) + num_host
        if i == (seq.num_tokens - 1) // self.block_size:
            return Lookup(hits, MissReason.LAST_TOKEN)
        return self._explain(seq, hits, i, seq.keys[i], running)

    # -- change --------------------------------------------------------------------------------------------------

    def publish(self, seq: Sequence, begin: int, end: int, step: int) -> int:
        """Enter blocks ``begin .. end - 1`` of ``seq``'s table, whose predecessors are published.

        Returns the index of the first whose key is published already (``standing`` says by whom), else ``end``.
        """
        above = seq.block_table[begin - 1] if begin else None
        if self._child(above, seq, begin) is not None:
            return begin
        blocks, keys = seq.block_tables[0][begin:end], seq.keys[begin:end]
        key_tokens, children = seq.key_tokens[begin:end], self._children
        self._tokens[blocks[0]] = key_tokens[0]
        self._hang(blocks[0], keys[0], above, seq.request.extra)
        if above is not None:
            self.num_children[above] += 1
        key_of, parent_of, num_children, depth_of = self.key, self.parent, self.num_children, self.depth
        published_step, last_use_step, tokens_of = self.published_step, self.last_use_step, self._tokens
        for block, key, over, under, tokens, depth in zip(
            blocks, keys, [above, *blocks], [*blocks[1:], None], key_tokens, range(begin, end), strict=False
        ):
            key_of[block] = key
            parent_of[block] = over
            children[block] = under  # nothing else hangs under a block that was just published
            num_children[block] = 1
            tokens_of[block] = tokens
            published_step[block] = last_use_step[block] = step
            depth_of[block] = depth
        num_children[blocks[-1]] = 0
        extras = seq.request.spec.block_keys
        if extras:
            self._extra.update((blocks[i - begin], extras[i]) for i in range(begin, end) if i in extras)
        # Children left before their parents: behind a key that did not leave none did.
        self._ghosts.forget(keys, chained=self._key_fn is default_key)
        self.version += 1
        return end

    def standing(self, seq: Sequence, index: int) -> int | None:
        """The block published for the tokens of block ``index`` of ``seq``, whose predecessors are published.

        None: there is none, or the key belongs to other tokens, and the chain ends here.
        """
        block = self._child(seq.block_table[index - 1] if index else None, seq, index)
        return block if block is not None and self._same(block, seq, index) else None

    def leaves_first(self) -> list[int]:
        order: list[int] = []
        stack = [b for level in self._roots.values() for b in level.values()]
        while stack:
            block = stack.pop()
            order.append(block)
            stack.extend(self._below(block))
        return order[::-1]

    # -- inside --------------------------------------------------------------------------------------------------

    def _same(self, block: int, seq: Sequence, index: int) -> bool:
        extras = seq.request.spec.block_keys
        if self._extra.get(block) != (extras.get(index) if extras else None):
            return False
        return self._tokens[block] == seq.key_tokens[index]

    def _below(self, block: int) -> Iterable[int]:
        level = self._children[block]
        return () if level is None else level.values() if isinstance(level, dict) else (level,)

    def _child(self, above: int | None, seq: Sequence, index: int) -> int | None:
        """The block under ``above`` (None: at the top) that has the key of block ``index`` of ``seq``."""
        key = seq.keys[index]
        level = self._roots.get(seq.request.extra) if above is None else self._children[above]
        if level is None or isinstance(level, dict):
            return level.get(key) if level else None
        return level if self.key[level] == key else None

    def _hang(self, block: int, key: int, above: int | None, root: Hashable) -> None:
        """Put ``block`` under ``above``, or at the top of its root."""
        if above is None:
            self._roots.setdefault(root, {})[key] = block
            self._root_of[block] = root
            self._note_first_tokens(self._tokens[block])
            return
        if self.key[above] is None:
            raise InvariantError(f"block {above} is not published: nothing may hang under it")
        level = self._children[above]
        if level is None:
            self._children[above] = block
        elif isinstance(level, dict):
            level[key] = block
        else:
            only = self.key[level]
            assert only is not None
            self._children[above] = {only: level, key: block}

    def _detach(self, blocks: Seq[int], keys: Seq[int], parents: Seq[int | None]) -> tuple[list[int], Seq[Hashable]]:
        if self.leaves_in_order(blocks, reader(blocks)):
            parent_keys = self._detach_chains(blocks, keys, parents)
        else:
            parent_keys = [self._detach_one(*row) for row in zip(blocks, keys, parents, strict=True)]
        if self._extra:
            for block in blocks:
                self._extra.pop(block, None)
        return parent_keys, keys

    def _detach_chains(self, blocks: Seq[int], keys: Seq[int], parents: Seq[int | None]) -> list[int]:
        """Chains, each from its last block up: only the first block of each leaves a parent behind."""
        children, num_children = self._children, self.num_children
        parent_keys = [*keys[1:], 0]
        tops = [*compress(count_from(), map(ne, parents, blocks[1:])), len(blocks) - 1]
        for block in blocks:
            children[block] = None
            num_children[block] = 0
        for i in tops:
            parent_keys[i] = self._detach_one(blocks[i], keys[i], parents[i])
        return parent_keys

    def _detach_one(self, block: int, key: int, parent: int | None) -> int:
        """Count ``block`` off its parent; returns the parent's key."""
        if self.num_children[block]:
            raise self._has_children(block)
        if parent is None:
            return self._detach_root(block, key)
        left = self.num_children[parent] = self.num_children[parent] - 1
        if left:
            level = self._children[parent]
            assert isinstance(level, dict), f"block {parent} had {left + 1} children"
            del level[key]
        else:
            self._children[parent] = None
        parent_key = self.key[parent]
        assert parent_key is not None
        return parent_key

    def _detach_root(self, block: int, key: int) -> int:
        """Take a block at the top out of the tree; returns the key of its root."""
        root = self._root_of.pop(block)
        level = self._roots[root]
        del level[key]
        if not level:
            del self._roots[root]
        self._forget_first_tokens(self._tokens[block])
        return self._root_key(root)

    def check(self) -> None:
        published = set(self.leaves_first())
        for block, key in enumerate(self.key):
            if (key is not None) != (block in published):
                raise InvariantError(
                    f"block {block} has key {key} but is {'' if block in published else 'not '}in the tree"
                )
            below = list(self._below(block))
            if self.num_children[block] != len(below):
                raise InvariantError(f"block {block} has {len(below)} children, counted {self.num_children[block]}")
            level = self._children[block]
            for child_key, child in level.items() if isinstance(level, dict) else ((self.key[b], b) for b in below):
                if key is None or self.key[child] != child_key or self.parent[child] != block:
                    raise InvariantError(f"block {child} hangs under {block} but disagrees about it")
