"""Eviction orders over idle blocks. A new one is a class here and a line in ``EVICTORS``."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Protocol

from kvtop.engine.block_list import BlockList
from kvtop.engine.block_pool import Evictor
from kvtop.engine.errors import UnknownName


class Children(Protocol):
    """What an evictor asks the prefix cache: a parent may go only after its children."""

    def num_children(self, block: int) -> int: ...
    def parent(self, block: int) -> int | None: ...


class LRUEvictor:
    """Least recently used first; of one request, deeper blocks first (a request releases its table tail first).

    A chain's parent is released no earlier than its child, so it stands behind it in the list and ``peek`` takes the
    head without looking further; only pins can put a child behind its parent, and then the walk is repeated.
    """

    def __init__(self, num_blocks: int, children: Children) -> None:
        self._list = BlockList(num_blocks)
        self._children = children

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

    def peek(self, k: int, exclude: Collection[int]) -> list[int]:
        chosen: list[int] = []
        taken: set[int] = set()
        gone: dict[int, int] = {}  # parent -> children chosen so far
        while k > len(chosen):
            before, skipped = len(chosen), False
            for block in self._list:
                if block in exclude or block in taken:
                    continue
                if self._children.num_children(block) > gone.get(block, 0):
                    skipped = True
                    continue
                chosen.append(block)
                taken.add(block)
                parent = self._children.parent(block)
                if parent is not None:
                    gone[parent] = gone.get(parent, 0) + 1
                if len(chosen) == k:
                    return chosen
            if not skipped or len(chosen) == before:
                break
        return chosen


EVICTORS: dict[str, tuple[Callable[[int, Children], Evictor], str]] = {
    "lru": (LRUEvictor, "least recently used first, deeper blocks of a chain before shallower ones"),
}
"""Name -> (class, one line of meaning)."""


def make_evictor(name: str, num_blocks: int, children: Children) -> Evictor:
    """Raises UnknownName with the nearest valid name."""
    if name not in EVICTORS:
        raise UnknownName("eviction policy", name, EVICTORS)
    return EVICTORS[name][0](num_blocks, children)
