"""Sizing the pool: a measured step, the formula, and what is said when nothing is left."""

from __future__ import annotations

import pytest

from kvtop.engine.config import EngineConfig
from kvtop.engine.errors import ConfigError
from kvtop.engine.executors.memory import MIB, MemoryProfile, profile
from kvtop.engine.executors.torch_executor import TorchExecutor
from kvtop.engine.recorder import Recorder
from kvtop.engine.worker import DEFAULT_KV_MEMORY_BYTES, build_engine

GIB = 1024 * MIB


def test_what_is_left_is_the_share_less_weights_and_one_step() -> None:
    found = MemoryProfile(total=80 * GIB, weights=16 * GIB, activation=2 * GIB)
    assert found.kv_bytes(0.9) == 54 * GIB
    assert found.kv_bytes(0.5) == 22 * GIB


@pytest.mark.parametrize("total", [19 * GIB, 20 * GIB])
def test_nothing_left_is_one_line_with_the_numbers(total: int) -> None:
    with pytest.raises(ConfigError, match=r"0\.9 of .* MiB, less weights 16,384 MiB and a step's peak 2,048 MiB, is"):
        MemoryProfile(total, weights=16 * GIB, activation=2 * GIB).kv_bytes(0.9)


def test_a_larger_step_takes_more_and_the_pool_is_not_counted() -> None:
    executor = TorchExecutor.load("tiny", device="cpu")
    small = profile(executor, EngineConfig(num_blocks=1, max_batched_tokens=16))
    large = profile(executor, EngineConfig(num_blocks=1, max_batched_tokens=1900, max_model_len=2048))
    assert small.weights == large.weights == executor.info.weight_bytes
    assert large.activation > small.activation
    # 1,900 tokens of hidden states and logits of one row: far below the attention matrix of one layer in fp32.
    assert large.activation < 1900 * 1900 * 4 * 64
    assert small.total > 0


def test_without_sizes_a_cpu_gets_at_most_the_default_and_run_json_the_figures() -> None:
    built = build_engine(
        engine={"max_batched_tokens": 64}, executor="torch", executor_params={}, model="tiny", device="cpu",
        num_blocks=None, kv_memory_bytes=None, recorder=Recorder(), progress=lambda text, fraction: None,
    )  # fmt: skip
    info = built.info
    assert info["kv_pool_bytes"] <= DEFAULT_KV_MEMORY_BYTES
    assert info["num_blocks"] == info["kv_pool_bytes"] // info["kv_bytes_per_block"]
    assert info["weight_bytes"] > 0
    assert info["activation_bytes"] >= 0


def test_a_budget_below_one_block_is_told_with_both_numbers() -> None:
    with pytest.raises(ConfigError, match=r"KV memory of 10 bytes holds no block: one block of 16 tokens takes"):
        build_engine(
            engine={}, executor="torch", executor_params={}, model="tiny", device="cpu",
            num_blocks=None, kv_memory_bytes=10, recorder=Recorder(), progress=lambda text, fraction: None,
        )  # fmt: skip


def test_memory_that_grows_while_a_step_is_measured_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    free = iter([4 * GIB, 5 * GIB])
    monkeypatch.setattr("kvtop.engine.executors.memory._CpuMeter.available", lambda self: next(free))
    found = profile(TorchExecutor.load("tiny", device="cpu"), EngineConfig(num_blocks=1, max_batched_tokens=16))
    assert found.freed == GIB
    assert found.notice.startswith("free memory grew by 1,024 MiB while a step was measured")
    assert MemoryProfile(80 * GIB, 16 * GIB, 2 * GIB, freed=MIB).notice == ""
    assert found.kv_bytes(0.9) < 4 * GIB, "what was given back is not counted on"


def test_memory_that_shrinks_while_a_step_is_measured_makes_no_negative_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    free = iter([4 * GIB, GIB])
    monkeypatch.setattr("kvtop.engine.executors.memory._CpuMeter.available", lambda self: next(free))
    monkeypatch.setattr("kvtop.engine.executors.memory._CpuMeter.peak", lambda self: -5 * MIB)
    found = profile(TorchExecutor.load("tiny", device="cpu"), EngineConfig(num_blocks=1, max_batched_tokens=16))
    assert (found.freed, found.activation, found.notice) == (0, 0, "")
