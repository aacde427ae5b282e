"""All layers as one list of jobs give what the layers give one by one, whatever the step is made of."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from plan_driver import compute, make_sequence, prompts_of, serve
from test_model_families import FAMILIES, build
from torch import Tensor

from kvtop.engine.executors import cpu_stack
from kvtop.engine.executors.torch_batch import PagedBatch, Row
from kvtop.engine.executors.torch_executor import TorchExecutor
from kvtop.kernels.cpu import jit

pytestmark = [
    pytest.mark.skipif(jit.missing() is not None, reason=f"no CPU kernels here: {jit.missing()}"),
    pytest.mark.skipif(jit.missing() is None and jit.lanes() > 16, reason="heads of 32 are no whole vectors here"),
]
WIDE = {"hidden_size": 64, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32}


def load(family: str, folder: Path, monkeypatch: pytest.MonkeyPatch, **sizes: object) -> TorchExecutor:
    monkeypatch.setitem(FAMILIES, family, {**FAMILIES[family], **WIDE, **sizes})
    build(family, folder)
    return TorchExecutor.load(str(folder), device="cpu")


def both(executor: TorchExecutor, rows: list[Row]) -> tuple[Tensor, Tensor]:
    """Hidden states after all layers at once and one by one, of the same random input."""
    stack = executor._model.model.layers
    assert isinstance(stack, cpu_stack.FusedStack)
    batches = [PagedBatch(executor.pool, rows) for _ in range(2)]
    with torch.inference_mode():
        x = torch.randn(1, sum(row.count for row in rows), 64)
        tables = executor._model.model.rotary_emb(x, batches[0].position_ids)
        at_once = stack(x, position_embeddings=tables, kv=batches[0])
        one_by_one = x
        for layer in stack:
            one_by_one = layer.forward(one_by_one, tables, kv=batches[1])
    assert batches[0].layers_seen == batches[1].layers_seen == len(stack)
    return at_once, one_by_one


@pytest.mark.parametrize("family", ["llama", "qwen2", "mistral"])
def test_at_once_is_one_by_one(family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Biases (qwen2), a window (mistral); fewer rows, more than the workspace has, another pool."""
    executor = load(family, tmp_path, monkeypatch)
    for size in (4, 5):
        executor.allocate(80, size)
        for counts in ((3,), (1, 1, 9), (150,), (2, 1)):
            ids = iter(range(80))
            rows = [Row(i, list(range(n)), 0, [next(ids) for _ in range(-(-n // size))]) for i, n in enumerate(counts)]
            at_once, one_by_one = both(executor, rows)
            assert (at_once - one_by_one).norm() <= 1e-5 * one_by_one.norm()


def test_a_copied_model_has_a_workspace_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Addresses of the original's memory would be read after it is gone."""
    executor = load("llama", tmp_path, monkeypatch)
    executor.allocate(8, 4)
    both(executor, [Row(0, [1, 2], 0, [0])])
    twin = copy.deepcopy(executor._model)
    assert executor._model.model.layers._kept._workspace is not None
    assert twin.model.layers._kept._workspace is None
    assert dict(twin.named_parameters()).keys() == dict(executor._model.named_parameters()).keys()


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1), (2, 5)])
def test_another_number_of_threads_from_step_to_step(
    before: int, after: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """How much is a task depends on it; what was not computed would be left over from the step before."""
    executor, threads = load("llama", tmp_path, monkeypatch, intermediate_size=2048), torch.get_num_threads()
    executor.allocate(8, 4)
    try:
        torch.set_num_threads(before)
        both(executor, [Row(0, [1, 2], 0, [0])])
        torch.set_num_threads(after)
        at_once, one_by_one = both(executor, [Row(0, [5, 7], 0, [0])])
        assert (at_once - one_by_one).norm() <= 1e-5 * one_by_one.norm()
    finally:
        torch.set_num_threads(threads)


def test_quantised_blocks_go_layer_by_layer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The jobs read fp32 blocks only; the same weights serve both kinds in turn."""
    plain = load("llama", tmp_path, monkeypatch)
    prompts = prompts_of((1, 17, 40), plain.vocab_size)
    want = serve(plain, prompts, 8)
    quantised = plain.with_kv_dtype("int8")
    quantised.allocate(4, 16)
    compute(quantised, make_sequence(prompts[1], [1, 3]), 0, 17, 1)
    assert serve(plain, prompts, 8) == want


@pytest.mark.parametrize(("family", "sizes"), [("gemma", {}), ("qwen3", {}), ("llama", {"intermediate_size": 100})])
def test_other_gates_norms_per_head_and_odd_widths_are_not_stacked(
    family: str, sizes: dict[str, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor = load(family, tmp_path, monkeypatch, **sizes)
    assert type(executor._model.model.layers) is torch.nn.ModuleList
    assert "3 layers" in executor.info.modules
