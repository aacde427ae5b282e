"""What the tests of the host tier share: ways to look into it."""

from __future__ import annotations

from array import array
from typing import Any

from engine_helpers import kv_engine, serve

from kvtop.engine.api import Engine

A, B = [*range(1, 9)], [*range(11, 19)]
LONG = [*range(1, 10)]  # two whole blocks of 4, and a token that is always computed


def tier_state(engine: Engine) -> tuple[Any, ...]:
    """Everything of the tier that a failed operation must leave alone, order included."""
    tier = engine.allocator.tier  # type: ignore[attr-defined]
    return (
        [(host, id(node), node.uses, node.last_use_step) for host, node in tier._known.items()],
        dict(tier._outs),
        list(tier._loads),
        tier.pool.used(),
    )


def kept(engine: Engine) -> list[tuple[int, ...]]:
    """What the tier holds, least recently used first: the tokens of each chain."""
    chains = []
    for node in engine.allocator.tier._known.values():  # type: ignore[attr-defined]
        tokens: tuple[int, ...] = ()
        while node is not None:
            tokens, node = (*array("Q", node.tokens), *tokens), node.parent
        chains.append(tokens)
    return chains


def tier_engine(num_blocks: int, host_cache_blocks: int, **config: Any) -> Engine:
    return kv_engine(num_blocks, 4, host_cache_blocks=host_cache_blocks, **config)


def forget_head(engine: Engine) -> None:
    """Of the chain that was stored first, as if the tier had needed the room."""
    tier = engine.allocator.tier  # type: ignore[attr-defined]
    head = next(host for host, node in tier._known.items() if node.parent is None)
    tier._forget(head)
    tier.pool.give([head])
    engine.check()


def found(engine: Engine, prompt: list[int], **kw: Any) -> tuple[int, int]:
    """(tokens from the device, tokens from the host) that serving ``prompt`` now takes."""
    view = serve(engine, prompt, **kw)
    assert view.cached_tokens + view.computed_tokens == len(prompt)
    return view.cached_tokens - view.host_hit_tokens, view.host_hit_tokens


def evict_all(engine: Engine) -> None:
    """Between two steps, children first."""
    pool, cache = engine.allocator.pool, engine.allocator.cache  # type: ignore[attr-defined]
    while pool.num_idle:
        engine.evict(next(b for b in range(pool.num_blocks) if b in pool.evictor and not cache.num_children[b]))
        engine.check()
