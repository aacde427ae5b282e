"""Copies of a run's state for the ring, at a cost that follows what has changed rather than the size of the pool.

Nearly all of a large pool is columns of numbers, which copy as bytes. What has been published is the exception: keys
and names are lists of Python objects, whose copies in bytes are kept up to date from ``PoolState.rekeyed``. Who owns
what is not copied at all, since it is also in the tables.
"""

from __future__ import annotations

import gc
import pickle
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from kvtop.state.cache_log import CacheLog
from kvtop.state.model import PoolState, RunState
from kvtop.state.request_logs import RequestLogs

_MOST_NAMES = 10_000  # beside one a block; then those that no block has any more are forgotten


class _Keys:
    """A column of keys as bytes. ``known`` is 0 where there is no key; ``large`` holds those of more than 64 bits."""

    def __init__(self, num_blocks: int) -> None:
        self.values = array("q", bytes(8 * num_blocks))
        self.known = bytearray(num_blocks)
        self.large: dict[int, int] = {}

    def set(self, block: int, key: int | None) -> None:
        self.large.pop(block, None)
        self.known[block] = key is not None
        if key is not None:
            try:
                self.values[block] = key
            except OverflowError:
                self.large[block] = key

    def packed(self) -> tuple[bytes, bytes, dict[int, int]]:
        return self.values.tobytes(), bytes(self.known), self.large


def _unpacked(values: bytes, known: bytes, large: dict[int, int]) -> list[int | None]:
    keys = array("q")
    keys.frombytes(values)
    found = [key if is_known else None for key, is_known in zip(keys, known, strict=True)]
    for block, key in large.items():
        found[block] = key
    return found


class _Names:
    """A column of names as numbers of names: of a hundred thousand blocks, few are published by different sequences."""

    def __init__(self, num_blocks: int) -> None:
        self.numbers = array("q", bytes(8 * num_blocks))
        self.known = {"": 0}

    def set(self, block: int, name: str) -> None:
        self.numbers[block] = self.known.setdefault(name, len(self.known))

    def packed(self) -> tuple[bytes, list[str]]:
        return self.numbers.tobytes(), list(self.known)


def _named(numbers: bytes, known: list[str]) -> list[str]:
    found = array("q")
    found.frombytes(numbers)
    return [known[number] for number in found]


class Copier:
    """Copies one run's state again and again: ``freeze``. Only one of these may follow a state."""

    def __init__(self) -> None:
        self._pool: PoolState | None = None
        self._begin(0)

    def _begin(self, num_blocks: int) -> None:
        self._keys = _Keys(num_blocks), _Keys(num_blocks)
        self._names = _Names(num_blocks), _Names(num_blocks)

    def freeze(self, state: RunState) -> bytes:
        """A copy of ``state`` that later events do not change; without the logs, which are kept once."""
        bare = state.pool
        if state.pool is not None:
            self._follow(state.pool)
            lists = {name: [] for name in ("owners", "key", "parent_key", "publisher", "tenant")}
            bare = replace(state.pool, dirty=set(), rekeyed=set(), **lists)
        copied = replace(state, pool=bare, logs=RequestLogs(), cache=CacheLog())
        columns = [keys.packed() for keys in self._keys], [names.packed() for names in self._names]
        return pickle.dumps((copied, *columns), protocol=5)

    def _follow(self, pool: PoolState) -> None:
        """Bring the copies of the columns up to date."""
        if pool is not self._pool or len(self._names[0].known) > _MOST_NAMES + pool.num_blocks:
            self._pool = pool
            self._begin(pool.num_blocks)
            pool.rekeyed.update(range(pool.num_blocks))
        (key, parent_key), (publisher, tenant) = self._keys, self._names
        for block in pool.rekeyed:
            key.set(block, pool.key[block])
            parent_key.set(block, pool.parent_key[block])
            publisher.set(block, pool.publisher[block])
            tenant.set(block, pool.tenant[block])
        pool.rekeyed.clear()


def thaw(frozen: bytes) -> RunState:
    """The state that ``freeze`` copied. Its logs are empty."""
    with _no_search_for_garbage():
        state, keys, names = pickle.loads(frozen)  # made by this process, in a file that nobody else can name
        pool: PoolState | None = state.pool
        if pool is not None:
            pool.key, pool.parent_key = (_unpacked(*packed) for packed in keys)
            pool.publisher, pool.tenant = (_named(*packed) for packed in names)
            owners = pool.owners = [[] for _ in range(pool.num_blocks)]
            for seq in state.sequences.values():
                for block in seq.held:
                    owners[block].append(seq.seq_id)
    return state


@contextmanager
def _no_search_for_garbage() -> Iterator[None]:
    """A hundred thousand new objects that all stay: looking through them again and again takes longer than making."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
