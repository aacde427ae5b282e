"""The engine's configuration: frozen, validated once, passed down. Loads no torch."""

from __future__ import annotations

from typing import Any

import msgspec

from kvtop.engine.checks import check_flag, check_ids, check_integer
from kvtop.engine.errors import ConfigError, UnknownName
from kvtop.engine.windows import longest_that_fits

ALLOCATORS = ("paged", "contiguous-max", "contiguous-pow2", "contiguous-oracle")

PREEMPTION_MODES = ("recompute", "swap")

KV_DTYPES = ("auto", "int8", "fp8")

NAMES = ("policy", "batch_policy", "victim", "eviction", "allocator", "preemption", "kv_dtype")


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes and policies of one engine. Counts are blocks, tokens or sequences as the names say.

    Raises:
        ConfigError: values that cannot work together, with the numbers.
        UnknownName: an allocator or mode that does not exist (policies are checked by their registries).
    """

    num_blocks: int
    block_size: int = 16
    max_num_seqs: int = 64  # seats: sequences that may run at once
    max_batched_tokens: int = 512  # one token budget per step
    max_model_len: int | None = None  # prompt + output; None: what the pool can hold
    policy: str = "fcfs"
    policy_params: dict[str, Any] = {}
    batch_policy: str = "decode-first"
    victim: str = "last-arrived"
    eviction: str = "lru"
    allocator: str = "paged"
    preemption: str = "recompute"
    host_blocks: int = 0  # blocks in host memory, for preemption by swap
    host_cache_blocks: int = 0  # further ones, for prefixes evicted from the cache; 0: they are lost
    prefix_caching: bool | None = None  # None: on with paged, off with contiguous allocators
    chunked_prefill: bool = True
    reserve_blocks: int = 0  # kept free at admission while something runs
    max_queue: int | None = None
    deferred_free_steps: int = 0  # freed blocks become reusable this many steps later
    deferred_copy_steps: int = 0  # a copy may be done this late, but before its use: its blocks are kept until then
    kv_groups: tuple[int | None, ...] = (None,)  # sliding window (tokens) of each KV group; None keeps every token
    kv_dtype: str = "auto"  # how K and V are stored; auto: in the precision the model computes in
    eos_token_ids: tuple[int, ...] = ()
    keep_finished: int = 1024  # finished requests whose views stay readable
    ghost_entries: int = 65_536  # evicted keys remembered, to explain a later miss

    def __post_init__(self) -> None:
        for name, low in (
            ("num_blocks", 1),
            ("block_size", 1),
            ("max_num_seqs", 1),
            ("max_batched_tokens", 1),
            ("reserve_blocks", 0),
            ("host_blocks", 0),
            ("host_cache_blocks", 0),
            ("deferred_free_steps", 0),
            ("deferred_copy_steps", 0),
            ("keep_finished", 0),
            ("ghost_entries", 0),
        ):
            check_integer(ConfigError, name, getattr(self, name), low)
        self._check_types()
        if self.max_model_len is not None and self.max_model_len < 2:
            raise ConfigError(
                f"max_model_len is {self.max_model_len}, expected at least 2 (one prompt token, one output)"
            )
        if self.allocator not in ALLOCATORS:
            raise UnknownName("allocator", self.allocator, ALLOCATORS)
        if self.kv_dtype not in KV_DTYPES:
            raise UnknownName("KV dtype", self.kv_dtype, KV_DTYPES)
        if self.preemption not in PREEMPTION_MODES:
            raise UnknownName("preemption mode", self.preemption, PREEMPTION_MODES)
        if self.preemption == "swap" and not self.host_blocks:
            raise ConfigError("preemption by swap needs host_blocks >= 1, it is 0")
        if self.host_blocks and self.preemption != "swap":
            raise ConfigError(f"host_blocks is {self.host_blocks}, but preemption by {self.preemption} never uses them")
        self._check_groups()
        if self.allocator != "paged" and self.prefix_caching:
            raise ConfigError(f"prefix_caching needs the paged allocator; {self.allocator} shares nothing")
        self._check_host_tier()
        if not self.chunked_prefill and self.max_batched_tokens < self.effective_len - 1:
            raise ConfigError(
                f"without chunked prefill a step must hold a whole prompt: max_batched_tokens is "
                f"{self.max_batched_tokens}, prompts can have {self.effective_len - 1} tokens "
                f"(raise max_batched_tokens or lower max_model_len)"
            )

    def _check_types(self) -> None:
        """What a TOML table cannot get wrong (msgspec converts it), but a caller can."""
        check_integer(ConfigError, "max_queue", self.max_queue, 0, or_none=True)
        if self.max_model_len is not None and type(self.max_model_len) is not int:
            raise ConfigError(f"max_model_len is {self.max_model_len!r}, expected an integer >= 2 or None")
        for name in NAMES:
            if not isinstance(getattr(self, name), str):
                raise ConfigError(f"{name} is {getattr(self, name)!r}, expected a name")
        check_flag(ConfigError, "chunked_prefill", self.chunked_prefill)
        if self.prefix_caching is not None:
            check_flag(ConfigError, "prefix_caching", self.prefix_caching)
        if not isinstance(self.policy_params, dict):
            raise ConfigError(f"policy_params is {self.policy_params!r}, expected a dict of parameters")
        check_ids(ConfigError, "eos_token_ids", self.eos_token_ids)

    def _check_host_tier(self) -> None:
        if not self.host_cache_blocks:
            return
        what = f"host_cache_blocks is {self.host_cache_blocks}, but"
        if not self.caching:
            off = f"{self.allocator} shares nothing" if self.allocator != "paged" else "prefix_caching is off"
            raise ConfigError(f"{what} {off}: no prefix is ever evicted")
        if self.kv_groups != (None,):
            raise ConfigError(f"{what} it keeps prefixes of one KV group without a window, not of {self.kv_groups}")

    def _check_groups(self) -> None:
        groups = self.kv_groups
        windows = groups if isinstance(groups, tuple) else ()
        if not windows or any(w is not None and (type(w) is not int or w < 2) for w in windows):
            raise ConfigError(f"kv_groups is {groups}, expected at least one group, each None or a window >= 2 tokens")
        if groups == (None,):
            return
        if self.allocator != "paged":
            raise ConfigError(f"kv_groups is {groups}; {self.allocator} keeps every token of one group only")
        if self.eviction == "belady":
            raise ConfigError(f"eviction policy belady is no bound with kv_groups {groups}: use it with (None,)")
        if self.num_blocks < len(groups):
            raise ConfigError(f"num_blocks is {self.num_blocks}, {len(groups)} KV groups need a block each")
        if None not in groups and self.max_model_len is None:
            raise ConfigError(f"kv_groups {groups} keep no token for ever, so the pool is no bound: give max_model_len")

    @property
    def effective_len(self) -> int:
        """Longest prompt + output one request can reach: ``min(max_model_len, N * block_size + 1)``.

        The + 1 is the last emitted token, whose K and V are never stored. With several KV groups the pool holds a
        lone request's blocks of all of them; where every group has a window, that may be no bound at all.
        """
        blocks: int | None = self.num_blocks
        if self.allocator == "contiguous-pow2":  # a buddy allocator's longest run
            blocks = 1 << (self.num_blocks.bit_length() - 1)
        elif self.kv_groups != (None,):
            # A whole prompt in one step is held whole, whatever falls out of the window after it.
            windows = self.kv_groups if self.chunked_prefill else (None,) * len(self.kv_groups)
            blocks = longest_that_fits(self.num_blocks, windows, self.block_size)
        limits = [self.max_model_len, None if blocks is None else blocks * self.block_size + 1]
        return min(limit for limit in limits if limit is not None)

    @property
    def caching(self) -> bool:
        """Whether prefixes are cached, the default of None resolved."""
        return self.allocator == "paged" if self.prefix_caching is None else self.prefix_caching

    @property
    def seats(self) -> int:
        """Sequences that may run at once: every one of them must get its token in every step."""
        return min(self.max_num_seqs, self.max_batched_tokens)

    @classmethod
    def from_mapping(cls, values: dict[str, Any]) -> EngineConfig:
        """Build from a TOML table or a decoded dict; an unknown key names the nearest one."""
        for key in values:
            if key not in cls.__struct_fields__:
                raise UnknownName("engine config key", key, cls.__struct_fields__)
        try:
            return msgspec.convert(values, cls)
        except msgspec.ValidationError as error:
            raise ConfigError(str(error)) from None


def with_whole_prompts(values: dict[str, Any], num_blocks: int | None) -> dict[str, Any]:
    """EngineConfig values, with a budget for a whole prompt beside a token of every other seat, where none is given.

    Nothing changes with chunked prefill, with ``max_batched_tokens`` given, or where neither ``max_model_len`` nor
    ``num_blocks`` (None: not known yet) says how long a prompt can be.
    """
    plain = EngineConfig(num_blocks=1)
    block_size = values.get("block_size", plain.block_size)
    in_pool = None if num_blocks is None else num_blocks * block_size + 1
    limits = [limit for limit in (values.get("max_model_len"), in_pool) if limit is not None]
    if values.get("chunked_prefill", True) or "max_batched_tokens" in values or not limits:
        return values
    budget = min(limits) - 1 + values.get("max_num_seqs", plain.max_num_seqs)
    return {**values, "max_batched_tokens": max(budget, plain.max_batched_tokens)}
