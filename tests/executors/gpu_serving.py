"""Small models served by the Triton path: interpreted on the CPU, compiled on a GPU under the marker ``gpu``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from plan_driver import prompts_of
from reference_greedy import Greedy
from test_model_families import FAMILIES, build, reference

from kvtop.engine.api import Engine, EngineConfig, SamplingParams
from kvtop.engine.executors.torch_executor import TorchExecutor
from kvtop.engine.windows import Windows

# Small, for the interpreter takes 20 ms a program; what shapes do is tested with the kernels.
SMALL = {"num_hidden_layers": 2, "sliding_window": 8, "num_attention_heads": 3, "num_key_value_heads": 1}
MODELS: dict[str, tuple[dict[str, Any], Windows]] = {
    "llama": ({"num_hidden_layers": 1}, (None,)),  # 6 query heads over 2 KV heads
    "mistral": ({**SMALL, "num_hidden_layers": 1}, (8,)),
    "gemma2": (SMALL, (None, 8)),  # every other layer has a window; scores are capped
}
LENGTHS = (1, 6, 19)
NUM_OUTPUT = 4
BLOCK_SIZE = 4
DEVICES = ("cpu", pytest.param("cuda", marks=pytest.mark.gpu))


@dataclass(frozen=True)
class Model:
    """``executor`` computes on the device by Triton's kernels, ``greedy`` on the CPU by transformers alone."""

    executor: TorchExecutor
    greedy: Greedy
    windows: Windows


def load(name: str, device: str, folder: Path) -> Model:
    """In fp32 on every device: tokens must be those of ``generate``."""
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    changes, windows = MODELS[name]
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(FAMILIES, name, {**FAMILIES[name], **changes})
        build(name, folder)
    asked = "triton" if device == "cpu" else "auto"
    executor = TorchExecutor.load(str(folder), device=device, dtype="fp32", attention=asked)
    return Model(executor, Greedy(reference(folder)), windows)


def fill_with_nan(executor: TorchExecutor, blocks: list[int] | None = None) -> None:
    """NaN, in quantised blocks as scales, in all blocks or in some."""
    for tensor in executor.pool.tensors:
        where = slice(None) if blocks is None else blocks
        tensor[where] = float("nan") if tensor.is_floating_point() else 0x7F


@dataclass
class Served:
    """What an engine did with ``prompts``: answers by prompt, and how many steps held what."""

    engine: Engine
    ids: list[str]
    answers: list[list[int]] = field(default_factory=list)
    num_steps: int = 0
    num_decode_only: int = 0
    num_mixed: int = 0


def start(
    executor: TorchExecutor, windows: Windows = (None,), max_num_seqs: int | None = None, **config: Any
) -> Engine:
    """An engine over a pool that starts full of NaN; with ``max_num_seqs`` decode steps are captured."""
    options = {"num_blocks": 80, "block_size": BLOCK_SIZE, "max_batched_tokens": 64, "max_model_len": 64, **config}
    settings = EngineConfig(kv_groups=windows, max_num_seqs=max_num_seqs or 8, **options)
    executor.allocate(settings.num_blocks, BLOCK_SIZE, settings.host_blocks, windows, max_num_seqs)
    fill_with_nan(executor)
    return Engine(settings, executor)


def serve(engine: Engine, executor: TorchExecutor, prompts: list[list[int]], **params: Any) -> Served:
    """Run until idle. After every step whatever nobody holds is NaN: a stale read would show at once."""
    ids = [engine.submit(p, SamplingParams(**{"max_tokens": NUM_OUTPUT, **params})) for p in prompts]
    served = Served(engine, ids)
    while engine.has_requests:
        counts = [chunk.count for chunk in engine.step().plan.chunks]
        engine.check()
        fill_with_nan(executor, list(engine.allocator.pool.fresh))
        served.num_steps += 1
        served.num_decode_only += max(counts, default=2) == 1
        served.num_mixed += min(counts, default=2) == 1 < max(counts, default=1)
    served.answers = [list(engine.request(rid).output) for rid in ids]
    return served


def assert_equal(model: Model, prompts: list[list[int]], served: Served) -> None:
    """Token for token; of a few hundred a tie or two is chance."""
    before = model.greedy.excused
    for prompt, tokens in zip(prompts, served.answers, strict=True):
        model.greedy.assert_equal(prompt, tokens)
    assert model.greedy.excused - before <= 1
    assert len({tuple(answer) for answer in served.answers}) > len(prompts) // 2  # not always the same answer


def prompts(model: Model, lengths: tuple[int, ...] = LENGTHS, seed: int = 5) -> list[list[int]]:
    return prompts_of(lengths, model.executor.vocab_size, seed)


def rerun(run: Callable[[], None]) -> Callable[[], None]:
    """Stands in for a captured graph: computes the step again from its static tensors."""
    run()
    return run
