"""Allocators by name. A new one is one file and one line here (and its name in ``config.ALLOCATORS``)."""

from __future__ import annotations

from kvtop.engine.allocators.base import Allocator
from kvtop.engine.allocators.contiguous import (
    ContiguousAllocator,
    ContiguousMaxAllocator,
    ContiguousOracleAllocator,
    ContiguousPow2Allocator,
)
from kvtop.engine.allocators.paged import PagedAllocator
from kvtop.engine.allocators.windowed import WindowedAllocator
from kvtop.engine.config import EngineConfig
from kvtop.engine.prefix_cache import KeyFn
from kvtop.engine.recorder import AnyRecorder

CONTIGUOUS: dict[str, type[ContiguousAllocator]] = {
    "contiguous-max": ContiguousMaxAllocator,
    "contiguous-pow2": ContiguousPow2Allocator,
    "contiguous-oracle": ContiguousOracleAllocator,
}


def make_allocator(config: EngineConfig, recorder: AnyRecorder, key_fn: KeyFn | None = None) -> Allocator:
    """The allocator ``config.allocator`` names (checked by EngineConfig)."""
    if config.allocator == "paged":
        paged = PagedAllocator if config.kv_groups == (None,) else WindowedAllocator
        return paged(config, recorder, key_fn)
    return CONTIGUOUS[config.allocator](config, recorder)
