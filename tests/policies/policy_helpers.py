"""What the tests of policies share: small engines, prompts, and the oracle of eviction."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from random import Random
from typing import Any

from kvtop.engine.api import Engine, EngineConfig, NullExecutor, Recorder, RequestSpec, SamplingParams
from kvtop.engine.policies.future import FutureUses
from kvtop.engine.policies.registry import EVICTION
from kvtop.engine.published import PublishedBlocks

STEP_NS = 10_000_000


def make_engine(num_blocks: int = 8, block_size: int = 4, **config: Any) -> Engine:
    """An engine without a model; budget and seats are no limit unless given. ``future`` as for Engine."""
    future = config.pop("future", None)
    values: dict[str, Any] = {"max_num_seqs": 64, "max_batched_tokens": 4096, **config}
    return Engine(
        EngineConfig(num_blocks=num_blocks, block_size=block_size, **values),
        NullExecutor(STEP_NS),
        recorder=Recorder(),
        future=future,
    )


def submit(engine: Engine, prompt: list[int], m: int = 1, rid: str | None = None, **fields: Any) -> str:
    return engine.submit_spec(RequestSpec(prompt, SamplingParams(max_tokens=m), rid, **fields))


def distinct(length: int, salt: int) -> list[int]:
    """A prompt that shares no block with one of another ``salt``."""
    return [10_000 * (salt + 1) + i for i in range(length)]


def serve(engine: Engine, prompt: list[int], m: int = 1, rid: str | None = None, **fields: Any) -> Any:
    """Submit, run until idle, and return the view of the finished request."""
    rid = submit(engine, prompt, m, rid, **fields)
    engine.run()
    return engine.request(rid)


def step_until(engine: Engine, wanted: Callable[[], bool], limit: int = 2000) -> int:
    """Steps made until ``wanted``."""
    for steps in range(limit):
        if wanted():
            return steps
        engine.step()
    raise AssertionError(f"not within {limit} steps")


def tree_prompts(rng: Random, count: int, block_size: int, *, inside: bool) -> list[list[int]]:
    """Prompts that share prefixes: walks down a small random tree. ``inside``: each ends inside a block."""
    prompts = []
    for _ in range(count):
        depth = rng.randint(1, 4)
        branches = [rng.randint(0, 2 if level < 2 else 1) for level in range(depth)]
        tokens = [100 * (level + 1) + 10 * b + i for level, b in enumerate(branches) for i in range(block_size)]
        extra = rng.randint(1, block_size - 1) if inside else rng.randint(0, block_size - 1)
        prompts.append(tokens + [900 + i for i in range(extra)])
    return prompts


def future_of(prompts: Iterable[list[int]], block_size: int, m: int = 1) -> FutureUses:
    return FutureUses([RequestSpec(prompt, SamplingParams(max_tokens=m)) for prompt in prompts], block_size)


def eviction_order(name: str, idle: list[int], exclude: set[int], k: int, cache: PublishedBlocks) -> list[int]:
    """The oracle: of the idle blocks whose published children are gone, the smallest, again and again.

    ``idle`` in order of release, which is what lru goes by.
    """
    rule = EVICTION.get(name)[0].rule
    released = {block: place for place, block in enumerate(idle)}

    def key(block: int) -> tuple[Any, ...]:
        return (released[block],) if name == "lru" else (rule(block, cache), -cache.depth[block], block)

    taken: list[int] = []
    while len(taken) < k:
        gone = {b: sum(cache.parent[child] == b for child in taken) for b in idle}
        leaves = [b for b in idle if b not in exclude and b not in taken and cache.num_children[b] == gone[b]]
        if not leaves:
            break
        taken.append(min(leaves, key=key))
    return taken
