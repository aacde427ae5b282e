"""How a setting is called where runs are told apart: ``cache=off``, ``block_size_tokens=8``, ``int8``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

_BARE = {  # their values speak for themselves
    "workload", "allocator", "eviction", "batch_policy", "victim", "executor", "model", "device", "dtype", "kv_dtype",
    "clock",
}  # fmt: skip

_SWITCH = {"prefix_caching": "cache", "chunked_prefill": "chunked"}

_SHORTER = {"max_batched_tokens": "budget"}


def setting(key: str, value: Any) -> str:
    """One setting in a label; "" for one that speaks for itself and has no value."""
    if key in _BARE:
        return "" if value is None else Path(str(value)).name
    if key == "computed_by":  # a long line: what attends is named, by its first word (CPU, torch, Triton)
        found = str(value or "").rpartition("attention by ")[2].split()
        return f"attn={found[0]}" if found else ""
    if key in _SWITCH:
        return f"{_SWITCH[key]}={'on' if value else 'off'}"
    return f"{_SHORTER.get(key, key)}={short(value)}"


def short(value: Any) -> str:
    """A value in at most 16 characters."""
    text = "not recorded" if value is None else str(value)
    return text if len(text) <= 16 else text[:12] + "..."
