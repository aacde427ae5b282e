"""The idle blocks in eviction order: a plain list for LRU, a heap for every other key (``policies/eviction.py``)."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from heapq import heappop, heappush

from kvtop.engine.block_list import BlockList
from kvtop.engine.block_pool import Evictor
from kvtop.engine.policies.registry import EVICTION, EvictionKey
from kvtop.engine.prefix_cache import PrefixCache

_Entry = tuple[tuple[int, ...], int, int, int]  # key, -depth, block, stamp


class LRUEvictor:
    """Least recently used first; of one request, deeper blocks first (a request releases its table tail first).

    A chain's parent is released no earlier than its child, so it stands behind it in the list and ``peek`` takes the
    head without looking further; only pins can put a child behind its parent, and then the walk is repeated.
    """

    def __init__(self, num_blocks: int, cache: PrefixCache) -> None:
        self._list = BlockList(num_blocks)
        self._cache = cache

    def __len__(self) -> int:
        return len(self._list)

    def __contains__(self, block: int) -> bool:
        return block in self._list

    def __iter__(self) -> Iterator[int]:
        return iter(self._list)

    def add(self, block: int) -> None:
        self._list.push_back(block)

    def remove(self, block: int) -> None:
        self._list.remove(block)

    def child_gone(self, block: int) -> None:
        """Nothing to do: its place in the list is by time, not by key."""

    def peek(self, k: int, exclude: Collection[int]) -> list[int]:
        chosen: list[int] = []
        taken: set[int] = set()
        passed: set[int] = set()  # blocks walked past because a child is still there
        gone: dict[int, int] = {}  # parent -> children chosen so far
        again = k > 0
        while again:
            again = False
            for block in self._list:
                if block in exclude or block in taken:
                    continue
                if self._cache.num_children(block) > gone.get(block, 0):
                    passed.add(block)
                    continue
                chosen.append(block)
                if len(chosen) == k:
                    return chosen
                taken.add(block)
                parent = self._cache.parent(block)
                if parent is not None:
                    gone[parent] = gone.get(parent, 0) + 1
                    if parent in passed and self._cache.num_children(parent) == gone[parent]:
                        again = True  # an older block than all that follow may go now
                        break
        return chosen


class KeyedEvictor:
    """Any order given by a key function, smallest first: a heap with lazy deletion.

    Only blocks without published children are in the heap; ``child_gone`` lets a parent in. The key is taken when a
    block enters, deeper blocks first on a tie.
    """

    def __init__(self, num_blocks: int, cache: PrefixCache, key: EvictionKey) -> None:
        self._cache = cache
        self._key = key
        self._idle: set[int] = set()
        self._heap: list[_Entry] = []
        self._stamp = [0] * num_blocks  # an entry is stale when its stamp is not the block's

    def __len__(self) -> int:
        return len(self._idle)

    def __contains__(self, block: int) -> bool:
        return block in self._idle

    def add(self, block: int) -> None:
        self._idle.add(block)
        if not self._cache.num_children(block):
            heappush(self._heap, self._entry(block))

    def remove(self, block: int) -> None:
        self._idle.remove(block)
        self._stamp[block] += 1

    def child_gone(self, block: int) -> None:
        if block in self._idle and not self._cache.num_children(block):
            heappush(self._heap, self._entry(block))

    def peek(self, k: int, exclude: Collection[int]) -> list[int]:
        chosen: list[int] = []
        popped: list[_Entry] = []
        parents: list[_Entry] = []  # of chosen blocks, now without children
        gone: dict[int, int] = {}
        while len(chosen) < k and (self._heap or parents):
            own = not parents or (self._heap and self._heap[0] <= parents[0])
            entry = heappop(self._heap if own else parents)
            block = entry[2]
            if own:
                if entry[3] != self._stamp[block] or block not in self._idle:
                    continue
                popped.append(entry)
            if block in exclude:
                continue
            chosen.append(block)
            parent = self._cache.parent(block)
            if parent is not None:
                gone[parent] = gone.get(parent, 0) + 1
                if parent in self._idle and gone[parent] == self._cache.num_children(parent):
                    heappush(parents, self._entry(parent))
        for entry in popped:
            heappush(self._heap, entry)
        return chosen

    def _entry(self, block: int) -> _Entry:
        self._stamp[block] += 1
        return (self._key(block, self._cache), -self._cache.depth[block], block, self._stamp[block])


def make_evictor(name: str, num_blocks: int, cache: PrefixCache) -> Evictor:
    """Raises UnknownName with the nearest valid name."""
    policy, _ = EVICTION.get(name)
    if name == "lru":
        return LRUEvictor(num_blocks, cache)
    return KeyedEvictor(num_blocks, cache, policy.rule)
