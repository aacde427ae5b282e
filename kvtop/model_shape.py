"""The shape of a model: a preset's, or read from a Hugging Face directory's JSON and safetensors headers. No torch."""

from __future__ import annotations

import json
import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvtop.engine.errors import ModelError, UsageError
from kvtop.presets import model_preset

_DTYPE_BYTES = {"F64": 8, "I64": 8, "F32": 4, "I32": 4, "F16": 2, "BF16": 2, "I16": 2}  # all other safetensors types: 1

# Caches that are not K and V of every head for every token: the formula would be wrong, so say which.
_REFUSED = {
    "kv_lora_rank": "multi-head latent attention keeps a compressed vector, not K and V",
    "linear_num_key_heads": "linear-attention layers keep a fixed state, not K and V",
    "ssm_state_size": "state-space layers keep a fixed state, not K and V",
    "mamba_d_state": "state-space layers keep a fixed state, not K and V",
    "global_head_dim": "its full and windowed layers have different head sizes",
}


@dataclass(frozen=True, slots=True)
class ModelShape:
    """What KV bytes, weight bytes and arithmetic depend on; None where the directory does not say."""

    name: str
    source: str
    num_layers: int
    num_kv_heads: int
    head_dim: int
    num_params: int | None = None
    weight_bytes: int | None = None  # as stored
    max_model_len: int | None = None
    sliding_window: int | None = None
    num_sliding_layers: int = 0
    num_heads: int | None = None
    hidden_size: int | None = None
    num_active_params: int | None = None  # those that one token passes: all but in a mixture of experts


def find_shape(name: str) -> ModelShape:
    """Shape of what ``name`` stands for: a Hugging Face directory, its config.json, or a preset.

    Raises:
        ModelError: see ``read_model_dir``.
        UsageError: no such path, no such preset (with the nearest).
    """
    path = Path(name)
    if path.exists():
        return read_model_dir(path)
    if "/" in name:
        raise UsageError(f"{name}: no such directory or file (presets have names such as llama-3-8b)")
    preset = model_preset(name)
    return ModelShape(
        name=name.lower(),
        source=preset.source,
        num_layers=preset.num_layers,
        num_kv_heads=preset.num_kv_heads,
        head_dim=preset.head_dim,
        num_params=preset.num_params,
        max_model_len=preset.max_model_len,
        sliding_window=preset.sliding_window,
        num_sliding_layers=preset.num_sliding_layers,
        num_heads=preset.num_heads,
        hidden_size=preset.hidden_size,
        num_active_params=preset.num_active_params or preset.num_params,
    )


def read_model_dir(path: Path) -> ModelShape:
    """Shape from ``config.json`` (``path`` is it, or the directory around it) and the weights' headers beside it.

    Raises:
        ModelError: no config, broken JSON, a missing or senseless key, or a cache the formula does not describe.
    """
    config_path = path / "config.json" if path.is_dir() else path
    config = _read_config(config_path)
    for key, why in _REFUSED.items():
        if config.get(key):
            raise ModelError(f"{config_path}: {key} is set: {why}; give --layers, --kv-heads and --head-dim instead")
    num_heads = _integer(config, config_path, "num_attention_heads", "n_head")
    num_layers = _integer(config, config_path, "num_hidden_layers", "n_layer") - int(
        config.get("num_kv_shared_layers") or 0
    )
    head_dim = config.get("head_dim") or _integer(config, config_path, "hidden_size", "n_embd") // num_heads
    window, num_sliding = _sliding(config, num_layers)
    num_params, weight_bytes = _weights(config_path.parent)
    if num_params is None:
        num_params = _dense_params(config, num_layers, num_heads, int(head_dim))
    return ModelShape(
        name=config_path.parent.resolve().name,
        source=str(config_path),
        num_layers=num_layers,
        num_kv_heads=int(config.get("num_key_value_heads") or num_heads),
        head_dim=int(head_dim),
        num_params=num_params,
        weight_bytes=weight_bytes,
        max_model_len=config.get("max_position_embeddings") or config.get("n_positions"),
        sliding_window=window,
        num_sliding_layers=num_sliding,
        num_heads=num_heads,
        hidden_size=config.get("hidden_size") or config.get("n_embd"),
        num_active_params=None if _experts(config) else num_params,
    )


