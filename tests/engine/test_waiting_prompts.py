"""Prompts that wait: read-only memory is kept as it is until its sequence starts, and serves as a list would."""

from __future__ import annotations

from array import array
from typing import Any

import pytest

from kvtop.engine.api import Engine, EngineConfig, NullExecutor, RequestSpec, SamplingParams
from kvtop.engine.errors import InvalidRequest

PROMPTS = [list(range(10, 19)), list(range(10, 16)), [7, 8, 9]]


def packed(prompt: list[int], code: str = "H") -> memoryview:
    return memoryview(array(code, prompt)).toreadonly()


def serve(make: Any, **config: Any) -> tuple[list[tuple[int, ...]], Any]:
    engine = Engine(EngineConfig(num_blocks=6, block_size=4, max_num_seqs=2, **config), NullExecutor())
    for index, prompt in enumerate(PROMPTS):
        params = SamplingParams(max_tokens=4, n=2 if index == 1 else 1)
        engine.submit_spec(RequestSpec(make(prompt), params, request_id=str(index)))
    engine.run()
    engine.check()
    return [tuple(engine.request(str(index)).tokens) for index in range(len(PROMPTS))], engine.counters()


@pytest.mark.parametrize("code", ["H", "I", "q"])
@pytest.mark.parametrize("policy", ["fcfs", "lpm", "sjf"])
def test_packed_prompts_are_served_as_lists_are(policy: str, code: str) -> None:
    assert serve(lambda prompt: packed(prompt, code), policy=policy) == serve(list, policy=policy)


def test_a_waiting_prompt_is_not_copied_and_a_running_one_has_room_for_its_answer() -> None:
    engine = Engine(EngineConfig(num_blocks=6, block_size=4, max_num_seqs=1), NullExecutor())
    prompts = [packed(prompt) for prompt in PROMPTS]
    for index, prompt in enumerate(prompts):
        engine.submit_spec(RequestSpec(prompt, SamplingParams(max_tokens=4), request_id=str(index)))
    engine.step()
    running, waiting = engine.scheduler.running[0], engine.scheduler.waiting.head()
    assert list(running.tokens) == [*PROMPTS[0], 1000]  # the null executor's first token
    assert waiting is not None
    assert waiting.tokens is prompts[1]
    assert engine.abort("1")
    assert tuple(engine.request("1").tokens) == tuple(PROMPTS[1])


def test_memory_that_can_change_is_copied() -> None:
    engine = Engine(EngineConfig(num_blocks=6, block_size=4), NullExecutor())
    prompt = array("H", [1, 2, 3])
    engine.submit_spec(RequestSpec(memoryview(prompt), SamplingParams(max_tokens=1), request_id="a"))
    prompt[0] = 99
    engine.run()
    assert engine.request("a").prompt == (1, 2, 3)


@pytest.mark.parametrize("prompt", [memoryview(b"abc").cast("c"), memoryview(array("d", [1.0])), memoryview(b"")])
def test_memory_without_tokens_is_refused(prompt: memoryview) -> None:
    engine = Engine(EngineConfig(num_blocks=6, block_size=4), NullExecutor())
    with pytest.raises(InvalidRequest):
        engine.submit_spec(RequestSpec(prompt, SamplingParams(max_tokens=1)))  # pyright: ignore[reportArgumentType]


def test_a_token_outside_the_vocabulary_is_found_in_packed_prompts() -> None:
    executor = NullExecutor()
    executor.vocab_size = 15  # type: ignore[attr-defined]
    engine = Engine(EngineConfig(num_blocks=6, block_size=4), executor)
    with pytest.raises(InvalidRequest, match="token id 18 is outside the vocabulary"):
        engine.submit_spec(RequestSpec(packed(PROMPTS[0]), SamplingParams(max_tokens=1)))
    with pytest.raises(InvalidRequest, match="token id -1"):
        Engine(EngineConfig(num_blocks=6), NullExecutor()).submit_spec(RequestSpec(packed([-1], "q")))
