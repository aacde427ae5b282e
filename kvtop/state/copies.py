"""Copies of a run's state for the ring, at a cost that follows what has changed rather than the size of the pool.

Nearly all of a large pool is columns of numbers, which go into the compressor as they are: ten megabytes of copies cost
more than compressing them. What has been published is the exception: keys and names are lists of Python objects, whose
copies in bytes are kept up to date from ``PoolState.rekeyed``. Who owns what is not copied at all, since it is also in
the tables.
"""

from __future__ import annotations

import gc
import pickle
from array import array
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from operator import attrgetter

import zstandard

from kvtop.engine.events import RequestEvent, decode_many, encode
from kvtop.state.cache_log import CacheLog
from kvtop.state.model import PoolState, RunState, SequenceState
from kvtop.state.request_logs import RequestLogs

_LEVEL = -5  # a third of level 1's time, and for these columns no more bytes
_NUMBERS = tuple(
    field.name for field in fields(PoolState) if field.type == "bytearray" or str(field.type).startswith("array")
)
"""Columns of the pool that are numbers, ``counts`` aside."""
_OBJECTS = "owners", "key", "parent_key", "publisher", "tenant"
_ROW = tuple(field.name for field in fields(SequenceState) if field.name != "run")
_row = attrgetter(*_ROW)
_MOST_NAMES = 10_000  # beside one a block; then those that no block has any more are forgotten


class _Keys:
    """A column of keys as bytes. ``known`` is 0 where there is no key; ``large`` holds those of more than 64 bits."""

    def __init__(self, num_blocks: int) -> None:
        self.values = array("q", bytes(8 * num_blocks))
        self.known = bytearray(num_blocks)
        self.large: dict[int, int] = {}

    def follow(self, keys: list[int | None], changed: Iterable[int]) -> None:
        values, known, large = self.values, self.known, self.large
        if large:
            for block in changed:
                large.pop(block, None)
        for block in changed:
            key = keys[block]
            if key is None:
                known[block] = 0
                continue
            known[block] = 1
            try:
                values[block] = key
            except OverflowError:
                large[block] = key


def _key_list(values: bytes, known: bytes, large: dict[int, int]) -> list[int | None]:
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

    def follow(self, names: list[str], changed: Iterable[int]) -> None:
        numbers, known = self.numbers, self.known
        for block in changed:
            name = names[block]
            number = known.get(name)
            if number is None:
                number = known[name] = len(known)
            numbers[block] = number


def _name_list(numbers: bytes, known: list[str]) -> list[str]:
    found = array("q")
    found.frombytes(numbers)
    return [known[number] for number in found]


class Copier:
    """Copies one run's state again and again: ``freeze``. Only one of these may follow a state."""

    def __init__(self) -> None:
        self._pool: PoolState | None = None
        self._compressor = zstandard.ZstdCompressor(level=_LEVEL)
        self._begin(0)

    def _begin(self, num_blocks: int) -> None:
        self._keys = _Keys(num_blocks), _Keys(num_blocks)
        self._names = _Names(num_blocks), _Names(num_blocks)

    def freeze(self, state: RunState) -> bytes:
        """A compressed copy of ``state`` that later events do not change; without the logs, which are kept once."""
        pool, columns = state.pool, []
        if pool is not None:
            self._follow(pool)
            columns = [getattr(pool, name) for name in _NUMBERS]
            columns += [column for keys in self._keys for column in (keys.values, keys.known)]
            columns += [names.numbers for names in self._names]
            empty = {name: type(getattr(pool, name))() for name in _OBJECTS}
            empty |= {name: getattr(pool, name)[:0] for name in _NUMBERS}
            pool = replace(pool, dirty=set(), rekeyed=set(), **empty)
        bare = replace(
            state, pool=pool, logs=RequestLogs(), cache=CacheLog(), sequences={}, arrivals={}, finished=deque(),
            last_runs=[],
        )  # fmt: skip
        rest = (
            bare,
            [_row(seq) for seq in state.sequences.values()],
            encode(list(state.arrivals.values())),
            encode(list(state.finished)),
            [keys.large for keys in self._keys],
            [list(names.known) for names in self._names],
        )
        compress = self._compressor.compress
        return pickle.dumps([compress(pickle.dumps(rest, protocol=5)), *map(compress, columns)], protocol=5)

    def _follow(self, pool: PoolState) -> None:
        """Bring the copies of the columns up to date."""
        if pool is not self._pool or len(self._names[0].known) > _MOST_NAMES + pool.num_blocks:
            self._pool = pool
            self._begin(pool.num_blocks)
            pool.rekeyed.update(range(pool.num_blocks))
        changed = list(pool.rekeyed)
        for keys, column in zip(self._keys, (pool.key, pool.parent_key), strict=True):
            keys.follow(column, changed)
        for names, column in zip(self._names, (pool.publisher, pool.tenant), strict=True):
            names.follow(column, changed)
        pool.rekeyed.clear()


def thaw(frozen: bytes) -> RunState:
    """The state that ``freeze`` copied. Its logs are empty."""
    with _no_search_for_garbage():
        decompress = zstandard.ZstdDecompressor().decompress
        # Made by this process, in a file that nobody else can name.
        rest, *columns = map(decompress, pickle.loads(frozen))
        state, rows, arrivals, finished, large, known = pickle.loads(rest)
        state.sequences = {row[0]: SequenceState(**dict(zip(_ROW, row, strict=True))) for row in rows}
        state.arrivals = {event.request_id: event for event in _requests(arrivals)}
        state.finished = RunState().finished
        state.finished.extend(_requests(finished))
        if state.pool is not None:
            _thaw_pool(state, iter(columns), large, known)
    return state


def _requests(encoded: bytes) -> list[RequestEvent]:
    return [event for event in decode_many(encoded) if isinstance(event, RequestEvent)]


def _thaw_pool(state: RunState, columns: Iterator[bytes], large: list[dict[int, int]], known: list[list[str]]) -> None:
    pool = state.pool
    assert pool is not None
    for name in _NUMBERS:
        column = getattr(pool, name)
        if isinstance(column, array):
            column.frombytes(next(columns))
        else:
            column += next(columns)
    pool.key, pool.parent_key = (_key_list(next(columns), next(columns), some) for some in large)
    pool.publisher, pool.tenant = (_name_list(next(columns), names) for names in known)
    owners = pool.owners = [[] for _ in range(pool.num_blocks)]
    for seq in state.sequences.values():
        for block in seq.held:
            owners[block].append(seq.seq_id)


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
