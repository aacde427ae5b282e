"""The idle blocks in eviction order: a list by time of release for LRU, a heap for every other key (policies/)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from collections.abc import Sequence as Seq
from heapq import heapify, heappop, heappush
from itertools import islice

from kvtop.engine.block_pool import Evictor
from kvtop.engine.columns import reader
from kvtop.engine.policies.registry import EVICTION, EvictionKey
from kvtop.engine.published import PublishedBlocks

HOLE = NOWHERE = -1

_Entry = tuple[tuple[int, ...], int, int, int]  # key, -depth, block, stamp


class LRUEvictor:
    """Least recently used first; of one request, deeper blocks first (a request releases its table tail first).

    A chain's parent is released no earlier than its child, so it stands behind it in the order and ``peek`` takes the
    head without looking further; only pins can put a child behind its parent, and then the walk is repeated.
    """

    def __init__(self, cache: PublishedBlocks) -> None:
        # Blocks in the order of their release, HOLE where one was taken since. (An OrderedDict has no holes and takes
        # three times as long: results/LOG.md.)
        self._order: list[int] = []
        self._place = [NOWHERE] * len(cache.key)  # of an idle block in the order
        self._head = 0  # what is before it has been evicted
        self._num_idle = 0
        self._cache = cache

    def __len__(self) -> int:
        return self._num_idle

    def __contains__(self, block: int) -> bool:
        return self._place[block] != NOWHERE

    def __iter__(self) -> Iterator[int]:
        order = self._order
        for at in range(self._head, len(order)):  # an islice would walk over what is before the head
            if order[at] != HOLE:
                yield order[at]

    def add(self, blocks: Seq[int]) -> None:
        order, place = self._order, self._place
        if len(order) + len(blocks) > 4 * len(place):
            self._close_gaps()
        at = len(order)
        order += blocks
        for block in blocks:
            place[block] = at
            at += 1
        self._num_idle += len(blocks)

    def remove(self, blocks: Seq[int]) -> None:
        order, place, head = self._order, self._place, self._head
        self._num_idle -= len(blocks)
        if order[head : head + len(blocks)] == blocks:  # evicted: as ``peek`` gave them
            self._head = head + len(blocks)
        else:
            for block in blocks:
                order[place[block]] = HOLE
        for block in blocks:
            place[block] = NOWHERE

    def _close_gaps(self) -> None:
        """Leave the holes out. Complexity: O(blocks), after three times as many releases."""
        self._order[:] = list(self)
        self._head = 0
        for at, block in enumerate(self._order):
            self._place[block] = at

    def children_gone(self, blocks: Iterable[int | None]) -> None:
        """Nothing to do: a block's place is by time, not by key."""

    def peek(self, k: int, exclude: Collection[int]) -> list[int]:
        order, head = self._order, self._head
        first = order[head : head + k]
        if HOLE in first:
            while head < len(order) and order[head] == HOLE:
                head += 1
            self._head = head
            first = list(islice(self, k))
        return first if self._may_go(first, exclude) else self._search(k, exclude)

    def _may_go(self, blocks: list[int], exclude: Collection[int]) -> bool:
        """Nothing stands in the way of ``blocks`` in this order; nearly always so of the first ones."""
        if not blocks or (exclude and not set(exclude).isdisjoint(blocks)):
            return not blocks
        return self._cache.leaves_in_order(blocks, reader(blocks))

    def _search(self, k: int, exclude: Collection[int]) -> list[int]:
        num_children, parents = self._cache.num_children, self._cache.parent
        chosen: list[int] = []
        passed: set[int] = set()  # blocks walked past because a child is still there
        gone: dict[int, int] = {}  # parent -> children chosen so far
        skip = exclude
        again = k > 0
        while again:
            again = False
            for block in self:
                if block in skip:
                    continue
                left = num_children[block]
                if left and left > gone.get(block, 0):
                    passed.add(block)
                    continue
                chosen.append(block)
                if len(chosen) == k:
                    return chosen
                parent = parents[block]
                if parent is not None:
                    gone[parent] = gone.get(parent, 0) + 1
                    if parent in passed and num_children[parent] == gone[parent]:
                        again = True  # an older block than all that follow may go now
                        skip = {*exclude, *chosen}
                        break
        return chosen


