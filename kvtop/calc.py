"""Exact KV cache bytes, and what fits a GPU: ``2 x layers x kv_heads x head_dim x bytes x tokens``. Loads nothing.

All sums are integers. The scales of an int8 or fp8 cache are counted, as kvtop's pool keeps them: for K and for V one
for each token and KV head. Not counted, and said so: activations (they come out of the share that ``utilisation``
leaves) and block tables.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

from kvtop.engine.errors import ConfigError

DTYPE_BYTES = {"fp32": 4, "fp16": 2, "bf16": 2, "fp8": 1, "int8": 1}
QUANTISED = ("fp8", "int8")
SCALE_BYTES = 4
"""Of each scale of a quantised cache, an fp32 number."""


@dataclass(frozen=True, slots=True)
class CacheShape:
    """K and V of one token: ``num_layers`` layers of ``num_kv_heads`` heads of ``head_dim`` elements."""

    num_layers: int
    num_kv_heads: int
    head_dim: int
    dtype: str = "fp16"
    sliding_window: int | None = None
    num_sliding_layers: int = 0

    @property
    def bytes_per_token(self) -> int:
        return self._layer_bytes * self.num_layers

    @property
    def _layer_bytes(self) -> int:
        return 2 * self.num_kv_heads * (self.head_dim * DTYPE_BYTES[self.dtype] + self.scale_bytes)

    @property
    def scale_bytes(self) -> int:
        """Bytes beside each row of ``head_dim`` elements; 0 when the cache is not quantised."""
        return SCALE_BYTES if self.dtype in QUANTISED else 0

    @property
    def scale_bytes_per_token(self) -> int:
        """The part of ``bytes_per_token`` that is scales."""
        return 2 * self.num_layers * self.num_kv_heads * self.scale_bytes

    def request_bytes(self, num_tokens: int) -> int:
        """Bytes of one sequence when every layer keeps every token (what kvtop's pool does)."""
        return self.bytes_per_token * num_tokens

    def windowed_request_bytes(self, num_tokens: int) -> int | None:
        """Bytes that must be kept when windowed layers drop what they no longer see; None without such layers."""
        if self.sliding_window is None:
            return None
        full_layers = self.num_layers - self.num_sliding_layers
        kept = min(num_tokens, self.sliding_window)
        return self._layer_bytes * (full_layers * num_tokens + self.num_sliding_layers * kept)

    def per_gpu(self, tensor_parallel: int) -> CacheShape:
        """The part one GPU of a tensor-parallel group holds. With more GPUs than KV heads, heads are repeated.

        Raises:
            ConfigError: the heads cannot be dealt out evenly.
        """
        heads, tp = self.num_kv_heads, tensor_parallel
        if heads % tp and tp % heads:
            raise ConfigError(f"{heads} KV heads cannot be dealt out to {tp} GPUs (one must divide the other)")
        return CacheShape(
            self.num_layers,
            max(1, heads // tp),
            self.head_dim,
            self.dtype,
            self.sliding_window,
            self.num_sliding_layers,
        )


def blocks_for(num_tokens: int, block_size: int) -> int:
    """Blocks that hold ``num_tokens``: the last one may be partly empty."""
    return -(-num_tokens // block_size)


@dataclass(frozen=True, slots=True)
class Capacity:
    """What fits one GPU beside the weights. ``kv_budget_bytes`` is negative when the weights alone do not fit."""

    gpu_memory_bytes: int
    utilisation: float
    usable_bytes: int
    weight_bytes: int
    kv_budget_bytes: int
    block_size: int
    bytes_per_block: int
    num_blocks: int
    num_tokens: int
    seq_len: int
    max_requests_paged: int
    max_model_len: int | None
    max_requests_contiguous: int | None  # each reserves max_model_len; None: that length is unknown

    @property
    def missing_bytes(self) -> int:
        """Bytes short of a single request of ``seq_len`` tokens; 0 when one fits."""
        need = blocks_for(self.seq_len, self.block_size) * self.bytes_per_block
        return max(0, need - self.kv_budget_bytes)


def capacity(
    shape: CacheShape,
    *,
    gpu_memory_bytes: int,
    weight_bytes: int,
    seq_len: int,
    block_size: int = 16,
    utilisation: float = 0.9,
    max_model_len: int | None = None,
) -> Capacity:
    """Blocks and concurrent requests of ``seq_len`` tokens on one GPU; ``shape`` and ``weight_bytes`` are its share."""
    usable = int(gpu_memory_bytes * Decimal(str(utilisation)))  # 0.9 means nine tenths, not its binary neighbour
    budget = usable - weight_bytes
    block_bytes = shape.request_bytes(block_size)
    num_blocks = max(0, budget) // block_bytes
    contiguous = None if max_model_len is None else num_blocks // blocks_for(max_model_len, block_size)
    return Capacity(
        gpu_memory_bytes=gpu_memory_bytes,
        utilisation=utilisation,
        usable_bytes=usable,
        weight_bytes=weight_bytes,
        kv_budget_bytes=budget,
        block_size=block_size,
        bytes_per_block=block_bytes,
        num_blocks=num_blocks,
        num_tokens=num_blocks * block_size,
        seq_len=seq_len,
        max_requests_paged=num_blocks // blocks_for(seq_len, block_size),
        max_model_len=max_model_len,
        max_requests_contiguous=contiguous,
    )
