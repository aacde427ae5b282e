"""What a model, a GPU and a length come to, and whether a running engine agrees: the memory calculator's arithmetic."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from kvtop.calc import DTYPE_BYTES, CacheShape, Capacity, blocks_for, capacity
from kvtop.engine.errors import KvtopError, UsageError
from kvtop.model_shape import ModelShape, find_shape
from kvtop.presets import GPUS, MODELS, gpu_preset

DTYPES = tuple(DTYPE_BYTES)
BLOCK_SIZES = (1, 8, 16, 32, 64, 128)
LENGTHS = tuple(1024 * 2**i for i in range(8))
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_CACHE_DTYPES = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "int8": "int8", "fp8": "fp8"}


@dataclass(frozen=True, slots=True)
class Plan:
    """Inputs of the calculator. Lengths in tokens; ``hit`` is the share of each sequence that others hold already."""

    model: str = "llama-3.1-8b"
    dtype: str = "fp16"
    block_size: int = 16
    seq_len: int = 4096
    gpu: str = "h100-80gb"
    utilisation: float = 0.9
    tp: int = 1
    hit: float = 0.5


@dataclass(frozen=True, slots=True)
class Answer:
    """What a plan comes to on each GPU."""

    model: ModelShape
    shape: CacheShape  # of the whole model
    share: CacheShape  # of one GPU
    weight_bytes: int  # of one GPU
    room: Capacity


def answer(plan: Plan) -> Answer:
    """Raises: UsageError, UnknownName, ModelError, ConfigError: an input that means nothing, or does not divide."""
    model = find_shape(plan.model)
    windows = (model.sliding_window, model.num_sliding_layers)
    shape = CacheShape(model.num_layers, model.num_kv_heads, model.head_dim, plan.dtype, *windows)
    share = shape.per_gpu(plan.tp)
    weights = model.weight_bytes
    if weights is None:
        if model.num_params is None:
            raise UsageError(f"the weights' size of {model.name} is unknown")
        weights = 2 * model.num_params
    weights = -(-weights // plan.tp)
    room = capacity(
        share,
        gpu_memory_bytes=gpu_preset(plan.gpu).memory_bytes,
        weight_bytes=weights,
        seq_len=plan.seq_len,
        block_size=plan.block_size,
        utilisation=plan.utilisation,
        max_model_len=max(model.max_model_len or plan.seq_len, plan.seq_len),
    )
    return Answer(model, shape, share, weights, room)


def fits(plan: Plan, found: Answer, seq_len: int, batch: int) -> str:
    """``yes``; ``shared`` when only with ``hit`` of each sequence shared by all; ``no``."""
    if batch * blocks_for(seq_len, plan.block_size) <= found.room.num_blocks:
        return "yes"
    shared = int(seq_len * plan.hit) // plan.block_size
    own = blocks_for(seq_len, plan.block_size) - shared
    return "shared" if shared + batch * own <= found.room.num_blocks else "no"


FIELDS: dict[str, tuple[Any, ...]] = {
    "model": tuple(MODELS),
    "dtype": DTYPES,
    "block_size": BLOCK_SIZES,
    "seq_len": LENGTHS,
    "gpu": tuple(GPUS),
    "utilisation": (0.8, 0.85, 0.9, 0.95),
    "tp": (1, 2, 4, 8),
    "hit": (0.0, 0.25, 0.5, 0.75, 0.9),
}
"""What each input may be turned to; anything else that means something may be typed."""


def turned(plan: Plan, field: str, by: int) -> Plan:
    """The next or the previous choice of an input."""
    choices, now = FIELDS[field], getattr(plan, field)
    at = choices.index(now) if now in choices else 0
    return replace(plan, **{field: choices[(at + by) % len(choices)]})


def typed(plan: Plan, field: str, text: str) -> Plan:
    """An input as it was typed.

    Raises:
        UsageError and the like: it means nothing; ``answer`` of the changed plan has been tried.
    """
    value: Any = text.strip()
    kind = type(getattr(plan, field))
    if kind is not str:
        try:
            value = kind(value.replace("_", "").replace(",", ""))
        except ValueError:
            raise UsageError(f"{field} is {text!r}, expected a number") from None
        low, high = (0, 1) if kind is float else (1, 10**9)
        if not low <= value <= high or (field == "utilisation" and not value) or (field == "hit" and value == 1):
            raise UsageError(f"{field} is {text}, expected {low} to {high}")
    changed = replace(plan, **{field: value})
    answer(changed)
    return changed


# The engine that runs -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Check:
    """Bytes of a block as the engine allocated it, and as the calculator says. None: not reported."""

    num_blocks: int | None
    engine_bytes: int | None
    calculated_bytes: int | None
    why_not: str = ""

    @property
    def agrees(self) -> bool | None:
        if self.engine_bytes is None or self.calculated_bytes is None:
            return None
        return self.engine_bytes == self.calculated_bytes


def plan_of(manifest: dict[str, Any], before: Plan) -> Plan:
    """``before`` with model, block size and dtype of a running engine, where its manifest tells them.

    Raises:
        UsageError: its model is none that the calculator knows the shape of.
    """
    name = str(manifest.get("model") or "")
    known = next((preset for preset in MODELS if name.lower().removesuffix("-instruct") == preset), None)
    if known is None:
        try:
            find_shape(name)
        except (KvtopError, OSError):
            raise UsageError(f"the shape of {name or 'no model'} is not known to the calculator") from None
    return replace(
        before,
        model=known or name,
        dtype=_cache_dtype(manifest) or before.dtype,
        block_size=manifest.get("block_size_tokens") or before.block_size,
    )


def _cache_dtype(manifest: dict[str, Any]) -> str | None:
    kept = manifest.get("kv_dtype")
    name = str(kept if kept not in (None, "auto") else manifest.get("dtype"))
    return name if name in DTYPES else _CACHE_DTYPES.get(name)  # a simulated engine has the calculator's own names


def check(manifest: dict[str, Any]) -> Check:
    """Whether the engine's blocks are as large as the calculator says."""
    num_blocks, own = manifest.get("num_blocks"), manifest.get("kv_bytes_per_block")
    if own is None:
        return Check(num_blocks, None, None, "the engine that runs stores no K and V: there is nothing to compare")
    if _cache_dtype(manifest) is None:
        return Check(num_blocks, own, None, f"dtype {manifest.get('dtype')} is not known to the calculator")
    try:
        found = answer(plan_of(manifest, Plan()))
    except KvtopError as error:
        return Check(num_blocks, own, None, str(error))
    size = manifest.get("block_size_tokens") or 0
    return Check(num_blocks, own, found.shape.bytes_per_token * size)