class KeyedEvictor:
    """Any order given by a key function, smallest first: a heap with lazy deletion.

    Only blocks without published children are in the heap; ``children_gone`` lets a parent in. The key is taken when a
    block enters, deeper blocks first on a tie.
    """

    def __init__(self, cache: PublishedBlocks, key: EvictionKey) -> None:
        self._cache = cache
        self._key = key
        self._idle: dict[int, None] = {}  # in order of release
        self._heap: list[_Entry] = []
        self._stamp = [0] * len(cache.key)  # an entry is stale when its stamp is not the block's

    def __len__(self) -> int:
        return len(self._idle)

    def __contains__(self, block: int) -> bool:
        return block in self._idle

    def __iter__(self) -> Iterator[int]:
        return iter(self._idle)

    def add(self, blocks: Seq[int]) -> None:
        for block in blocks:
            self._idle[block] = None
            self._let_in(block)

    def remove(self, blocks: Seq[int]) -> None:
        for block in blocks:
            del self._idle[block]
            self._stamp[block] += 1

    def children_gone(self, blocks: Iterable[int | None]) -> None:
        for block in blocks:
            if block is not None:
                self._let_in(block)

    def _let_in(self, block: int) -> None:
        """Enter ``block`` into the heap (anew), if it is idle and has no published children."""
        if block in self._idle and not self._cache.num_children[block]:
            self._stamp[block] += 1
            heappush(self._heap, self._entry(block))
            if len(self._heap) > 2 * len(self._idle) + 64:  # a block hit again and again leaves an entry each time
                self._heap = [entry for entry in self._heap if self._is_current(entry)]
                heapify(self._heap)

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
                if not self._is_current(entry):
                    continue
                popped.append(entry)
            if block in exclude:
                continue
            chosen.append(block)
            parent = self._cache.parent[block]
            if parent is not None:
                gone[parent] = gone.get(parent, 0) + 1
                if parent in self._idle and gone[parent] == self._cache.num_children[parent]:
                    heappush(parents, self._entry(parent))
        for entry in popped:
            heappush(self._heap, entry)
        return chosen

    def _entry(self, block: int) -> _Entry:
        return (self._key(block, self._cache), -self._cache.depth[block], block, self._stamp[block])

    def _is_current(self, entry: _Entry) -> bool:
        return entry[3] == self._stamp[entry[2]] and entry[2] in self._idle


class ForesightEvictor(KeyedEvictor):
    """For belady: a key is right until the request it looks forward to has come; then the block is keyed anew.

    (That request need not have taken the block: it recomputes the last block of its prompt, or it was rejected.)
    """

    def __init__(self, cache: PublishedBlocks, key: EvictionKey) -> None:
        super().__init__(cache, key)
        self._expecting: dict[int, list[tuple[int, int]]] = {}  # request -> (block, stamp) of keys that end with it
        self._now = -1

    def peek(self, k: int, exclude: Collection[int]) -> list[int]:
        future = self._cache.future
        assert future is not None, "the engine refuses belady without a recorded future"
        while self._now < future.now:
            self._now += 1
            for block, stamp in self._expecting.pop(self._now, ()):
                if stamp == self._stamp[block]:
                    self._let_in(block)
        return super().peek(k, exclude)

    def _entry(self, block: int) -> _Entry:
        key, future = self._cache.key[block], self._cache.future
        assert key is not None, "only published blocks are idle"
        assert future is not None, "the engine refuses belady without a recorded future"
        request = future.next_mention(key)
        if request is not None:
            self._expecting.setdefault(request, []).append((block, self._stamp[block]))
        return super()._entry(block)


def make_evictor(name: str, cache: PublishedBlocks) -> Evictor:
    """Raises UnknownName with the nearest valid name."""
    policy, _ = EVICTION.get(name)
    if name == "lru":
        return LRUEvictor(cache)
    evictor = ForesightEvictor if name == "belady" else KeyedEvictor
    return evictor(cache, policy.rule)
