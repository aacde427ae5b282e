"""Eviction policies as key functions: of the idle blocks without published children, the smallest key goes first.

``lru`` is not here: releasing in order keeps a plain list sorted, in O(1) (``kvtop.engine.evictors``).
"""

from __future__ import annotations

from kvtop.engine.policies.registry import EVICTION
from kvtop.engine.published import PublishedBlocks


@EVICTION.add("lru", "least recently used first, deeper blocks of a chain before shallower ones")
def lru(block: int, cache: PublishedBlocks) -> tuple[int, ...]:
    return (cache.last_use_step[block],)


@EVICTION.add("lfu", "fewest hits first, then least recently used")
def lfu(block: int, cache: PublishedBlocks) -> tuple[int, ...]:
    return (cache.uses[block], cache.last_use_step[block])


@EVICTION.add("fifo", "published first, evicted first, however often it was hit")
def fifo(block: int, cache: PublishedBlocks) -> tuple[int, ...]:
    return (cache.published_step[block],)


@EVICTION.add("2q", "blocks never hit since they were published first (the probation queue), then least recently used")
def two_queues(block: int, cache: PublishedBlocks) -> tuple[int, ...]:
    return (min(cache.uses[block], 1), cache.last_use_step[block])


@EVICTION.add("belady", "wanted again furthest in the future: a bound under fcfs for recorded workloads, not to deploy")
def belady(block: int, cache: PublishedBlocks) -> tuple[int, ...]:
    key = cache.key[block]
    assert key is not None, "only published blocks are idle"
    assert cache.future is not None, "the engine refuses belady without a recorded future"
    return (-cache.future.next_use(key),)
