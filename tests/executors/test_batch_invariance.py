"""One prompt, however it is served: alone or among others, in chunks, paged or in one piece, cached or cold."""

from __future__ import annotations

from typing import Any

import pytest
from plan_driver import poison, prompts_of
from reference_greedy import Greedy

from kvtop.engine.api import Engine, EngineConfig, SamplingParams
from kvtop.engine.executors.torch_executor import TorchExecutor

WAYS: dict[str, dict[str, Any]] = {
    "alone": {},
    "in a batch of seven": {"others": 6},
    "contiguous": {"allocator": "contiguous-max", "others": 6},
    "chunks of 1": {"max_batched_tokens": 1},
    "chunks of 3 among others": {"max_batched_tokens": 3, "others": 6},
    "chunks of 64 among others": {"max_batched_tokens": 64, "others": 6},
    "cached": {"again": True},
    "cached among others": {"again": True, "others": 6, "max_batched_tokens": 64},
}


def served(executor: TorchExecutor, prompt: list[int], *, others: int = 0, again: bool = False, **config: Any):
    values = {"max_batched_tokens": 512, "max_model_len": 128, **config}
    executor.allocate(64, 16)
    poison(executor)
    engine = Engine(EngineConfig(num_blocks=64, block_size=16, **values), executor)
    params = SamplingParams(max_tokens=12)
    if again:
        engine.submit(prompt, params)
        engine.run()
    rid = engine.submit(prompt, params)
    for other in prompts_of([9 + 7 * i for i in range(others)], executor.vocab_size, seed=31):
        engine.submit(other, params)
    engine.run()
    assert engine.request(rid).cached_tokens == (32 if again else 0)
    return list(engine.request(rid).output)


@pytest.mark.parametrize("model", ["tiny", pytest.param("smollm2", marks=pytest.mark.slow)])
def test_the_tokens_are_the_same_in_every_way(model: str, request: pytest.FixtureRequest) -> None:  # M8
    executor: TorchExecutor = request.getfixturevalue(model)
    greedy: Greedy = request.getfixturevalue(f"{model}_greedy")
    before = greedy.excused
    for prompt in prompts_of((40, 48), executor.vocab_size, seed=21)[: 1 if model == "smollm2" else 2]:
        for way in WAYS.values():
            if len(prompt) == 48 and way.get("again"):
                continue
            greedy.assert_equal(prompt, served(executor, prompt, **way))
    assert greedy.excused - before <= 1, "more ties than chance explains"
