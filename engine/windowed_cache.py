"""The prefix cache of models with sliding windows: one tree of chain positions, blocks of every KV group on its nodes.

A node is a position in a chain: a block of tokens behind all those before it, whoever still holds their K and V. Per
group it has at most one resident block. A group that keeps every token needs an unbroken chain of them from position 0,
so there a parent outlives its children; of a windowed group any idle block may go, and a prefix of length L can be hit
wherever the blocks that the query at L looks back on are there. All groups must agree on L.

A node lives while a block is on it, a node below it, or a running sequence stands on it (the end of its own chain,
under which it publishes next). Tokens are compared on a hit: a collision of keys can only be a miss.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from kvtop.engine.errors import InvariantError
from kvtop.engine.keys import BlockExtra, KeyFn, Packed
from kvtop.engine.published import Lookup, PublishedBlocks
from kvtop.engine.sequence import Sequence
from kvtop.engine.types import NULL_BLOCK, MissReason
from kvtop.engine.windows import KVGroups

Level = dict[int, "Node"]


class Node:
    """One chain position; ``blocks``: its own of each group, or NULL_BLOCK."""

    __slots__ = ("blocks", "children", "depth", "extra", "key", "num_blocks", "num_standing", "number",
                 "parent", "root", "tokens")  # fmt: skip

    def __init__(
        self, number: int, key: int, tokens: Packed, extra: BlockExtra, parent: Node | None, root: Hashable, groups: int
    ) -> None:
        self.number, self.key, self.tokens, self.extra = number, key, tokens, extra
        self.parent, self.root = parent, root
        self.depth = 0 if parent is None else parent.depth + 1
        self.children: Level = {}
        self.blocks = [NULL_BLOCK] * groups
        self.num_blocks = 0
        self.num_standing = 0  # running sequences whose chain ends here


@dataclass(frozen=True, slots=True)
class Match:
    """A hit of ``num_blocks`` whole blocks: their entries in each group's table, NULL_BLOCK before the window.

    ``path`` is every node of the chain that exists, also beyond the hit.
    """

    num_blocks: int
    tables: list[list[int]]
    path: list[Node]


class WindowedCache(PublishedBlocks):
    """Published blocks of all KV groups. Complexity of every operation: the positions it touches, times groups."""

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        groups: KVGroups,
        *,
        key_fn: KeyFn | None = None,
        ghost_entries: int = 0,
    ) -> None:
        super().__init__(num_blocks, block_size, key_fn=key_fn, ghost_entries=ghost_entries)
        self.groups = groups
        self.windows = groups.windows
        self._node: list[Node | None] = [None] * num_blocks
        self._group = [0] * num_blocks
        self._roots: dict[Hashable, Level] = {}
        self._standing: dict[str, Node] = {}  # sequence id -> the end of its published chain
        self._num_made = 0

    def parent_key(self, block: int) -> int:
        node = self._node[block]
        assert node is not None, f"block {block} is not published"
        return self._root_key(node.root) if node.parent is None else node.parent.key

    # -- lookup --------------------------------------------------------------------------------------------------

    def match(self, seq: Sequence) -> Match:
        """The longest prefix that every group can serve, at most known tokens - 1. Changes no block."""
        self.extend_keys(seq)
        path: list[Node] = []
        level = self._roots.get(seq.request.extra, {})
        for i in range((seq.num_tokens - 1) // self.block_size):
            node = level.get(seq.keys[i])
            if node is None or not self._same(node, seq, i):
                break
            path.append(node)
            level = node.children
        num_blocks = self._longest(path)
        tables = [self._entries(path, num_blocks, group) for group in range(len(self.windows))]
        return Match(num_blocks, tables, path)

    def path(self, seq: Sequence) -> list[int]:
        """Numbers of the chain positions: the groups' blocks have no path in common."""
        match = self.match(seq)
        return [node.number for node in match.path[: match.num_blocks]]

    def _first_kept(self, num_blocks: int, group: int) -> int:
        """First block that the query behind ``num_blocks`` whole blocks looks back on."""
        return self.groups.first_kept(num_blocks * self.block_size, group)

    def _longest(self, path: list[Node]) -> int:
        """Blocks of the longest hit along ``path``: per group, an unbroken run up to it that is long enough."""
        longest, runs = 0, [0] * len(self.windows)
        for length, node in enumerate(path, 1):
            valid = True
            for group, window in enumerate(self.windows):
                runs[group] = runs[group] + 1 if node.blocks[group] != NULL_BLOCK else 0
                if runs[group] < length - self._first_kept(length, group):
                    valid = False
                    if window is None:  # a chain that is broken once stays broken
                        return longest
            if valid:
                longest = length
        return longest

    def _entries(self, path: list[Node], num_blocks: int, group: int) -> list[int]:
        first = self._first_kept(num_blocks, group)
        return [NULL_BLOCK] * first + [node.blocks[group] for node in path[first:num_blocks]]

    def explain(self, seq: Sequence, match: Match, running: Iterable[Sequence]) -> Lookup:
        """Why the match of ``seq`` is not one block longer."""
        hits = [node.number for node in match.path[: match.num_blocks]]
        if match.num_blocks == (seq.num_tokens - 1) // self.block_size:
            return Lookup(hits, MissReason.LAST_TOKEN)
        missing = self._missing(match)
        evicted = [(group, i) for group, i in missing if (group, seq.keys[i]) in self._ghosts]
        group, index = (evicted or missing)[0]
        return self._explain(seq, hits, index, (group, seq.keys[index]), running)

    def _missing(self, match: Match) -> list[tuple[int, int]]:
        """(group, index) of the blocks that a hit of one block more would need."""
        path, last = match.path, match.num_blocks
        return [
            (group, i)
            for group in range(len(self.windows))
            for i in range(self._first_kept(last + 1, group), last + 1)
            if i >= len(path) or path[i].blocks[group] == NULL_BLOCK
        ]

    # -- change --------------------------------------------------------------------------------------------------

    def publish(self, seq: Sequence, index: int, step: int) -> list[int] | None:
        """Enter block ``index`` of each of ``seq``'s tables; the chain before it is published.

        Returns the blocks that now stand for these tokens, one a group: the sequence's own, or those published before
        (the caller switches to them). None: the key belongs to other tokens; the chain ends here.
        """
        above = self._standing.get(seq.seq_id)
        level = self._roots.setdefault(seq.request.extra, {}) if above is None else above.children
        key = seq.keys[index]
        node = level.get(key)
        if node is None:
            node = level[key] = self._new_node(seq, index, above)
        elif not self._same(node, seq, index):
            return None
        for group, table in enumerate(seq.block_tables):
            if table[index] != NULL_BLOCK and node.blocks[group] == NULL_BLOCK:
                self._place(table[index], group, node, step)
        self.stand(seq, node)
        return node.blocks

    def stand(self, seq: Sequence, node: Node | None) -> None:
        """The published chain of ``seq`` ends at ``node`` now (None: it has none, or the sequence gave all back)."""
        before = self._standing.pop(seq.seq_id, None)
        if node is not None:
            self._standing[seq.seq_id] = node
            node.num_standing += 1
        if before is not None:
            before.num_standing -= 1
            self._prune(before)

    def stand_beside(self, seq: Sequence, other: Sequence) -> None:
        """The chain of ``seq`` ends where that of ``other`` does."""
        self.stand(seq, self._standing.get(other.seq_id))

    def forget_chains(self) -> None:
        """After a reset nobody publishes under a chain that began before it."""
        standing, self._standing = self._standing, {}
        for node in standing.values():
            node.num_standing -= 1
            self._prune(node)

    def leaves_first(self) -> list[int]:
        return [block for node in reversed(self._nodes()) for block in node.blocks if block != NULL_BLOCK]

    # -- inside --------------------------------------------------------------------------------------------------

    def _nodes(self) -> list[Node]:
        """Every node, parents before children."""
        order: list[Node] = []
        stack = [node for level in self._roots.values() for node in level.values()]
        while stack:
            order.append(stack.pop())
            stack.extend(order[-1].children.values())
        return order

    def _same(self, node: Node, seq: Sequence, index: int) -> bool:
        extras = seq.request.spec.block_keys
        if node.extra != (extras.get(index) if extras else None):
            return False
        return node.tokens == seq.key_tokens[index]

    def _new_node(self, seq: Sequence, index: int, parent: Node | None) -> Node:
        extra = (seq.request.spec.block_keys or {}).get(index)
        tokens = seq.key_tokens[index]
        self._num_made += 1
        if parent is None:
            self._note_first_tokens(tokens)
        return Node(self._num_made, seq.keys[index], tokens, extra, parent, seq.request.extra, len(self.windows))

    def _detach(self, blocks: Seq[int], keys: Seq[int], parents: Seq[int | None]) -> tuple[list[int], Seq[Hashable]]:
        parent_keys, ghosts = [], []
        for block, key, parent in zip(blocks, keys, parents, strict=True):
            if self.num_children[block]:
                raise self._has_children(block)
            if parent is not None:
                self.num_children[parent] -= 1
            parent_keys.append(self.parent_key(block))
            node, group = self._node[block], self._group[block]
            assert node is not None
            ghosts.append((group, key))
            node.blocks[group] = NULL_BLOCK
            node.num_blocks -= 1
            self._node[block] = None
            self._prune(node)
        return parent_keys, ghosts

    def _place(self, block: int, group: int, node: Node, step: int) -> None:
        parent = None
        if node.parent is not None and self.windows[group] is None:
            parent = node.parent.blocks[group]
            if parent == NULL_BLOCK:
                raise InvariantError(f"block {block} would hang under a chain that group {group} does not hold")
        node.blocks[group] = block
        node.num_blocks += 1
        self._node[block], self._group[block] = node, group
        self._ghosts.forget([(group, node.key)])
        self._enter(block, node.key, parent, node.depth, step)

    def _prune(self, node: Node | None) -> None:
        """Remove ``node`` and those above it that nothing needs any more."""
        while node is not None and not (node.num_blocks or node.children or node.num_standing):
            level = self._roots[node.root] if node.parent is None else node.parent.children
            del level[node.key]
            if node.parent is None:
                self._forget_first_tokens(node.tokens)
                if not level:
                    del self._roots[node.root]
            node = node.parent

    def check(self) -> None:
        found: dict[int, Node] = {}
        for node in self._nodes():
            if not (node.num_blocks or node.children or node.num_standing):
                raise InvariantError(f"a node at depth {node.depth} is left that nothing needs")
            if node.num_standing != sum(1 for n in self._standing.values() if n is node):
                raise InvariantError(f"{node.num_standing} sequences stand on a node at depth {node.depth}")
            for group, block in enumerate(node.blocks):
                below = [b for child in node.children.values() if (b := child.blocks[group]) != NULL_BLOCK]
                if self.windows[group] is not None:  # there any block may go
                    below = []
                if block == NULL_BLOCK:
                    if below:
                        raise InvariantError(f"group {group}: children outlived their parent at depth {node.depth}")
                    continue
                found[block] = node
                if self.num_children[block] != len(below):
                    raise InvariantError(f"block {block} has {len(below)} below it, counted {self.num_children[block]}")
                if any(self.parent[child] != block for child in below):
                    raise InvariantError(f"blocks {below} hang under block {block} but disagree about it")
                if self._node[block] is not node or self._group[block] != group or self.key[block] != node.key:
                    raise InvariantError(f"block {block} is on a node it disagrees with")
            if node.num_blocks != sum(block != NULL_BLOCK for block in node.blocks):
                raise InvariantError(f"a node at depth {node.depth} counts {node.num_blocks} blocks")
        for block, key in enumerate(self.key):
            if (key is not None) != (block in found):
                where = "in" if block in found else "not in"
                raise InvariantError(f"block {block} has key {key} but is {where} the tree")
