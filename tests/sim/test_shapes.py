"""Shapes for simulated runs: a config.json alone says what a preset says, and what it does not say is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvtop.cli.main import main
from kvtop.cost.presets import work_of
from kvtop.engine.errors import ModelError, UnknownName, UsageError
from kvtop.engine.executors.sim_cost import CostModel, Machine
from kvtop.model_shape import find_shape
from kvtop.presets import gpu_name

# As published: layers, heads, KV heads, hidden size, feed-forward size, vocabulary, whatever else counts.
CONFIGS: dict[str, dict[str, Any]] = {
    "smollm2-135m": {"model_type": "llama", "shape": (30, 9, 3, 576, 1536, 49_152), "tie_word_embeddings": True},
    "llama-3-8b": {"model_type": "llama", "shape": (32, 32, 8, 4096, 14_336, 128_256)},
    "qwen2.5-0.5b": {"model_type": "qwen2", "shape": (24, 14, 2, 896, 4864, 151_936), "tie_word_embeddings": True},
    "qwen3-32b": {"model_type": "qwen3", "shape": (64, 64, 8, 5120, 25_600, 151_936), "head_dim": 128},
}
KEYS = (
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "hidden_size",
    "intermediate_size",
    "vocab_size",
)


def config_file(tmp_path: Path, **values: Any) -> str:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(values))
    return str(path)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_config_costs_what_its_preset_costs(tmp_path: Path, name: str) -> None:
    values = dict(CONFIGS[name])
    values |= dict(zip(KEYS, values.pop("shape"), strict=True))
    assert work_of(find_shape(config_file(tmp_path, **values))) == work_of(find_shape(name))


def test_a_mixture_of_experts_without_a_preset_is_refused(tmp_path: Path) -> None:
    values = dict(zip(KEYS, (2, 4, 2, 64, 128, 1000), strict=True))
    path = config_file(tmp_path, model_type="mistral", num_local_experts=8, **values)
    with pytest.raises(ModelError, match="mixture of experts"):
        work_of(find_shape(path))


def test_a_family_whose_weights_are_not_known_is_refused(tmp_path: Path) -> None:
    values = dict(zip(KEYS, (2, 4, 2, 64, 128, 1000), strict=True))
    with pytest.raises(ModelError, match="number of parameters is not known"):
        work_of(find_shape(config_file(tmp_path, model_type="unheard-of", **values)))


def test_names_are_found_or_the_nearest_is_named() -> None:
    assert gpu_name("H100") == gpu_name("h100-80gb") == "h100-80gb"
    with pytest.raises(UnknownName, match="did you mean 'mi300x-192gb'"):
        gpu_name("mi300")
    with pytest.raises(UnknownName):
        gpu_name("a100")  # of 40 or of 80 GB?
    with pytest.raises(UsageError, match="no such directory or file"):
        find_shape("meta-llama/nowhere")


def test_calibrate_prints_constants_and_errors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A table made by a machine of 1 TB/s and 100 TFLOP/s is fitted without error."""
    machine = Machine(weight_bytes_s=1e12, flops_s=100e12, kv_bytes_s=1e12, attention_flops_s=100e12, step_ns=1e6)
    cost = CostModel(name="made", work=work_of(find_shape("llama-3-8b")), machine=machine)
    rows = ["tokens,batch,context,ms"]
    for batch in (1, 2, 8, 32):
        for context in (0, 100, 1000, 4000):
            rows += [
                f"{batch * count},{batch},{context},{cost.step_ns([(context, count)] * batch) / 1e6}"
                for count in (1, 16, 256, 512)
            ]
    path = tmp_path / "made.csv"
    path.write_text("\n".join(rows))
    output = tmp_path / "cost.json"
    assert main(["calibrate", str(path), "-m", "llama-3-8b", "-o", str(output)]) == 0
    lines = {line.split("  ")[0].strip(): line.split() for line in capsys.readouterr().out.splitlines() if line.strip()}
    assert lines["fitted"][1] == "64"
    assert float(lines["fitted"][2].rstrip("%")) < 2
    assert json.loads(output.read_text())["machine"]["flops_s"] == pytest.approx(100e12, rel=0.05)
    assert main(["calibrate", str(path)]) == 2
    assert "give --model" in capsys.readouterr().err
    assert main(["calibrate", str(path), str(path), "-m", "llama-3-8b"]) == 2
    assert "a table is fitted alone" in capsys.readouterr().err
    assert main(["calibrate", str(path), "-m", "llama-3-8b", "-o", str(tmp_path / "no" / "c.json")]) == 2
    assert "no such directory" in capsys.readouterr().err