def _read_config(path: Path) -> dict[str, Any]:
    try:
        config = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise ModelError(f"{path}: no such file, so {path.parent} is not a Hugging Face model directory") from None
    except (ValueError, OSError) as error:
        raise ModelError(f"{path}: not readable as JSON ({error})") from None
    if not isinstance(config, dict):
        raise ModelError(f"{path}: holds a {type(config).__name__}, expected a JSON object")
    text = config.get("text_config")  # models that also see or hear keep the decoder's shape here
    return text if isinstance(text, dict) else config


def _integer(config: dict[str, Any], path: Path, *keys: str) -> int:
    value = next((config[key] for key in keys if config.get(key) is not None), None)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        found = "is missing" if value is None else f"is {value!r}"
        raise ModelError(f"{path}: {keys[0]} {found}, expected a whole number >= 1")
    return value


def _sliding(config: dict[str, Any], num_layers: int) -> tuple[int | None, int]:
    """Window and number of windowed layers, by the rules each family writes its config with."""
    window = config.get("sliding_window")
    if not window or config.get("use_sliding_window") is False:
        return None, 0
    kinds = config.get("layer_types")
    if isinstance(kinds, list):
        num_sliding = sum(kind == "sliding_attention" for kind in kinds[:num_layers])
    elif pattern := config.get("sliding_window_pattern"):
        num_sliding = num_layers - num_layers // int(pattern)
    elif config.get("model_type") == "gemma2":
        num_sliding = (num_layers + 1) // 2
    else:
        num_sliding = num_layers
    return (int(window), num_sliding) if num_sliding else (None, 0)


def _experts(config: dict[str, Any]) -> bool:
    """Whether only some of the parameters work for a token."""
    return any(config.get(key) for key in ("num_local_experts", "num_experts", "n_routed_experts"))


_DENSE = ("llama", "mistral", "qwen2", "qwen3")
"""Model types whose parameters follow from the config alone by ``_dense_params``."""


def _dense_params(config: dict[str, Any], num_layers: int, num_heads: int, head_dim: int) -> int | None:
    """Parameters of a family with gated feed-forward layers, two norms a layer and known biases; else None."""
    kind, hidden = config.get("model_type"), config.get("hidden_size")
    feed_forward, vocabulary = config.get("intermediate_size"), config.get("vocab_size")
    if kind not in _DENSE or not isinstance(hidden, int) or not isinstance(feed_forward, int):
        return None
    if not isinstance(vocabulary, int) or config.get("attention_bias") or config.get("mlp_bias"):
        return None
    q = num_heads * head_dim
    kv = int(config.get("num_key_value_heads") or num_heads) * head_dim
    layer = 2 * hidden * (q + kv) + 3 * hidden * feed_forward + 2 * hidden
    layer += {"qwen2": q + 2 * kv, "qwen3": 2 * head_dim}.get(kind, 0)
    embeddings = vocabulary * hidden * (1 if config.get("tie_word_embeddings") else 2)
    return num_layers * layer + embeddings + hidden


def _weights(folder: Path) -> tuple[int | None, int | None]:
    """Parameters and bytes of all safetensors files from their headers alone; None without such files."""
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        return None, None
    num_params = num_bytes = 0
    for file in files:
        for name, tensor in _header(file).items():
            if name != "__metadata__":
                elements = math.prod(tensor["shape"])
                num_params += elements
                num_bytes += elements * _DTYPE_BYTES.get(tensor["dtype"], 1)
    return num_params, num_bytes


def _header(file: Path) -> dict[str, Any]:
    try:
        with file.open("rb") as stream:
            (length,) = struct.unpack("<Q", stream.read(8))
            if length > file.stat().st_size:
                raise ValueError(f"a header of {length} bytes in a file of {file.stat().st_size}")
            return json.loads(stream.read(length))
    except (struct.error, ValueError) as error:
        raise ModelError(f"{file}: broken safetensors header ({error})") from None
