"""The host tier under a real model: what is brought back from host memory is what was evicted, quantised or not."""

from __future__ import annotations

import pytest
from plan_driver import prompts_of
from reference_greedy import Greedy

from kvtop.engine.api import Engine, EngineConfig, SamplingParams
from kvtop.engine.executors.torch_executor import TorchExecutor

BLOCK_SIZE = 16
NUM_OUTPUT = 8
SMALL, ROOMY = 8, 120  # blocks; the longest request takes 7


def poison(executor: TorchExecutor) -> None:
    """NaN wherever a tensor can hold it, on the device and in host memory."""
    for pool in (executor.pool, executor._host):
        for tensor in pool.tensors if pool is not None else ():
            tensor.fill_(float("nan") if tensor.is_floating_point() else 0x7F)


def prompts(vocab_size: int) -> list[list[int]]:
    """Three stems of four to five blocks, each asked for three times with another end, one after the other."""
    stems = prompts_of((64, 80, 70), vocab_size)
    tails = prompts_of((9, 1, 17), vocab_size)
    return [stem + tail for tail in tails for stem in stems]


def build(executor: TorchExecutor, num_blocks: int, **config: object) -> Engine:
    options = EngineConfig(num_blocks=num_blocks, block_size=BLOCK_SIZE, **config)  # type: ignore[arg-type]
    executor.allocate(num_blocks, BLOCK_SIZE, options.host_blocks + options.host_cache_blocks)
    poison(executor)
    return Engine(options, executor)


def one_by_one(engine: Engine, executor: TorchExecutor) -> tuple[list[list[int]], list[int]]:
    """Outputs and cached tokens of one request after the other."""
    outputs, cached = [], []
    for prompt in prompts(executor.vocab_size):
        rid = engine.submit(prompt, SamplingParams(max_tokens=NUM_OUTPUT))
        engine.run()
        engine.check()
        view = engine.request(rid)
        outputs.append(list(view.output))
        cached.append(view.cached_tokens)
    return outputs, cached


@pytest.mark.parametrize("kv_dtype", ["auto", "int8", "fp8"])
def test_tokens_are_those_of_a_pool_that_evicts_nothing(tiny: TorchExecutor, kv_dtype: str) -> None:
    executor = tiny.with_kv_dtype(kv_dtype)
    roomy = one_by_one(build(executor, ROOMY), executor)
    engine = build(executor, SMALL, host_cache_blocks=40)
    small = one_by_one(engine, executor)
    assert small == roomy  # the same tokens are found, so every step computes the same
    counters = engine.counters()
    assert counters.host_hit_tokens >= 300
    assert counters.hit_tokens + counters.host_hit_tokens == sum(roomy[1])
    assert counters.evictions > 20


@pytest.mark.parametrize("host_cache_blocks", [3, 40])
def test_tokens_of_requests_together_equal_generate(
    tiny: TorchExecutor, tiny_greedy: Greedy, host_cache_blocks: int
) -> None:
    engine = build(
        tiny, 14, host_cache_blocks=host_cache_blocks, preemption="swap", host_blocks=6, max_num_seqs=3,
        max_batched_tokens=40,
    )  # fmt: skip
    asked = prompts(tiny.vocab_size)
    ids = [engine.submit(prompt, SamplingParams(max_tokens=24)) for prompt in asked]
    engine.run()
    engine.check()
    before = tiny_greedy.excused
    for rid, prompt in zip(ids, asked, strict=True):
        tiny_greedy.assert_equal(prompt, list(engine.request(rid).output))
    assert tiny_greedy.excused - before <= 1, "more ties than chance explains"
    assert engine.counters().preemptions > 0
    assert engine.counters().host_hit_tokens > 0
