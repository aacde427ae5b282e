"""GGUF files: converted right, kept once, and never trusted when damaged."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf_files import HEADS, KV_HEADS, weights, write_gguf

from kvtop.engine.executors import gguf_convert, model_cache
from kvtop.engine.executors.torch_executor import TorchExecutor
from kvtop.kernels.cpu import ops

FIRST_Q = "model.layers.0.self_attn.q_proj.weight"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "kvtop" / "models"


@pytest.fixture
def gguf_file(tmp_path: Path) -> Path:
    write_gguf(tmp_path / "small.gguf")
    return tmp_path / "small.gguf"


def load(path: Path) -> tuple[TorchExecutor, list[str]]:
    said: list[str] = []
    return TorchExecutor.load(str(path), device="cpu", progress=lambda text, _: said.append(text)), said


def converted(said: list[str]) -> bool:
    return any("converting" in text for text in said)


def only_entry(cache: Path) -> Path:
    assert [p.name for p in cache.iterdir() if p.name.startswith(".")] == []  # no temporary folders are left
    (entry,) = cache.iterdir()
    return entry


@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
@pytest.mark.parametrize("quantised", [False, True])
def test_weights_equal_those_transformers_reads(tmp_path: Path, architecture: str, quantised: bool) -> None:
    """The other reader is transformers' own, which does not build a model without accelerate but reads the tensors."""
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    from kvtop.engine.executors.quiet import quiet

    path = tmp_path / "model.gguf"
    write_gguf(path, architecture, quantised=quantised)
    ours = gguf_convert.convert(path, lambda text, fraction: None).state
    with quiet():
        config = AutoConfig.from_pretrained(path.parent, gguf_file=path.name)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
    theirs = load_gguf_checkpoint(str(path), return_tensors=True, model_to_load=model)["tensors"]
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_rows_of_llama_heads_are_put_into_halves(gguf_file: Path) -> None:
    state = gguf_convert.convert(gguf_file, lambda text, fraction: None).state
    stored = weights("llama")["blk.0.attn_q.weight"]
    size = len(stored) // HEADS
    for head in range(HEADS):
        rows = stored[head * size : (head + 1) * size]
        want = np.concatenate([rows[0::2], rows[1::2]])
        np.testing.assert_array_equal(state[FIRST_Q][head * size : (head + 1) * size].numpy(), want)


def test_gemma_norms_are_stored_one_above(tmp_path: Path) -> None:
    from types import SimpleNamespace

    import gguf

    tensor = SimpleNamespace(
        name="output_norm.weight", data=np.full(4, 1.5, dtype=np.float32), tensor_type=gguf.GGMLQuantizationType.F32
    )
    config = SimpleNamespace(num_attention_heads=HEADS, num_key_value_heads=KV_HEADS)
    (pair,) = gguf_convert._weight(tensor, {tensor.name: "model.norm.weight"}, "gemma2", config)
    assert pair[1].tolist() == [0.5] * 4


def weights_of(executor: TorchExecutor) -> list[torch.Tensor]:
    """Those that are parameters still, and those that the CPU kernels have copies of."""
    products = [p for m in executor._model.modules() for p in vars(m).values() if isinstance(p, ops.Packed)]
    return [*executor._model.state_dict().values(), *(weight for product in products for weight in product.weights)]


def same_weights(some: list[torch.Tensor], others: list[torch.Tensor]) -> bool:
    return len(some) > 0 and all(torch.equal(a, b) for a, b in zip(some, others, strict=True))


def test_converted_once_then_read_from_the_cache(gguf_file: Path, cache: Path) -> None:
    first, said = load(gguf_file)
    assert converted(said)
    only_entry(cache)
    second, said = load(gguf_file)
    assert not converted(said)
    assert same_weights(weights_of(first), weights_of(second))


def test_progress_goes_forward_to_the_end(gguf_file: Path) -> None:
    seen: list[float] = []
    TorchExecutor.load(str(gguf_file), device="cpu", progress=lambda _, f: seen.append(f) if f is not None else None)
    assert seen == sorted(seen)
    assert seen[0] == 0.0
    assert seen[-1] > 0.9


def test_tokenizer_and_chat_template_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "talks.gguf"
    write_gguf(path, with_tokenizer=True)
    fresh, _ = load(path)
    kept, said = load(path)
    assert not converted(said)
    assert kept.encode_chat("abc") == fresh.encode_chat("abc")
    assert kept.decode(kept.encode_chat("abc")) == "abc!"
    assert kept.eos_token_ids == (2,)


def damage_cut(entry: Path) -> None:
    os.truncate(entry / "model.safetensors", 1000)


def damage_middle(entry: Path) -> None:
    path = entry / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)


def damage_config(entry: Path) -> None:
    (entry / "config.json").write_text("{}")


def damage_missing(entry: Path) -> None:
    (entry / "model.safetensors").unlink()


def damage_manifest(entry: Path) -> None:
    (entry / model_cache.MANIFEST).write_text(json.dumps({"files": []}))


@pytest.mark.parametrize("damage", [damage_cut, damage_middle, damage_config, damage_missing, damage_manifest])
def test_a_damaged_entry_is_made_again(gguf_file: Path, cache: Path, damage) -> None:
    first, _ = load(gguf_file)
    want = [weight.clone() for weight in weights_of(first)]
    del first
    damage(only_entry(cache))
    again, said = load(gguf_file)
    assert converted(said)
    assert same_weights(weights_of(again), want)
    assert model_cache.is_whole(only_entry(cache))


def test_a_changed_file_is_converted_again(gguf_file: Path) -> None:
    load(gguf_file)
    os.utime(gguf_file, ns=(1, 1))
    assert converted(load(gguf_file)[1])


def test_a_cache_that_cannot_be_written_is_only_a_notice(
    gguf_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    executor, said = load(gguf_file)
    (notice,) = executor.info.notices
    assert notice.startswith("the converted model could not be kept in ")
    assert notice in said
    executor.allocate(4, 4)


def test_a_disk_that_fills_up_leaves_nothing_behind(
    gguf_file: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self, folder: Path) -> None:
        (folder / "model.safetensors").write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(gguf_convert.ConvertedModel, "write", full)
    executor, _ = load(gguf_file)
    assert "No space left on device" in executor.info.notices[0]
    assert list(cache.iterdir()) == []


def test_writers_at_the_same_time_all_get_a_whole_entry(cache: Path) -> None:
    barrier, folders = threading.Barrier(4), []

    def write(folder: Path) -> None:
        (folder / "config.json").write_text("{}")
        barrier.wait(timeout=20)  # all are ready to rename at once

    def work() -> None:
        folders.append(model_cache.publish("same", write))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    assert folders == [model_cache.entry("same")] * 4
    assert model_cache.is_whole(only_entry(cache))


def test_folders_of_dead_processes_are_cleaned_up_and_live_ones_kept(cache: Path) -> None:
    cache.mkdir(parents=True)
    dead, live = (cache / f".{model_cache.entry('k').name}.{name}" for name in ("dead", "live"))
    dead.mkdir()
    live.mkdir()
    os.utime(dead, (1, 1))

    def write(folder: Path) -> None:
        (folder / "a").write_text("a")

    model_cache.publish("k", write)
    assert not dead.exists()
    assert live.exists()
