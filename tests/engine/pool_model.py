"""A deliberately plain model of pool, prefix cache and KV memory: dictionaries and lists, no cleverness, no speed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

Prefix = tuple[Any, ...]  # (extra key, (block tokens, block key), (block tokens, block key), ...)


@dataclass(eq=False)
class ModelSequence:
    """What one sequence should be: its tokens, and how many of them are stored."""

    name: str
    extra: tuple[Any, ...]
    block_keys: dict[int, str]
    tokens: list[int]
    computed: int = 0
    table: list[int] = field(default_factory=list)
    promised: int = 0
    may_publish: bool = True  # False once a reset happened after its admission

    def prefix(self, num_blocks: int, size: int) -> Prefix:
        """The identity of its first ``num_blocks`` whole blocks."""
        blocks = ((tuple(self.tokens[i * size : (i + 1) * size]), self.block_keys.get(i)) for i in range(num_blocks))
        return (self.extra, *blocks)

    def content(self, position: int, size: int) -> tuple[Any, ...]:
        """What the slot of ``position`` must hold: K and V depend on every token up to it."""
        keys = tuple(sorted((i, k) for i, k in self.block_keys.items() if i <= position // size))
        return (self.extra, keys, tuple(self.tokens[: position + 1]))


class PoolModel:
    def __init__(self, num_blocks: int, block_size: int, deferred: int) -> None:
        self.num_blocks, self.size, self.deferred = num_blocks, block_size, deferred
        self.refs = dict.fromkeys(range(num_blocks), 0)
        self.pins = dict.fromkeys(range(num_blocks), 0)
        self.fresh = set(range(num_blocks))
        self.limit = num_blocks
        self.withheld: set[int] = set()
        self.idle: list[int] = []  # least recently used first
        self.transfer: list[tuple[int, int]] = []  # (block, step at which it is free)
        self.published: dict[Prefix, int] = {}
        self.memory: dict[int, tuple[int, Any]] = {}  # slot -> (weights epoch, content)
        self.epoch = 0
        self.step = 0

    # -- questions -------------------------------------------------------------------------------------------------

    def is_published(self, block: int) -> bool:
        return block in self.published.values()

    def prefix_of(self, block: int) -> Prefix:
        return next(prefix for prefix, b in self.published.items() if b == block)

    def hits(self, seq: ModelSequence) -> list[int]:
        """Published blocks of the longest chain from position 0, one known token left over."""
        found: list[int] = []
        for count in range(1, (len(seq.tokens) - 1) // self.size + 1):
            block = self.published.get(seq.prefix(count, self.size))
            if block is None:
                break
            found.append(block)
        return found

    def victims(self, k: int, exclude: set[int]) -> list[int]:
        """The next ``k`` evictions, one after the other: the oldest idle block that has no published child left."""
        left = dict(self.published)
        taken: list[int] = []
        for _ in range(k):
            parents = {prefix[:-1] for prefix in left}
            name = {block: prefix for prefix, block in left.items()}
            free = [b for b in self.idle if b not in exclude and b in name and name[b] not in parents]
            if not free:
                break
            taken.append(free[0])
            del left[name[free[0]]]
        return taken

    def blocks_for(self, tokens: int) -> int:
        return (tokens + self.size - 1) // self.size

    # -- changes ---------------------------------------------------------------------------------------------------

    def acquire(self, block: int) -> None:
        if self.refs[block] == 0:
            self.fresh.discard(block)
            self.idle = [b for b in self.idle if b != block]
            self.transfer = [entry for entry in self.transfer if entry[0] != block]
        self.refs[block] += 1

    def drop(self, block: int) -> None:
        self.refs[block] -= 1
        if self.refs[block] == 0:
            if self.deferred:
                self.transfer.append((block, self.step + self.deferred))
            else:
                self._settle(block)

    def advance(self, step: int) -> None:
        self.step = step
        due = [entry for entry in self.transfer if entry[1] <= step]
        self.transfer = [entry for entry in self.transfer if entry[1] > step]
        for block, _ in due:
            self._settle(block)

    def evict(self, block: int) -> None:
        del self.published[self.prefix_of(block)]
        self.idle.remove(block)
        self.fresh.add(block)

    def reset(self) -> bool:
        """True if every published block could be given up at once."""
        in_use = any(self.refs[block] for block in self.published.values())
        self.published.clear()
        self.fresh |= set(self.idle)
        self.idle.clear()
        self.epoch += 1
        return not in_use

    def _settle(self, block: int) -> None:
        if self.is_published(block):
            self.idle.append(block)
        else:
            self.fresh.add(block)
