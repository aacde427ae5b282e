"""The engine over a real model: tokens equal transformers' own greedy ``generate``, whatever the engine does."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from plan_driver import poison, prompts_of
from reference_greedy import Greedy

from kvtop.engine.api import Engine, EngineConfig, SamplingParams
from kvtop.engine.executors.torch_executor import TorchExecutor

LENGTHS = (1, 15, 16, 17, 33, 100, 257, 600)
BLOCK_SIZE = 16
BUDGETS = (16, 64, 2048)


@dataclass(frozen=True)
class Served:
    outputs: list[list[int]]
    engine: Engine


def serve(executor: TorchExecutor, prompts: list[list[int]], max_tokens: int, **config) -> Served:
    """All prompts submitted at once, run until idle over a pool that starts full of NaN."""
    options = EngineConfig(**{"block_size": BLOCK_SIZE, "max_num_seqs": 8, **config})
    executor.allocate(options.num_blocks, options.block_size, options.host_blocks)
    poison(executor)
    engine = Engine(options, executor)
    ids = [engine.submit(p, SamplingParams(max_tokens=max_tokens)) for p in prompts]
    engine.run()
    engine.check()
    return Served([list(engine.request(rid).output) for rid in ids], engine)


def blocks_for(tokens: int) -> int:
    return -(-tokens // BLOCK_SIZE)


def roomy(max_tokens: int) -> int:
    return sum(blocks_for(n + max_tokens) for n in LENGTHS) + 8


def tight(max_tokens: int) -> int:
    """The longest request fits alone and all shorter prompts together, but not their outputs: somebody is preempted."""
    num_blocks = blocks_for(LENGTHS[-1] + max_tokens)
    others = LENGTHS[:-1]
    assert sum(blocks_for(n) for n in others) <= num_blocks < sum(blocks_for(n + max_tokens) for n in others)
    return num_blocks


def assert_all_equal(greedy: Greedy, prompts: list[list[int]], served: Served, max_tokens: int) -> None:
    before = greedy.excused
    for prompt, tokens in zip(prompts, served.outputs, strict=True):
        assert len(tokens) == max_tokens
        greedy.assert_equal(prompt, tokens)
    excused = greedy.excused - before
    print(f"excused ties: {excused} of {len(prompts)} prompts")
    assert excused <= 1, "more ties than chance explains"


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("pool", ["roomy", "tight"])
@pytest.mark.parametrize("caching", [True, False], ids=["cached", "uncached"])
def test_paged(tiny: TorchExecutor, tiny_greedy: Greedy, budget: int, pool: str, caching: bool) -> None:
    prompts = prompts_of(LENGTHS, tiny.vocab_size)
    served = serve(
        tiny,
        prompts,
        48,
        num_blocks=roomy(48) if pool == "roomy" else tight(48),
        max_batched_tokens=budget,
        prefix_caching=caching,
    )
    assert_all_equal(tiny_greedy, prompts, served, 48)
    assert (served.engine.counters().preemptions > 0) == (pool == "tight")


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("host_blocks", [5, 64])
def test_preemption_by_swap(tiny: TorchExecutor, tiny_greedy: Greedy, budget: int, host_blocks: int) -> None:
    prompts = prompts_of(LENGTHS, tiny.vocab_size)
    options = {"prefix_caching": False, "preemption": "swap", "host_blocks": host_blocks}
    served = serve(tiny, prompts, 48, num_blocks=tight(48), max_batched_tokens=budget, **options)
    assert_all_equal(tiny_greedy, prompts, served, 48)
    counters = served.engine.counters()
    assert counters.preemptions > 0
    assert counters.recomputed_tokens == 0 or host_blocks == 5


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("allocator", ["contiguous-max", "contiguous-pow2", "contiguous-oracle"])
@pytest.mark.parametrize("pool", ["roomy", "tight"])
def test_contiguous(tiny: TorchExecutor, tiny_greedy: Greedy, budget: int, allocator: str, pool: str) -> None:
    """Whole regions are reserved at admission, so a small pool makes requests wait and never preempts."""
    prompts = prompts_of(LENGTHS, tiny.vocab_size)
    served = serve(
        tiny,
        prompts,
        12,
        num_blocks=8 * 64 if pool == "roomy" else 2 * 64,
        max_model_len=640,
        max_batched_tokens=budget,
        allocator=allocator,
    )
    assert_all_equal(tiny_greedy, prompts, served, 12)


@pytest.mark.parametrize("budget", BUDGETS)
def test_shared_prefixes_are_taken_from_the_cache_and_change_nothing(
    tiny: TorchExecutor, tiny_greedy: Greedy, budget: int
) -> None:
    common, *tails = prompts_of((100, 1, 15, 16, 17, 33), tiny.vocab_size)
    prompts = [common + tail for tail in tails]
    options = {"num_blocks": 80, "max_batched_tokens": budget, "prefix_caching": True}
    served = serve(tiny, prompts, 8, **options)
    assert_all_equal(tiny_greedy, prompts, served, 8)
    again = [served.engine.submit(p, SamplingParams(max_tokens=8)) for p in prompts]
    served.engine.run()
    for prompt, rid in zip(prompts, again, strict=True):
        tiny_greedy.assert_equal(prompt, served.engine.request(rid).output)
        assert served.engine.request(rid).cached_tokens == (len(prompt) - 1) // BLOCK_SIZE * BLOCK_SIZE


@pytest.mark.parametrize("block_size", [1, 5, 64])
def test_other_block_sizes(tiny: TorchExecutor, tiny_greedy: Greedy, block_size: int) -> None:
    prompts = prompts_of((1, 4, 5, 6, 63, 64, 65), tiny.vocab_size)
    num_blocks = sum(-(-(len(p) + 8) // block_size) for p in prompts) + 2
    served = serve(tiny, prompts, 8, num_blocks=num_blocks, block_size=block_size, max_batched_tokens=32)
    assert_all_equal(tiny_greedy, prompts, served, 8)


@pytest.mark.parametrize("length", [7, 8])
def test_greedy_branches_copy_on_write_and_equal_the_single_answer(
    tiny: TorchExecutor, tiny_greedy: Greedy, length: int
) -> None:
    prompt = prompts_of((length,), tiny.vocab_size)[0]
    tiny.allocate(24, 4)
    poison(tiny)
    engine = Engine(EngineConfig(num_blocks=24, block_size=4), tiny)
    engine.submit(prompt, SamplingParams(max_tokens=9, n=3), request_id="a")
    engine.run()
    engine.check()
    for rid in ("a", "a#1", "a#2"):
        tiny_greedy.assert_equal(prompt, engine.request(rid).output)
    assert engine.counters().copies == (2 if length % 4 else 0)


def test_seeded_branches_differ_and_survive_preemption_unchanged(tiny: TorchExecutor) -> None:
    prompts = prompts_of((20, 40, 60), tiny.vocab_size)
    params = SamplingParams(max_tokens=40, n=2, seed=7, temperature=1.0)

    def outputs(num_blocks: int) -> tuple[list[tuple[int, ...]], int]:
        tiny.allocate(num_blocks, 4)
        poison(tiny)
        engine = Engine(EngineConfig(num_blocks=num_blocks, block_size=4, max_batched_tokens=64), tiny)
        ids = [engine.submit(p, params, request_id=f"r{i}") for i, p in enumerate(prompts)]
        engine.run()
        return [engine.request(r).output for rid in ids for r in (rid, f"{rid}#1")], engine.counters().preemptions

    free, none = outputs(200)
    squeezed, some = outputs(52)
    assert none == 0
    assert some > 0
    assert len(set(free)) == 6
    assert squeezed == free


def test_tiny_answers_are_not_degenerate(tiny: TorchExecutor, tiny_greedy: Greedy) -> None:
    """Equal tokens prove nothing where the model says the same whatever it is asked."""
    answers = [tuple(tiny_greedy.generate(p, 24)[0]) for p in prompts_of(LENGTHS, tiny.vocab_size)]
    assert len(set(answers)) == len(answers)
    assert all(len(set(answer)) > 8 for answer in answers)


@pytest.mark.parametrize("case", ["cached-64", "preempted-2048", "contiguous-16"])
def test_smollm2(smollm2: TorchExecutor, smollm2_greedy: Greedy, case: str) -> None:
    """The same on the real model; the tiny one goes through the whole matrix above."""
    kind, budget = case.split("-")
    max_tokens = 8 if kind == "cached" else 24
    prompts = prompts_of(LENGTHS if kind == "cached" else LENGTHS[:6], smollm2.vocab_size, seed=11)
    options = {
        "cached": {"num_blocks": roomy(max_tokens), "prefix_caching": True},
        "preempted": {"num_blocks": 17, "prefix_caching": False},
        "contiguous": {"num_blocks": 4 * 8, "max_model_len": 128, "allocator": "contiguous-max"},
    }[kind]
    served = serve(smollm2, prompts, max_tokens, max_batched_tokens=int(budget), **options)
    assert_all_equal(smollm2_greedy, prompts, served, max_tokens)
    assert (served.engine.counters().preemptions > 0) == (kind == "preempted")


@pytest.mark.slow
@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("kind", ["cached-roomy", "cached-tight", "uncached-roomy", "uncached-tight", "contiguous"])
def test_smollm2_whole_matrix(smollm2: TorchExecutor, smollm2_greedy: Greedy, kind: str, budget: int) -> None:
    """Eight lengths together on the real model: caching, chunk budgets, forced preemption, paged and contiguous."""
    prompts = prompts_of(LENGTHS, smollm2.vocab_size, seed=11)
    caching, _, pool = kind.partition("-")
    options = (
        {"num_blocks": 3 * 41, "max_model_len": 656, "allocator": "contiguous-max"}
        if kind == "contiguous"
        else {"num_blocks": roomy(48) if pool == "roomy" else tight(48), "prefix_caching": caching == "cached"}
    )
    served = serve(smollm2, prompts, 48, max_batched_tokens=budget, **options)
    assert_all_equal(smollm2_greedy, prompts, served, 48)
    assert (served.engine.counters().preemptions > 0) == (pool == "tight")


def test_smollm2_knows_the_capital_of_france(smollm2: TorchExecutor) -> None:
    prompt = smollm2.encode_chat("What is the capital of France?")
    smollm2.allocate(16, 16)
    engine = Engine(EngineConfig(num_blocks=16, eos_token_ids=smollm2.eos_token_ids), smollm2)
    rid = engine.submit(prompt, SamplingParams(max_tokens=24, ignore_eos=False))
    engine.run()
    view = engine.request(rid)
    assert "Paris" in smollm2.decode(list(view.output))
    assert view.finish_reason == "stop"
