"""Many clients at a time, some of whom go away: no request is lost, no block is left behind."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import httpx2
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from serving import PROMPT, Served, null_spec, serving

from kvtop.serve_api.errors import ApiError
from kvtop.serve_api.fields import CHAT, COMPLETION, NEUTRAL, parse

NUM_CLIENTS, NUM_BLOCKS = 100, 400


@pytest.fixture
def client(served: Served) -> Iterator[httpx2.Client]:
    with served.client() as made:
        yield made


async def _client(client: httpx2.AsyncClient, number: int) -> str:
    """Every third one waits for the whole answer, every third leaves in the middle of its stream."""
    body = {"prompt": [number % 7] * 40 + [number], "max_tokens": 20 + number % 50}
    if number % 3 == 0:
        answer = await client.post("/v1/completions", json=body)
        assert answer.status_code == 200
        assert answer.json()["usage"]["completion_tokens"] == body["max_tokens"]
        return "whole"
    chunks = 0
    async with client.stream("POST", "/v1/completions", json=body | {"stream": True}) as answer:
        async for line in answer.aiter_lines():
            chunks += '"text"' in line
            if number % 3 == 1 and chunks == 5:
                return "left"
    assert chunks == body["max_tokens"]
    return "streamed"


async def _all(url: str) -> list[str]:
    limits = httpx2.Limits(max_connections=NUM_CLIENTS)
    async with httpx2.AsyncClient(base_url=url, timeout=60, limits=limits) as client:
        return await asyncio.gather(*(_client(client, number) for number in range(NUM_CLIENTS)))


def test_a_hundred_clients_lose_nothing_and_leave_nothing() -> None:
    """More than the pool holds: some wait."""
    with serving(null_spec(NUM_BLOCKS)) as served:
        results = asyncio.run(_all(served.url))
        assert (results.count("whole"), results.count("streamed"), results.count("left")) == (34, 33, 33)
        served.assert_empty(NUM_BLOCKS)
        ended = served.metric("vllm:request_success_total")
        aborted = served.metric("vllm:request_success_total", finished_reason="abort")
        assert ended == NUM_CLIENTS
        assert ended - aborted >= 67


def test_a_client_that_leaves_frees_its_blocks() -> None:
    """Both kinds of answers would go on for a hundred thousand tokens."""
    spec = null_spec(8000, engine={"max_model_len": 110_000})
    with serving(spec) as served:
        for more in ({"stream": True}, {}):
            body = PROMPT | {"max_tokens": 100_000} | more
            with served.client() as client:
                try:
                    with client.stream("POST", "/v1/completions", json=body, timeout=0.3) as answer:
                        next(answer.iter_lines())
                except httpx2.TimeoutException:
                    assert not more
            served.assert_empty(8000)
        assert served.metric("vllm:request_success_total", finished_reason="abort") == 2


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
_NEAR = st.dictionaries(st.sampled_from([*COMPLETION, *CHAT, *NEUTRAL]), _JSON, max_size=6)
_MESSAGE = st.fixed_dictionaries({"role": st.sampled_from(["user", "system", "x"]), "content": _JSON})
_BODIES = st.one_of(
    _JSON,
    _NEAR,
    _NEAR.map(lambda body: {"prompt": "abc", "max_tokens": 2} | body),
    st.tuples(_NEAR, st.lists(_MESSAGE, max_size=3)).map(lambda pair: pair[0] | {"messages": pair[1]}),
)


@settings(max_examples=150, deadline=None)
@given(_BODIES, st.booleans())
def test_any_body_is_read_or_refused_by_name(body: object, chat: bool) -> None:
    refusal: ApiError | None = None
    try:
        asked = parse(json.dumps(body).encode(), chat=chat)
        assert asked.messages if chat else asked.prompts
    except ApiError as error:
        refusal = error
    if refusal is not None:
        assert (refusal.status, "\n" in refusal.message) == (400, False)
        assert len(refusal.message) < 400


JSON = {"content-type": "application/json"}
PATHS = ("/v1/completions", "/v1/chat/completions")


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(body=_BODIES, path=st.sampled_from(PATHS))
def test_no_body_is_a_fault_of_the_server(client: httpx2.Client, body: object, path: str) -> None:
    if isinstance(body, dict) and not isinstance(body.get("max_tokens"), int):
        body = body | {"max_tokens": 3}
    answer = client.post(path, content=json.dumps(body), headers=JSON)
    assert answer.status_code in (200, 400, 404), answer.text


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=60), path=st.sampled_from(PATHS))
def test_no_bytes_are_a_fault_of_the_server(client: httpx2.Client, data: bytes, path: str) -> None:
    assert client.post(path, content=data, headers=JSON).status_code == 400
