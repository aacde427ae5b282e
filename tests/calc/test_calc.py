"""Exact KV bytes and capacity, against sums written out by hand."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtop.calc import DTYPE_BYTES, CacheShape, blocks_for, capacity
from kvtop.cli.main import main
from kvtop.engine.errors import ConfigError
from kvtop.presets import GPUS, MODELS

GIB = 2**30


def calc_json(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> dict[str, Any]:
    assert main(["calc", *words, "--json"]) == code
    return json.loads(capsys.readouterr().out)


def test_the_published_example_is_exact(capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "--layers",
        "80",
        "--kv-heads",
        "8",
        "--head-dim",
        "128",
        "--batch",
        "32",
        "--seq-len",
        "4096",
        "--dtype",
        "fp16",
    ]
    found = calc_json(capsys, *words)
    assert found["kv_bytes"] == 42_949_672_960
    assert found["kv_bytes_per_token"] == 327_680
    assert found["kv_bytes_per_block"] == 16 * 327_680
    assert found["capacity"] is None
    assert main(["calc", *words]) == 0
    text = capsys.readouterr().out
    assert "2 x 80 x 8 x 128 x 2 x 131,072" in text
    assert "42,949,672,960 bytes = 40.00 GiB" in text


def test_a_preset_equals_its_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    by_name = calc_json(capsys, "--model", "Llama-3-70B", "--batch", "32")
    by_hand = calc_json(capsys, *["--layers", "80", "--kv-heads", "8", "--head-dim", "128", "--batch", "32"])
    assert by_name["kv_bytes"] == by_hand["kv_bytes"] == 42_949_672_960
    assert by_name["model"] == "llama-3-70b"


@given(
    st.integers(1, 200), st.integers(1, 64), st.integers(1, 512), st.sampled_from(sorted(DTYPE_BYTES)),
    st.integers(1, 10**6), st.integers(1, 64),
)  # fmt: skip
@settings(max_examples=100, deadline=None)
def test_bytes_are_counted_element_by_element(
    layers: int, heads: int, dim: int, dtype: str, tokens: int, block: int
) -> None:
    shape = CacheShape(layers, heads, dim, dtype)
    width = {"fp32": 4, "fp16": 2, "bf16": 2, "fp8": 1, "int8": 1}[dtype]
    elements_of_keys = layers * heads * dim * tokens
    scales_of_keys = layers * heads * tokens if dtype in ("fp8", "int8") else 0
    assert shape.request_bytes(tokens) == 2 * (elements_of_keys * width + scales_of_keys * 4)
    assert shape.scale_bytes_per_token * tokens == 2 * scales_of_keys * 4
    assert (blocks_for(tokens, block) - 1) * block < tokens <= blocks_for(tokens, block) * block


@given(st.integers(1, 40), st.integers(0, 40), st.integers(1, 50), st.integers(1, 200))
@settings(max_examples=100, deadline=None)
def test_windowed_bytes_count_each_layer_by_itself(layers: int, sliding: int, window: int, tokens: int) -> None:
    sliding = min(sliding, layers)
    shape = CacheShape(layers, 2, 8, "fp16", window, sliding)
    kept = [min(tokens, window) if layer < sliding else tokens for layer in range(layers)]
    assert shape.windowed_request_bytes(tokens) == sum(2 * 2 * 8 * 2 * tokens_kept for tokens_kept in kept)


def test_capacity_after_the_weights_is_exact(capsys: pytest.CaptureFixture[str]) -> None:
    found = calc_json(
        capsys, *["--model", "llama-3-8b", "--seq-len", "2048", "--gpu-memory", "24GiB", "--utilisation", "0.9"]
    )
    room = found["capacity"]
    usable = 24 * GIB * 9 // 10
    budget = usable - 2 * 8_030_261_248
    block = 16 * 2 * 32 * 8 * 128 * 2
    assert room["usable_bytes"] == usable
    assert room["kv_budget_bytes"] == budget
    assert room["num_blocks"] == budget // block
    assert room["max_requests_paged"] == budget // block // 128
    assert room["max_requests_contiguous_max"] == budget // block // 512
    assert room["batch_fits"] is True


def test_a_block_more_than_fits_does_not_fit() -> None:
    shape = CacheShape(1, 1, 1, "fp16")
    assert shape.request_bytes(16) == 64
    assert capacity(shape, gpu_memory_bytes=128, weight_bytes=64, seq_len=16, utilisation=1.0).num_blocks == 1
    assert capacity(shape, gpu_memory_bytes=127, weight_bytes=64, seq_len=16, utilisation=1.0).num_blocks == 0
    assert capacity(shape, gpu_memory_bytes=127, weight_bytes=64, seq_len=16, utilisation=1.0).missing_bytes == 1


def test_weights_alone_too_large_is_said_with_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["calc", "--model", "llama-3-70b", "--gpu", "h100-80gb"]) == 1
    text = capsys.readouterr().out
    assert "does not fit: the weights take 131.42 GiB of 71.68 GiB, 59.73 GiB too much" in text


def test_a_request_too_long_names_the_longest_that_fits(capsys: pytest.CaptureFixture[str]) -> None:
    found = calc_json(capsys, *["--model", "llama-3-8b", "--seq-len", "8192", "--gpu-memory", "17.5GiB"], code=1)
    room = found["capacity"]
    assert 0 < room["num_tokens"] < 8192
    assert f"the longest that fits is {room['num_tokens']:,} tokens" in room["message"]


def test_a_batch_that_only_partly_fits_says_how_many(capsys: pytest.CaptureFixture[str]) -> None:
    found = calc_json(
        capsys,
        *["--model", "mistral-7b", "--seq-len", "8192", "--batch", "64", "--dtype", "int8", "--gpu-memory", "24GiB"],
    )
    assert found["capacity"]["batch_fits"] is False
    assert "only 15 of 64 fit at once" in found["capacity"]["message"]


def test_tensor_parallel_deals_out_heads_and_weights(capsys: pytest.CaptureFixture[str]) -> None:
    found = calc_json(capsys, *["--model", "llama-3-70b", "--seq-len", "8192", "--gpu", "h100-80gb", "--tp", "4"])
    assert found["kv_bytes_per_gpu"] * 4 == found["kv_bytes"]
    assert found["capacity"]["weight_bytes"] * 4 == 2 * 70_553_706_496
    assert CacheShape(1, 4, 8).per_gpu(8).num_kv_heads == 1
    with pytest.raises(ConfigError, match="6 KV heads cannot be dealt out to 4 GPUs"):
        CacheShape(1, 6, 8).per_gpu(4)


@pytest.mark.parametrize("dtype", ["fp8", "int8"])
def test_the_scales_of_a_quantised_cache_are_counted_and_shown_apart(
    dtype: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = calc_json(capsys, "--model", "llama-3-8b", "--dtype", dtype, "--seq-len", "10")
    assert found["scales_counted"] is True
    assert found["kv_bytes_without_scales"] == 2 * 32 * 8 * 128 * 10
    assert found["kv_bytes"] == found["kv_bytes_without_scales"] + 2 * 32 * 8 * 4 * 10
    assert found["kv_bytes_per_block"] == 16 * 2 * 32 * 8 * (128 + 4)
    assert main(["calc", "--model", "llama-3-8b", "--dtype", dtype, "--seq-len", "10"]) == 0
    text = capsys.readouterr().out
    assert "2 x 32 x 8 x (128 x 1 + 4) x 10" in text
    assert "without scales 655,360 bytes" in text


def test_a_cache_without_scales_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    found = calc_json(capsys, "--model", "llama-3-8b", "--dtype", "fp16")
    assert (found["scales_counted"], found["scale_bytes_per_token"]) == (False, 0)
    assert found["kv_bytes_without_scales"] == found["kv_bytes"]


def test_a_sliding_window_is_reported_beside_the_whole(capsys: pytest.CaptureFixture[str]) -> None:
    found = calc_json(capsys, *["--model", "gemma-2-9b", "--seq-len", "8192"])
    per_layer_token = 2 * 8 * 256 * 2
    assert found["kv_bytes"] == 42 * 8192 * per_layer_token
    assert found["kv_bytes_windowed"] == (21 * 8192 + 21 * 4096) * per_layer_token


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("", "missing: --layers, --kv-heads, --head-dim"),
        ("--layers 80 --kv-heads 8", "missing: --head-dim"),
        ("--layers 0 --kv-heads 8 --head-dim 128", "--layers: '0' is out of range"),
        ("--layers -80 --kv-heads 8 --head-dim 128", "--layers: '-80' is out of range"),
        ("--layers 1e40 --kv-heads 8 --head-dim 128", "--layers: '1e40'"),
        ("--layers 80 --kv-heads 8 --head-dim nan", "--head-dim: 'nan' is not a whole number"),
        ("--layers 80 --kv-heads 8 --head-dim 1.5", "--head-dim: '1.5' is not a whole number"),
        ("--model llama-3-8b --seq-len 0", "--seq-len: '0' is out of range"),
        ("--model llama-3-8b --block-size 0", "--block-size: '0' is out of range"),
        ("--model llama-3-8b --gpu-memory 80G", "write 80GiB (powers of 1024) or 80GB (powers of 1000)"),
        ("--model llama-3-8b --gpu-memory 0GiB", "'0GiB' is 0 bytes"),
        ("--model llama-3-8b --gpu-memory -1GiB", "expected one argument"),
        ("--model llama-3-8b --gpu-memory=-1GiB", "'-1GiB' is not a size"),
        ("--model llama-3-8b --gpu h100x", "did you mean 'h100-80gb'"),
        ("--model llama-3-8b --gpu a100", "valid: a10-24gb"),
        ("--model llama-3-8b --utilisation 1.5 --gpu-memory 80GiB", "--utilisation"),
        ("--model lama-3-8b", "did you mean 'llama-3-8b'"),
        ("--model ./nowhere", "./nowhere: no such directory"),
        ("--model llama-3-8b --dtype fp61", "did you mean 'fp16'"),
        ("--layers 1 --kv-heads 1 --head-dim 1 --gpu-memory 1GiB", "give --params"),
        ("--model llama-3-8b --max-model-len 100 --gpu l4", "--max-model-len 100 cannot hold --seq-len 4096"),
        ("--model llama-3-8b --gpu l4 --gpu-memory 24GiB", "not allowed with"),
        ("--model llama-3-8b --seqlen 4", "did you mean --seq-len"),
    ],
)
def test_bad_values_are_one_line(capsys: pytest.CaptureFixture[str], words: str, says: str) -> None:
    assert main(["calc", *words.split()]) == 2
    found = capsys.readouterr()
    assert found.out == ""
    assert found.err.startswith("kvtop: ")
    assert found.err.count("\n") == 1
    assert says in found.err


# Hidden size, feed-forward size, attention heads, vocabulary, and what else has weights, as published.
DENSE: dict[str, tuple[int, int, int, int, set[str]]] = {
    "gemma-2-2b": (2304, 9216, 8, 256_000, {"tied", "norms4"}),
    "gemma-2-9b": (3584, 14_336, 16, 256_000, {"tied", "norms4"}),
    "gemma-2-27b": (4608, 36_864, 32, 256_000, {"tied", "norms4"}),
    "gemma-3-27b": (5376, 21_504, 32, 262_208, {"tied", "norms4", "head_norms"}),
    "llama-2-7b": (4096, 11_008, 32, 32_000, set()),
    "llama-2-70b": (8192, 28_672, 64, 32_000, set()),
    "llama-3-8b": (4096, 14_336, 32, 128_256, set()),
    "llama-3-70b": (8192, 28_672, 64, 128_256, set()),
    "llama-3.1-8b": (4096, 14_336, 32, 128_256, set()),
    "llama-3.1-70b": (8192, 28_672, 64, 128_256, set()),
    "llama-3.1-405b": (16_384, 53_248, 128, 128_256, set()),
    "llama-3.2-1b": (2048, 8192, 32, 128_256, {"tied"}),
    "llama-3.2-3b": (3072, 8192, 24, 128_256, {"tied"}),
    "mistral-7b": (4096, 14_336, 32, 32_000, set()),
    "mixtral-8x7b": (4096, 14_336, 32, 32_000, {"experts8"}),
    "phi-4": (5120, 17_920, 40, 100_352, set()),
    "qwen2.5-0.5b": (896, 4864, 14, 151_936, {"tied", "qkv_bias"}),
    "qwen2.5-7b": (3584, 18_944, 28, 152_064, {"qkv_bias"}),
    "qwen2.5-72b": (8192, 29_568, 64, 152_064, {"qkv_bias"}),
    "qwen3-0.6b": (1024, 3072, 16, 151_936, {"tied", "head_norms"}),
    "qwen3-8b": (4096, 12_288, 32, 151_936, {"head_norms"}),
    "qwen3-32b": (5120, 25_600, 64, 151_936, {"head_norms"}),
    "smollm2-135m": (576, 1536, 9, 49_152, {"tied"}),
    "smollm2-360m": (960, 2560, 15, 49_152, {"tied"}),
    "smollm2-1.7b": (2048, 8192, 32, 49_152, {"tied"}),
    "tinyllama-1.1b": (2048, 5632, 32, 32_000, set()),
}


@pytest.mark.parametrize("name", MODELS)
def test_preset_parameters_add_up(name: str) -> None:
    preset = MODELS[name]
    hidden, ffn, heads, vocabulary, extra = DENSE[name]
    q, kv = heads * preset.head_dim, preset.num_kv_heads * preset.head_dim
    attention = hidden * q + 2 * hidden * kv + q * hidden
    feed_forward = 3 * hidden * ffn
    if "experts8" in extra:
        feed_forward = 8 * feed_forward + 8 * hidden  # and the router
    layer = attention + feed_forward + (4 if "norms4" in extra else 2) * hidden
    layer += (q + 2 * kv) * ("qkv_bias" in extra) + 2 * preset.head_dim * ("head_norms" in extra)
    embeddings = vocabulary * hidden * (1 if "tied" in extra else 2)
    assert preset.num_params == preset.num_layers * layer + embeddings + hidden


def test_gpu_presets_are_near_their_names() -> None:
    for name, gpu in GPUS.items():
        nominal = int(name.rpartition("-")[2].removesuffix("gb"))
        assert nominal * 1e9 < gpu.memory_bytes <= nominal * GIB * 1.01


# Local directories --------------------------------------------------------------------------------------------------


def model_dir(tmp_path: Path, config: dict[str, Any], tensors: dict[str, tuple[str, list[int]]] | None = None) -> Path:
    folder = tmp_path / "my-model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    if tensors is not None:
        header = {"__metadata__": {"format": "pt"}}
        header |= {n: {"dtype": d, "shape": s, "data_offsets": [0, 0]} for n, (d, s) in tensors.items()}  # type: ignore[misc]
        text = json.dumps(header).encode()
        (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text)
    return folder


LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "hidden_size": 64,
}


def test_a_local_directory_gives_shape_and_stored_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = model_dir(tmp_path, LLAMA, {"a": ("F32", [10, 10]), "b": ("BF16", [7]), "c": ("F8_E4M3", [3])})
    found = calc_json(capsys, "--model", str(folder), "--gpu-memory", "1MiB", "--seq-len", "8")
    assert (found["num_layers"], found["num_kv_heads"], found["head_dim"]) == (3, 2, 16)
    assert found["capacity"]["weight_bytes"] == 400 + 14 + 3
    assert calc_json(capsys, "--model", str(folder / "config.json"))["kv_bytes"] == 2 * 3 * 2 * 16 * 2 * 4096


@pytest.mark.parametrize(
    ("config", "window", "layers"),
    [
        (LLAMA | {"sliding_window": None}, None, 0),
        (LLAMA | {"model_type": "mistral", "sliding_window": 4096}, 4096, 3),
        (LLAMA | {"model_type": "qwen2", "sliding_window": 4096, "use_sliding_window": False}, None, 0),
        (LLAMA | {"model_type": "gemma2", "sliding_window": 4096, "num_hidden_layers": 5}, 4096, 3),
        (LLAMA | {"sliding_window": 8, "num_hidden_layers": 62, "sliding_window_pattern": 6}, 8, 52),
        (
            LLAMA | {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
            8,
            2,
        ),
        ({"text_config": LLAMA | {"sliding_window": 8}, "num_hidden_layers": 99}, 8, 3),
    ],
)
def test_windowed_layers_of_a_directory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], config: dict[str, Any], window: int | None, layers: int
) -> None:
    found = calc_json(capsys, "--model", str(model_dir(tmp_path, config)))
    assert (found["sliding_window"], found["num_sliding_layers"]) == (window, layers)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "not readable as JSON"),
        ("[1]", "holds a list"),
        ("{}", "num_attention_heads is missing"),
        ('{"num_attention_heads": 4, "num_hidden_layers": "x"}', "num_hidden_layers is 'x'"),
        ('{"num_attention_heads": 4, "kv_lora_rank": 512}', "latent attention"),
    ],
)
def test_a_broken_config_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, says: str) -> None:
    folder = model_dir(tmp_path, {})
    (folder / "config.json").write_text(text)
    assert main(["calc", "--model", str(folder)]) == 2
    err = capsys.readouterr().err
    assert says in err
    assert "config.json" in err
    assert err.count("\n") == 1


def test_a_directory_without_a_config_is_no_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["calc", "--model", str(tmp_path)]) == 2
    assert "is not a Hugging Face model directory" in capsys.readouterr().err


def test_a_directory_without_weights_needs_params(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(model_dir(tmp_path, LLAMA))
    assert main(["calc", "--model", folder, "--gpu", "l4"]) == 2
    assert "give --params" in capsys.readouterr().err
    assert (
        calc_json(capsys, "--model", folder, "--gpu", "l4", "--params", "1e6")["capacity"]["weight_bytes"] == 2_000_000
    )


def test_a_broken_weights_file_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = model_dir(tmp_path, LLAMA)
    (folder / "model.safetensors").write_bytes(b"\xff" * 20)
    assert main(["calc", "--model", str(folder)]) == 2
    assert "model.safetensors: broken safetensors header" in capsys.readouterr().err
