"""Shapes of well-known models and memory of well-known GPUs, for ``kvtop calc``. Plain data; loads nothing.

Model shapes are those of each model's published ``config.json``. ``num_params`` is exact: it follows from the shape
(a test adds up the weight matrices and compares), tied embeddings counted once.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvtop.engine.errors import UnknownName


@dataclass(frozen=True, slots=True)
class ModelPreset:
    """What the KV cache and the weights of a decoder-only model depend on. Lengths in tokens."""

    source: str  # the Hugging Face repository whose config.json this is
    num_layers: int
    num_kv_heads: int
    head_dim: int
    num_params: int
    max_model_len: int  # max_position_embeddings
    sliding_window: int | None = None  # tokens a windowed layer looks back
    num_sliding_layers: int = 0  # the rest keep every token


@dataclass(frozen=True, slots=True)
class GpuPreset:
    """``memory_bytes`` is the total that NVML reports, a little less or more than the name says."""

    memory_bytes: int


MODELS: dict[str, ModelPreset] = {
    # config.json: num_hidden_layers, num_key_value_heads, head_dim (or hidden_size / num_attention_heads)
    "gemma-2-2b": ModelPreset("google/gemma-2-2b", 26, 4, 256, 2_614_341_888, 8192, 4096, 13),
    "gemma-2-9b": ModelPreset("google/gemma-2-9b", 42, 8, 256, 9_241_705_984, 8192, 4096, 21),
    "gemma-2-27b": ModelPreset("google/gemma-2-27b", 46, 16, 128, 27_227_128_320, 8192, 4096, 23),
    # Text model only; five windowed layers, then a full one: 52 of 62. The vision tower is not counted.
    "gemma-3-27b": ModelPreset("google/gemma-3-27b-it", 62, 16, 128, 27_009_346_304, 131_072, 1024, 52),
    "llama-2-7b": ModelPreset("meta-llama/Llama-2-7b-hf", 32, 32, 128, 6_738_415_616, 4096),
    "llama-2-70b": ModelPreset("meta-llama/Llama-2-70b-hf", 80, 8, 128, 68_976_648_192, 4096),
    "llama-3-8b": ModelPreset("meta-llama/Meta-Llama-3-8B", 32, 8, 128, 8_030_261_248, 8192),
    "llama-3-70b": ModelPreset("meta-llama/Meta-Llama-3-70B", 80, 8, 128, 70_553_706_496, 8192),
    "llama-3.1-8b": ModelPreset("meta-llama/Llama-3.1-8B", 32, 8, 128, 8_030_261_248, 131_072),
    "llama-3.1-70b": ModelPreset("meta-llama/Llama-3.1-70B", 80, 8, 128, 70_553_706_496, 131_072),
    "llama-3.1-405b": ModelPreset("meta-llama/Llama-3.1-405B", 126, 8, 128, 405_853_388_800, 131_072),
    "llama-3.2-1b": ModelPreset("meta-llama/Llama-3.2-1B", 16, 8, 64, 1_235_814_400, 131_072),
    "llama-3.2-3b": ModelPreset("meta-llama/Llama-3.2-3B", 28, 8, 128, 3_212_749_824, 131_072),
    # Version 0.1: every layer looks back 4096 tokens.
    "mistral-7b": ModelPreset("mistralai/Mistral-7B-v0.1", 32, 8, 128, 7_241_732_096, 32_768, 4096, 32),
    "mixtral-8x7b": ModelPreset("mistralai/Mixtral-8x7B-v0.1", 32, 8, 128, 46_702_792_704, 32_768),
    "phi-4": ModelPreset("microsoft/phi-4", 40, 10, 128, 14_659_507_200, 16_384),
    "qwen2.5-0.5b": ModelPreset("Qwen/Qwen2.5-0.5B", 24, 2, 64, 494_032_768, 32_768),
    "qwen2.5-7b": ModelPreset("Qwen/Qwen2.5-7B", 28, 4, 128, 7_615_616_512, 131_072),
    "qwen2.5-72b": ModelPreset("Qwen/Qwen2.5-72B", 80, 8, 128, 72_706_203_648, 131_072),
    "qwen3-0.6b": ModelPreset("Qwen/Qwen3-0.6B", 28, 8, 128, 596_049_920, 40_960),
    "qwen3-8b": ModelPreset("Qwen/Qwen3-8B", 36, 8, 128, 8_190_735_360, 40_960),
    "qwen3-32b": ModelPreset("Qwen/Qwen3-32B", 64, 8, 128, 32_762_123_264, 40_960),
    "smollm2-135m": ModelPreset("HuggingFaceTB/SmolLM2-135M-Instruct", 30, 3, 64, 134_515_008, 8192),
    "smollm2-360m": ModelPreset("HuggingFaceTB/SmolLM2-360M-Instruct", 32, 5, 64, 361_821_120, 8192),
    "smollm2-1.7b": ModelPreset("HuggingFaceTB/SmolLM2-1.7B-Instruct", 24, 32, 64, 1_711_376_384, 8192),
    "tinyllama-1.1b": ModelPreset("TinyLlama/TinyLlama-1.1B-Chat-v1.0", 22, 4, 64, 1_100_048_384, 2048),
}

_MIB = 2**20

GPUS: dict[str, GpuPreset] = {
    "a10-24gb": GpuPreset(23_028 * _MIB),
    "a100-40gb": GpuPreset(40_960 * _MIB),
    "a100-80gb": GpuPreset(81_920 * _MIB),
    "b200-180gb": GpuPreset(183_359 * _MIB),
    "h100-80gb": GpuPreset(81_559 * _MIB),
    "h200-141gb": GpuPreset(143_771 * _MIB),
    "l4-24gb": GpuPreset(23_034 * _MIB),
    "l40s-48gb": GpuPreset(46_068 * _MIB),
    "rtx-4090-24gb": GpuPreset(24_564 * _MIB),
    "t4-16gb": GpuPreset(15_360 * _MIB),
}


def model_preset(name: str) -> ModelPreset:
    """The preset called ``name``, capitals aside.

    Raises:
        UnknownName: no such preset; names the nearest.
    """
    try:
        return MODELS[name.lower()]
    except KeyError:
        raise UnknownName("model preset", name, MODELS) from None


def gpu_preset(name: str) -> GpuPreset:
    """The GPU called ``name``, capitals aside; ``h100`` is enough where only one size exists.

    Raises:
        UnknownName: no such GPU; names the nearest.
    """
    key = name.lower()
    matches = [key] if key in GPUS else [gpu for gpu in GPUS if gpu.startswith(f"{key}-")]
    if len(matches) != 1:
        raise UnknownName("GPU preset", name, GPUS)
    return GPUS[matches[0]]
