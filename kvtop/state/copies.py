"""Copies of a run's state for the ring, at a cost that follows what has changed rather than the size of the pool.

Nearly all of a large pool is columns of numbers, which copy as bytes. The keys are the exception: lists of Python
objects, whose copy in bytes is kept up to date from ``PoolState.rekeyed``. Who owns what is not copied at all, since it
is also in the tables.
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


class Copier:
    """Copies one run's state again and again: ``freeze``. Only one of these may follow a state."""

    def __init__(self) -> None:
        self._pool: PoolState | None = None
        self._key = self._parent_key = _Keys(0)

    def freeze(self, state: RunState) -> bytes:
        """A copy of ``state`` that later events do not change; without the logs, which are kept once."""
        bare, keys = state.pool, None
        if state.pool is not None:
            self._follow(state.pool)
            keys = self._key.packed(), self._parent_key.packed()
            bare = replace(state.pool, dirty=set(), rekeyed=set(), owners=[], key=[], parent_key=[])
        copied = replace(state, pool=bare, logs=RequestLogs(), cache=CacheLog())
        return pickle.dumps((copied, keys), protocol=5)

    def _follow(self, pool: PoolState) -> None:
        if pool is not self._pool:
            self._pool = pool
            self._key, self._parent_key = _Keys(pool.num_blocks), _Keys(pool.num_blocks)
            pool.rekeyed.update(range(pool.num_blocks))
        for block in pool.rekeyed:
            self._key.set(block, pool.key[block])
            self._parent_key.set(block, pool.parent_key[block])
        pool.rekeyed.clear()


def thaw(frozen: bytes) -> RunState:
    """The state that ``freeze`` copied. Its logs are empty."""
    with _no_search_for_garbage():
        state, keys = pickle.loads(frozen)  # made by this process, in a file that nobody else can name
        pool: PoolState | None = state.pool
        if pool is not None:
            pool.key, pool.parent_key = (_unpacked(*packed) for packed in keys)
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
