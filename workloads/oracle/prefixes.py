"""Which part of a prompt earlier requests began with: a tree of what rows have in common, without making a token."""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple, TypeVar

from kvtop.workloads.rows import Row, own_tokens

Key = TypeVar("Key", bound=Hashable)


class Placed(NamedTuple):
    """Where a request lies in the tree."""

    common_tokens: int  # of its prompt, from position 0, in common with what some earlier request left behind
    node: int  # its last
    end_tokens: int  # how far the tree knows it; tokens of its own follow


class PrefixTree:
    """The requests so far: system prompts, below them a node for each hash id *after the ids before it*, below those
    conversations. It mirrors ``TokenMaker``: two prompts go the same way in the tree as far as their tokens are equal.

    So ids that are not hashes of whole prefixes are told apart too. Rows whose ``shared_tokens`` or
    ``hash_block_tokens`` differ have only the system prompt in common. A parent's number is below its children's.
    """

    def __init__(self) -> None:
        self.parent = [0]
        self.start = [0]  # position of the node's first token
        self._covered = [0]  # how many of the node's tokens some request held
        self._nodes: dict[tuple[int, int], int] = {}  # (parent, hash id) -> node
        self._systems: dict[int, int] = {}  # shared_id -> node
        self._roots: dict[tuple[int, int, int], int] = {}  # (system prompt, its length, tokens a block) -> node
        self._talks: dict[tuple[int, int, int], int] = {}  # (parent, conversation, where it begins) -> node

    def add(self, row: Row) -> Placed:
        """Add a request: its prompt and, in a conversation, the answer that later turns repeat, but its last token."""
        placed = self.add_ids(row)
        if row.conversation is None:
            return placed
        common, parent, end = placed
        own = own_tokens(row)
        node = self._node(self._talks, (parent, row.conversation, end), parent, end)
        if common == end:
            common += min(own, self._covered[node])
        stored = own + row.output_tokens - 1
        self._covered[node] = max(self._covered[node], stored)
        return Placed(common, node, end + stored)

    def add_ids(self, row: Row) -> Placed:
        """Add the part of a prompt that is made of a system prompt and hash ids."""
        block = row.hash_block_tokens if row.hash_ids else 0
        node, common, end = self._begin(row, block)
        left = min(len(row.hash_ids) * block, row.prompt_tokens - end)
        nodes, covered = self._nodes, self._covered
        known = common == end  # every token so far was seen
        for hash_id in row.hash_ids:
            if left <= 0:
                break
            tokens = min(block, left)
            left -= tokens
            key = (node, hash_id)
            found = nodes.get(key)
            if found is None:
                node = nodes[key] = self._new(node, end)
                known = False
            else:
                node = found
                if known:  # what was held in part only has nothing behind it
                    common += min(tokens, covered[node])
            if covered[node] < tokens:
                covered[node] = tokens
            end += tokens
        return Placed(common, node, end)

    def _begin(self, row: Row, block: int) -> tuple[int, int, int]:
        """(node, common tokens, tokens) after the system prompt, where the blocks begin."""
        end = min(row.shared_tokens, row.prompt_tokens)
        if not end:
            return self._node(self._roots, (-1, 0, block), 0, 0), 0, 0
        system = self._node(self._systems, row.shared_id, 0, 0)
        common = min(end, self._covered[system])
        self._covered[system] = max(end, self._covered[system])
        return self._node(self._roots, (system, end, block), system, end), common, end

    def _node(self, nodes: dict[Key, int], key: Key, parent: int, start: int) -> int:
        node = nodes.get(key)
        if node is None:
            node = nodes[key] = self._new(parent, start)
        return node

    def _new(self, parent: int, start: int) -> int:
        self.parent.append(parent)
        self.start.append(start)
        self._covered.append(0)
        return len(self.parent) - 1
