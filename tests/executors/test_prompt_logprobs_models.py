"""Log-probabilities of prompts from a real model equal those of transformers' own forward pass."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from plan_driver import make_sequence, poison, prompts_of

from kvtop.engine.api import Engine, EngineConfig, SamplingParams
from kvtop.engine.errors import ModelError
from kvtop.engine.executors.prompt_scores import prompt_scores
from kvtop.engine.executors.torch_executor import TorchExecutor
from kvtop.engine.types import Chunk

TOLERANCE = 2e-4  # fp32; the values are about -10


def own(model: Any, prompt: list[int]) -> torch.Tensor:
    """log_softmax of the model's own logits at each token of the prompt but the first."""
    with torch.inference_mode(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scores = model(torch.tensor([prompt])).logits[0].double().log_softmax(-1)
    return scores[torch.arange(len(prompt) - 1), torch.tensor(prompt[1:], dtype=torch.long)]


def engine_over(executor: TorchExecutor, num_blocks: int, **config: Any) -> Engine:
    options = EngineConfig(num_blocks=num_blocks, block_size=16, **config)
    executor.allocate(num_blocks, 16, options.host_blocks)
    poison(executor)
    return Engine(options, executor)


def assert_close(model: Any, prompt: list[int], scores: tuple[float, ...] | None) -> None:
    assert scores is not None
    assert len(scores) == len(prompt) - 1
    assert torch.tensor(scores, dtype=torch.float64).allclose(own(model, prompt), atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("budget", [1, 7, 64, 1024])
def test_batched_in_chunks_and_beside_requests_that_do_not_ask(
    tiny: TorchExecutor, tiny_model: Any, budget: int
) -> None:
    prompts = prompts_of((1, 2, 16, 17, 33) if budget == 1 else (1, 2, 16, 17, 33, 100, 257), tiny.vocab_size)
    engine = engine_over(tiny, 80, max_batched_tokens=budget)
    params = SamplingParams(max_tokens=3, prompt_logprobs=True)
    asking = [engine.submit(p, params) for p in prompts]
    others = [engine.submit(p[::-1], SamplingParams(max_tokens=3)) for p in prompts]
    engine.run()
    for prompt, rid in zip(prompts, asking, strict=True):
        assert_close(tiny_model, prompt, engine.request(rid).prompt_logprobs)
    assert all(engine.request(rid).prompt_logprobs is None for rid in others)


def test_the_second_of_two_equal_prompts_takes_nothing_from_the_cache(tiny: TorchExecutor, tiny_model: Any) -> None:
    prompt = prompts_of((50,), tiny.vocab_size)[0]  # M7
    engine = engine_over(tiny, 20)
    outputs = []
    for asks in (False, True, True, False):
        rid = engine.submit(prompt, SamplingParams(max_tokens=4, prompt_logprobs=asks))
        engine.run()
        view = engine.request(rid)
        assert view.cached_tokens == (48 if outputs and not asks else 0)
        outputs.append(view.output)
        if asks:
            assert_close(tiny_model, prompt, view.prompt_logprobs)
    assert len(set(outputs)) == 1


@pytest.mark.parametrize("config", [{}, {"preemption": "swap", "host_blocks": 20}])
def test_after_a_preemption_in_the_middle_of_the_prompt(
    tiny: TorchExecutor, tiny_model: Any, config: dict[str, Any]
) -> None:
    """Twelve of its 13 blocks are computed when the other one has grown into the last."""
    short, long = prompts_of((20, 200), tiny.vocab_size)
    engine = engine_over(tiny, 15, max_batched_tokens=12, **config)
    engine.submit(short, SamplingParams(max_tokens=40), request_id="a")
    engine.submit(long, SamplingParams(max_tokens=3, prompt_logprobs=True), request_id="b")
    while not engine.request("b").preemptions:
        engine.step()
    assert len(engine.request("b").prompt_logprobs or ()) == 192
    engine.run()
    assert_close(tiny_model, long, engine.request("b").prompt_logprobs)


@pytest.mark.parametrize("branches", [{"n": 3, "temperature": 1.0, "seed": 1}, {"num_beams": 3}])
def test_branches_and_beams(tiny: TorchExecutor, tiny_model: Any, branches: dict[str, Any]) -> None:
    prompt = prompts_of((37,), tiny.vocab_size)[0]
    engine = engine_over(tiny, 20, max_batched_tokens=10)
    rid = engine.submit(prompt, SamplingParams(max_tokens=4, prompt_logprobs=True, **branches))
    engine.run()
    assert_close(tiny_model, prompt, engine.request(rid).prompt_logprobs)


def test_smollm2(smollm2: TorchExecutor, smollm2_model: Any) -> None:
    prompt = smollm2.encode_chat("Name three rivers of France, and say where each of them ends.")
    engine = engine_over(smollm2, 8, max_batched_tokens=11)
    rid = engine.submit(prompt, SamplingParams(max_tokens=1, prompt_logprobs=True))
    engine.run()
    assert_close(smollm2_model, prompt, engine.request(rid).prompt_logprobs)


def test_a_value_that_is_not_finite_names_the_request() -> None:
    seq = make_sequence([0, 1, 2], [0])
    seq.request.prompt_logprobs = []
    logits = torch.zeros(2, 4)
    assert prompt_scores(logits, [Chunk(seq.seq_id, 0, 3, 1, seq)])[seq.seq_id] == pytest.approx([-1.3862944] * 2)
    logits[1, 2] = -float("inf")
    with pytest.raises(ModelError, match=f"prompt token of {seq.seq_id} .* not finite"):
        prompt_scores(logits, [Chunk(seq.seq_id, 0, 3, 1, seq)])
