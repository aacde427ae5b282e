"""The client that most people have, against the API."""

from __future__ import annotations

from collections.abc import Iterator

import openai
import pytest
from serving import Served

TEXT = "<1000> <1001> <1002> <1003> "


@pytest.fixture
def client(served: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as made:
        yield made


def test_the_model_is_listed(client: openai.OpenAI) -> None:
    (model,) = client.models.list().data
    assert model.id == "none"
    assert client.models.retrieve("none").id == "none"


def test_a_completion_has_text_usage_and_reason(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="none", prompt=[11, 12, 13], max_tokens=4)
    assert answer.choices[0].text == TEXT
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (3, 4, 7)


def test_a_stream_is_the_same_text_in_a_chunk_a_token(client: openai.OpenAI) -> None:
    chunks = list(client.completions.create(model="none", prompt=[11, 12, 13], max_tokens=4, stream=True))
    assert [chunk.choices[0].text for chunk in chunks] == ["<1000>", " <1001>", " <1002>", " <1003>"] or "".join(
        chunk.choices[0].text for chunk in chunks
    ) == TEXT
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None, None, None, "length"]
    assert len({chunk.id for chunk in chunks}) == 1


def test_a_chat_streams_its_role_first_and_its_usage_last(client: openai.OpenAI) -> None:
    messages: list = [
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "hi"}]},
    ]
    stream = client.chat.completions.create(
        model="none", messages=messages, max_completion_tokens=4, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == TEXT
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    num_bytes = len("system: be brief\nuser: hi\nassistant: ")
    assert (chunks[-1].usage.prompt_tokens, chunks[-1].usage.completion_tokens) == (num_bytes, 4)


def test_n_answers_and_several_prompts_have_an_index_each(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="none", prompt=[[1, 2], [3, 4], [5, 6]], n=2, max_tokens=2)
    assert [choice.index for choice in answer.choices] == list(range(6))
    assert [choice.text for choice in answer.choices] == ["<1000> <1001> ", "<101000> <101001> "] * 3
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (6, 12)


def test_what_the_cache_gave_is_in_the_usage(client: openai.OpenAI) -> None:
    prompt = list(range(5000, 5100))
    counts = []
    for _ in range(2):
        answer = client.completions.create(model="none", prompt=prompt, max_tokens=1)
        assert answer.usage is not None
        assert answer.usage.prompt_tokens_details is not None
        counts.append(answer.usage.prompt_tokens_details.cached_tokens)
    assert counts == [0, 96]  # six whole blocks of 16


def test_errors_arrive_as_the_clients_own(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="'gpt-4' does not exist: this server has 'none'"):
        client.completions.create(model="gpt-4", prompt="x")
    with pytest.raises(openai.BadRequestError, match=r"temperature is 3, expected a number from 0 to 2") as caught:
        client.completions.create(model="none", prompt="x", temperature=3)
    assert caught.value.param == "temperature"
    with pytest.raises(openai.BadRequestError, match="prompt of 5000 tokens") as caught:
        client.completions.create(model="none", prompt=[1] * 5000)
    assert caught.value.code == "context_length_exceeded"
