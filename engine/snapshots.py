"""The engine's state as copies: counters, one request, one block. ``views.py`` makes them."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

import msgspec

from kvtop.engine.reasons import BlockState, FinishReason, MissReason, RequestState, WaitReason


@dataclass(frozen=True, slots=True)
class KVCounters:
    """Monotone totals, and the pool's state now. used + idle + fresh + in_transfer + withheld = N, always."""

    used: int
    idle: int
    fresh: int
    in_transfer: int
    query_tokens: int  # prompt tokens looked up, once a request
    hit_tokens: int  # of those, cached on the device at first admission
    restored_tokens: int  # taken from the cache after a preemption
    recomputed_tokens: int  # computed again after a preemption
    computed_tokens: int  # positions computed for the first time
    preemptions: int
    evictions: int
    copies: int
    host_used: int = 0  # host blocks that hold swapped-out sequences
    host_cached: int = 0  # host blocks that hold evicted prefixes
    host_hit_tokens: int = 0  # of the query tokens, found there at first admission
    withheld: int = 0  # out of circulation: the pool's limit is below its size


class RequestTimes(msgspec.Struct, frozen=True):
    """Section 7 of the design; None where it has not happened."""

    t_sched_ns: int
    t_submit_ns: int
    t_first_sched_ns: int | None = None
    t_first_token_ns: int | None = None
    t_last_token_ns: int | None = None
    t_done_ns: int | None = None


class RequestView(msgspec.Struct, frozen=True):
    """A copy of one sequence's state; changing it changes nothing."""

    request_id: str
    state: RequestState
    tokens: Seq[int]
    num_prompt: int
    block_table: tuple[int, ...]
    num_computed: int
    cached_tokens: int
    computed_tokens: int
    restored_tokens: int
    recomputed_tokens: int
    preemptions: int
    times: RequestTimes
    finish_reason: FinishReason | None
    wait_reason: WaitReason | None
    wait_blocker: str | None
    miss_reason: MissReason | None
    block_tables: tuple[tuple[int, ...], ...] = ()  # one a KV group; ``block_table`` is the first
    text: str | None = None  # of the output so far, cut before a stop string; None without stop strings
    host_hit_tokens: int = 0  # of ``cached_tokens``, from the host tier
    prompt_logprobs: tuple[float, ...] | None = None  # of prompt tokens 1, 2, ... as far as computed; None: not asked

    @property
    def prompt(self) -> tuple[int, ...]:
        return tuple(self.tokens[: self.num_prompt])

    @property
    def output(self) -> tuple[int, ...]:
        return tuple(self.tokens[self.num_prompt :])


@dataclass(frozen=True, slots=True)
class BlockView:
    """A copy of one block's state."""

    block: int
    state: BlockState
    refcount: int
    owners: tuple[str, ...]  # sequence ids whose table holds it, once a table entry
    pins: int
    tokens_filled: int
    published_key: int | None
    last_use_step: int
    uses: int
