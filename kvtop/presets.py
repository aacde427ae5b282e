"""Shapes of well-known models and figures of well-known GPUs, for ``kvtop calc`` and simulated runs. Plain data.

Model shapes are those of each model's published ``config.json``. ``num_params`` is exact: it follows from the shape
(a test adds up the weight matrices and compares), tied embeddings counted once.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvtop.engine.errors import UnknownName


@dataclass(frozen=True, slots=True)
class ModelPreset:
    """What cache, weights and arithmetic of a decoder-only model depend on. Lengths in tokens."""

    source: str  # the Hugging Face repository whose config.json this is
    num_layers: int
    num_heads: int  # of the queries
    num_kv_heads: int
    head_dim: int
    hidden_size: int
    num_params: int
    max_model_len: int  # max_position_embeddings
    sliding_window: int | None = None  # tokens a windowed layer looks back
    num_sliding_layers: int = 0  # the rest keep every token
    num_active_params: int | None = None  # of a mixture of experts: those that one token passes


@dataclass(frozen=True, slots=True)
class GpuPreset:
    """Published peaks of one GPU: what no program reaches. Links count one direction (half the figure usually given).

    ``memory_bytes`` is the total that the driver reports, a little less or more than the name says.
    """

    memory_bytes: int
    bandwidth_bytes_s: float  # of its memory
    flops_s: float  # dense 16-bit matrix products, fp32 sums
    link_bytes_s: float  # to its neighbours, one direction
    host_bytes_s: float  # to host memory, one direction
    source: str  # where bandwidth, arithmetic and links are published


MODELS: dict[str, ModelPreset] = {
    # config.json: num_hidden_layers, num_attention_heads, num_key_value_heads, head_dim (or hidden_size / heads),
    # hidden_size
    "gemma-2-2b": ModelPreset("google/gemma-2-2b", 26, 8, 4, 256, 2304, 2_614_341_888, 8192, 4096, 13),
    "gemma-2-9b": ModelPreset("google/gemma-2-9b", 42, 16, 8, 256, 3584, 9_241_705_984, 8192, 4096, 21),
    "gemma-2-27b": ModelPreset("google/gemma-2-27b", 46, 32, 16, 128, 4608, 27_227_128_320, 8192, 4096, 23),
    # Text model only; five windowed layers, then a full one: 52 of 62. The vision tower is not counted.
    "gemma-3-27b": ModelPreset("google/gemma-3-27b-it", 62, 32, 16, 128, 5376, 27_009_346_304, 131_072, 1024, 52),
    "llama-2-7b": ModelPreset("meta-llama/Llama-2-7b-hf", 32, 32, 32, 128, 4096, 6_738_415_616, 4096),
    "llama-2-70b": ModelPreset("meta-llama/Llama-2-70b-hf", 80, 64, 8, 128, 8192, 68_976_648_192, 4096),
    "llama-3-8b": ModelPreset("meta-llama/Meta-Llama-3-8B", 32, 32, 8, 128, 4096, 8_030_261_248, 8192),
    "llama-3-70b": ModelPreset("meta-llama/Meta-Llama-3-70B", 80, 64, 8, 128, 8192, 70_553_706_496, 8192),
    "llama-3.1-8b": ModelPreset("meta-llama/Llama-3.1-8B", 32, 32, 8, 128, 4096, 8_030_261_248, 131_072),
    "llama-3.1-70b": ModelPreset("meta-llama/Llama-3.1-70B", 80, 64, 8, 128, 8192, 70_553_706_496, 131_072),
    "llama-3.1-405b": ModelPreset("meta-llama/Llama-3.1-405B", 126, 128, 8, 128, 16_384, 405_853_388_800, 131_072),
    "llama-3.2-1b": ModelPreset("meta-llama/Llama-3.2-1B", 16, 32, 8, 64, 2048, 1_235_814_400, 131_072),
    "llama-3.2-3b": ModelPreset("meta-llama/Llama-3.2-3B", 28, 24, 8, 128, 3072, 3_212_749_824, 131_072),
    # Version 0.1: every layer looks back 4096 tokens.
    "mistral-7b": ModelPreset("mistralai/Mistral-7B-v0.1", 32, 32, 8, 128, 4096, 7_241_732_096, 32_768, 4096, 32),
    # Two of eight experts a token.
    "mixtral-8x7b": ModelPreset(
        "mistralai/Mixtral-8x7B-v0.1", 32, 32, 8, 128, 4096, 46_702_792_704, 32_768, num_active_params=12_879_925_248
    ),
    "phi-4": ModelPreset("microsoft/phi-4", 40, 40, 10, 128, 5120, 14_659_507_200, 16_384),
    "qwen2.5-0.5b": ModelPreset("Qwen/Qwen2.5-0.5B", 24, 14, 2, 64, 896, 494_032_768, 32_768),
    "qwen2.5-7b": ModelPreset("Qwen/Qwen2.5-7B", 28, 28, 4, 128, 3584, 7_615_616_512, 131_072),
    "qwen2.5-72b": ModelPreset("Qwen/Qwen2.5-72B", 80, 64, 8, 128, 8192, 72_706_203_648, 131_072),
    "qwen3-0.6b": ModelPreset("Qwen/Qwen3-0.6B", 28, 16, 8, 128, 1024, 596_049_920, 40_960),
    "qwen3-8b": ModelPreset("Qwen/Qwen3-8B", 36, 32, 8, 128, 4096, 8_190_735_360, 40_960),
    "qwen3-32b": ModelPreset("Qwen/Qwen3-32B", 64, 64, 8, 128, 5120, 32_762_123_264, 40_960),
    "smollm2-135m": ModelPreset("HuggingFaceTB/SmolLM2-135M-Instruct", 30, 9, 3, 64, 576, 134_515_008, 8192),
    "smollm2-360m": ModelPreset("HuggingFaceTB/SmolLM2-360M-Instruct", 32, 15, 5, 64, 960, 361_821_120, 8192),
    "smollm2-1.7b": ModelPreset("HuggingFaceTB/SmolLM2-1.7B-Instruct", 24, 32, 32, 64, 2048, 1_711_376_384, 8192),
    "tinyllama-1.1b": ModelPreset("TinyLlama/TinyLlama-1.1B-Chat-v1.0", 22, 32, 4, 64, 2048, 1_100_048_384, 2048),
}

_MIB = 2**20
_GB, _T = 1e9, 1e12
_PCIE3, _PCIE4, _PCIE5 = 16 * _GB, 32 * _GB, 64 * _GB  # 16 lanes, one direction

GPUS: dict[str, GpuPreset] = {
    "a10-24gb": GpuPreset(23_028 * _MIB, 600 * _GB, 125 * _T, _PCIE4, _PCIE4, "NVIDIA A10 datasheet"),
    "a100-40gb": GpuPreset(40_960 * _MIB, 1555 * _GB, 312 * _T, 300 * _GB, _PCIE4, "NVIDIA A100 datasheet, SXM"),
    "a100-80gb": GpuPreset(81_920 * _MIB, 2039 * _GB, 312 * _T, 300 * _GB, _PCIE4, "NVIDIA A100 datasheet, SXM"),
    "b200-180gb": GpuPreset(183_359 * _MIB, 8000 * _GB, 2250 * _T, 900 * _GB, _PCIE5, "NVIDIA DGX B200 datasheet / 8"),
    "h100-80gb": GpuPreset(81_559 * _MIB, 3350 * _GB, 989.5 * _T, 450 * _GB, _PCIE5, "NVIDIA H100 datasheet, SXM"),
    "h200-141gb": GpuPreset(143_771 * _MIB, 4800 * _GB, 989.5 * _T, 450 * _GB, _PCIE5, "NVIDIA H200 datasheet, SXM"),
    "l4-24gb": GpuPreset(23_034 * _MIB, 300 * _GB, 121 * _T, _PCIE4, _PCIE4, "NVIDIA L4 datasheet"),
    "l40s-48gb": GpuPreset(46_068 * _MIB, 864 * _GB, 362 * _T, _PCIE4, _PCIE4, "NVIDIA L40S datasheet"),
    "mi300x-192gb": GpuPreset(
        196_592 * _MIB, 5300 * _GB, 1307.4 * _T, 448 * _GB, _PCIE5, "AMD Instinct MI300X data sheet, 7 links"
    ),
    "rtx-4090-24gb": GpuPreset(
        24_564 * _MIB, 1008 * _GB, 165.2 * _T, _PCIE4, _PCIE4, "NVIDIA Ada GPU architecture white paper"
    ),
    "rtx-pro-6000-96gb": GpuPreset(
        97_887 * _MIB, 1792 * _GB, 503.8 * _T, _PCIE5, _PCIE5, "NVIDIA RTX Blackwell PRO white paper, workstation"
    ),
    "t4-16gb": GpuPreset(15_360 * _MIB, 320 * _GB, 65 * _T, _PCIE3, _PCIE3, "NVIDIA T4 datasheet"),
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
    """The GPU called ``name``; see ``gpu_name``."""
    return GPUS[gpu_name(name)]


def gpu_name(name: str) -> str:
    """The preset's whole name, capitals aside; ``h100`` is enough where only one size exists.

    Raises:
        UnknownName: no such GPU; names the nearest.
    """
    key = name.lower()
    matches = [key] if key in GPUS else [gpu for gpu in GPUS if gpu.startswith(f"{key}-")]
    if len(matches) != 1:
        raise UnknownName("GPU preset", name, GPUS)
    return matches[0]
