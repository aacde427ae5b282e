"""A random life of an engine with sliding windows, over a KV memory that knows what each KV group must find in it."""

from __future__ import annotations

import zlib
from random import Random
from typing import Any

import msgspec
from engine_helpers import KVExecutor
from engine_scenario import COLLIDING, Scenario, read_as

from kvtop.engine.allocators.windowed import WindowedAllocator
from kvtop.engine.api import Chunk, Engine, EngineConfig, Recorder, RequestSpec
from kvtop.engine.published import default_key, stable_int
from kvtop.engine.windows import Windows, span_blocks

GROUPS: list[Windows] = [(8,), (5,), (2,), (None, 8), (None, 5), (3, None), (None, 4, 9), (6, 6), (None, None)]


class GroupKVExecutor(KVExecutor):
    """Each slot holds what K and V depend on: the group, the position and all tokens up to it.

    Every query of every chunk reads exactly the keys inside its group's window, through that group's table.
    """

    def __init__(self, num_blocks: int, block_size: int, windows: Windows, on_execute: Any = None) -> None:
        super().__init__(num_blocks, block_size, on_execute)
        self.windows = windows

    def _slot_of(self, table: list[int], position: int) -> int:
        block = table[position // self.block_size]
        assert block >= 0, f"position {position} is written or read, its block was dropped: {table}"
        return block * self.block_size + position % self.block_size

    def _content(self, group: int, tokens: list[int], position: int) -> Any:
        return (group, position, zlib.crc32(repr(tokens[: position + 1]).encode()))

    def _write(self, chunk: Chunk) -> None:
        assert chunk.count >= 1
        tokens, tables = chunk.sequence.tokens, chunk.sequence.block_tables
        assert len(tables) == len(self.windows)
        for group, table in enumerate(tables):
            for position in range(chunk.start, chunk.start + chunk.count):
                self.slots[self._slot_of(table, position)] = self._content(group, tokens, position)

    def _read(self, chunk: Chunk) -> list[int]:
        tokens, end = chunk.sequence.tokens, chunk.start + chunk.count
        for group, (window, table) in enumerate(zip(self.windows, chunk.sequence.block_tables, strict=True)):
            first = 0 if window is None else max(0, chunk.start - window + 1)
            for position in range(first, end):
                found = self.slots[self._slot_of(table, position)]
                assert found == self._content(group, tokens, position), (
                    f"{chunk.request_id} reads {found} at position {position} of group {group}"
                )
        return tokens[:end]


def longest_hit(published: set[tuple[int, int]], windows: Windows, keys: list[int], size: int, known: int) -> int:
    """Blocks of the longest hit, by the definition: every key that the query behind it reads is published.

    ``published`` holds (group, block key); ``keys`` are those of the known tokens' whole blocks.
    """
    for blocks in range((known - 1) // size, 0, -1):
        end = blocks * size
        needed = [{p // size for p in range(0 if w is None else max(0, end - w + 1), end)} for w in windows]
        if all((group, keys[i]) in published for group, indices in enumerate(needed) for i in indices):
            return blocks
    return 0


def prompt_keys(spec: RequestSpec, size: int) -> list[int]:
    """Keys of the whole blocks of a prompt."""
    extra = tuple(sorted((spec.extra_key or {}).items()))
    keys, key = [], stable_int(extra) if extra else 0
    for end in range(size, len(spec.prompt) + 1, size):
        key = default_key(key, tuple(spec.prompt[end - size : end]), None)
        keys.append(key)
    return keys


class Published:
    """What the cache holds, by the decision log alone: (group, block key) -> block."""

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        self.blocks: dict[tuple[int, int], int] = {}
        self.of_block: dict[int, tuple[int, int]] = {}
        self.evicted: dict[str, set[tuple[int, int]]] = {}  # in this step, for the sequence that is being admitted
        self.num_hits = self.num_gaps = 0  # hits, and those whose first block is gone: only what windows see is there

    def step(self, decisions: list[Any], specs: dict[str, RequestSpec]) -> None:
        self.evicted = {}
        for kind, *fields in decisions:
            if kind == "publish":
                _, group, block, key, _ = fields
                self.blocks[group, key] = block
                self.of_block[block] = (group, key)
            elif kind in ("evict", "unpublish"):
                group, block, key = fields[1:4] if kind == "evict" else fields[:3]
                assert self.of_block.pop(block) == (group, key)
                del self.blocks[group, key]
                if kind == "evict":
                    self.evicted.setdefault(fields[0], set()).add((group, key))
            elif kind == "lookup":
                self._lookup(specs[fields[0].partition("#")[0]], fields[0], fields[1], fields[2])

    def _lookup(self, spec: RequestSpec, seq_id: str, cached: int, reason: str) -> None:
        """A lookup found exactly what the definition says. What was evicted for it was there when it looked."""
        published = set(self.blocks) | self.evicted.get(seq_id, set())
        size, windows, known = self.config.block_size, self.config.kv_groups, len(spec.prompt)
        keys = prompt_keys(spec, size)
        if spec.params.prompt_logprobs and self.config.caching and known > 1:
            assert (cached, reason) == (0, "prompt_logprobs")
            return
        longest = longest_hit(published, windows, keys, size, known) if self.config.caching else 0
        assert cached == longest * size, f"{seq_id} found {cached} tokens, {longest} blocks of {size} are there"
        assert (reason == "last_token") == (self.config.caching and longest == (known - 1) // size)
        self.num_hits += longest > 0
        self.num_gaps += longest > 0 and any((group, keys[0]) not in published for group in range(len(windows)))


class WindowedScenario(Scenario):
    """As ``Scenario``, with KV groups. Windows only: the length is bounded by max_model_len alone."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        rng = Random(seed)
        windows = rng.choice(GROUPS)
        values: dict[str, Any] = {"kv_groups": windows, "allocator": "paged", "prefix_caching": rng.random() < 0.8}
        values["host_cache_blocks"] = 0
        values["num_blocks"] = max(len(windows), self.config.num_blocks + rng.randint(0, 8))
        if None not in windows:
            values["max_model_len"] = self.config.max_model_len or rng.randint(2, 80)
        if not self.config.chunked_prefill:
            values["max_batched_tokens"] = values["num_blocks"] * self.config.block_size + 20
        self.config = config = msgspec.structs.replace(self.config, **values)
        self.executor = GroupKVExecutor(config.num_blocks, config.block_size, windows, self.in_flight)
        self.executor.late = config.deferred_copy_steps
        self.executor.tokenizer, self.executor.decode = "pieces", read_as  # type: ignore[attr-defined]
        key_fn = rng.choice([None, None, None, *COLLIDING])
        self.engine = Engine(config, self.executor, recorder=self.recorder, key_fn=key_fn)
        self.by_key = Published(config)
        self.follows_keys = key_fn is None
        self.specs: dict[str, RequestSpec] = {}
        self.num_read = 0

    def submit(self) -> None:
        super().submit()
        self.specs |= {rid: request.spec for rid, request in self.engine._requests.items()}

    def read_events(self) -> None:
        super().read_events()
        for event in self.steps[self.num_read :] if self.follows_keys else ():
            self.by_key.step(event.decisions, self.specs)
        self.num_read = len(self.steps)

    def at_the_end(self) -> None:
        super().at_the_end()
        allocator = self.engine.allocator
        assert isinstance(allocator, WindowedAllocator)
        cache = allocator.cache
        assert not self.follows_keys or {b: cache.key[b] for b in self.by_key.of_block} == {
            b: k for b, (_, k) in self.by_key.of_block.items()
        }
        assert not cache._standing, "somebody who ended stands on a chain still"

    def after_step(self, out: Any) -> None:
        super().after_step(out)
        config = self.config
        if self.troubled:  # a step that failed may have made room for more than the one after it computes
            return
        for seq in self.engine.scheduler.running:
            for window, table, dropped in zip(config.kv_groups, seq.block_tables, seq.num_dropped, strict=True):
                if window is not None and seq.num_computed:
                    # After a step only what the next query looks back on is held, never a block more.
                    kept = -(-seq.num_computed // config.block_size) - dropped
                    assert len(table) - dropped == kept <= span_blocks(window, config.block_size)


def windowed_engine(num_blocks: int, block_size: int, windows: Windows, **config: Any) -> Engine:
    """An engine with a recorder over a ``GroupKVExecutor``; budget and seats are no limit unless given."""
    values: dict[str, Any] = {"max_num_seqs": 64, "max_batched_tokens": 4096, **config}
    options = EngineConfig(num_blocks=num_blocks, block_size=block_size, kv_groups=windows, **values)
    return Engine(options, GroupKVExecutor(num_blocks, block_size, windows), recorder=Recorder())
