"""When the first token came and how many there were, whatever a server sends around them.

A client that counts events takes the chunk with the role for the first token, or lets the chunk with the usage
overwrite it; one that adds the details of a usage to it counts tokens twice. kvtop takes both from the
engine's tokens. In virtual time every step takes 10 ms and computes 16 tokens, so each answer here is exact.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from serving import Served, null_spec, serving

from kvtop.workloads.formats.registry import read_trace

CHAT_FRAME = len("user: \nassistant: ")
STEP_TOKENS = 16


@pytest.fixture
def narrow(tmp_path) -> Iterator[Served]:
    """A server of its own for each test: its histograms hold this test's request and no other."""
    engine = {"max_model_len": 4096, "max_batched_tokens": STEP_TOKENS}
    params = {"step_time_ns": 10_000_000}
    spec = null_spec(engine=engine, executor_params=params, record_workload=str(tmp_path / "came-in.jsonl"))
    with serving(spec) as server:
        yield server


def streamed(served: Served, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    text = served.post(path, body | {"stream": True, "stream_options": {"include_usage": True}}).text
    events = [line.removeprefix("data: ") for line in text.splitlines() if line]
    assert events.pop() == "[DONE]"
    return [json.loads(event) for event in events]


def seconds(served: Served, name: str) -> float:
    """The one value in a histogram."""
    served.until(f"{name}_seconds_count", 1)
    return served.metric(f"{name}_seconds_sum")


def test_ttft_is_neither_at_the_role_nor_at_the_usage(narrow: Served) -> None:
    """The role is sent before the step that ends at 0.01 s, the first token comes at 0.20 s, the usage after 0.90 s."""
    content = "x" * (20 * STEP_TOKENS - CHAT_FRAME)
    body = {"messages": [{"role": "user", "content": content}], "max_tokens": 71}
    chunks = streamed(narrow, "/v1/chat/completions", body)
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["prompt_tokens"] == 20 * STEP_TOKENS
    assert seconds(narrow, "vllm:time_to_first_token") == pytest.approx(0.20, abs=1e-9)
    assert seconds(narrow, "vllm:e2e_request_latency") == pytest.approx(0.90, abs=1e-9)


def test_a_chat_has_no_channel_but_its_content(narrow: Served) -> None:
    """So no token is left out of TTFT for having gone elsewhere: thoughts of a model are text like any other."""
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}
    deltas = [
        choice["delta"] for chunk in streamed(narrow, "/v1/chat/completions", body) for choice in chunk["choices"]
    ]
    assert set().union(*deltas) == {"role", "content"}
    (choice,) = narrow.post("/v1/chat/completions", body).json()["choices"]
    assert set(choice["message"]) == {"role", "content"}


def test_tokens_are_counted_once_and_details_add_nothing(narrow: Served, tmp_path) -> None:
    """102 tokens are 102 in the answer, the metrics and the trace of what came in; a detail is a part of a count."""
    body = {"prompt": list(range(4 * STEP_TOKENS)), "max_tokens": 102}
    first = narrow.post("/v1/completions", body).json()["usage"]
    details = {"cached_tokens": 0}
    assert first == {
        "prompt_tokens": 64, "completion_tokens": 102, "total_tokens": 166, "prompt_tokens_details": details
    }  # fmt: skip
    second = streamed(narrow, "/v1/completions", body)[-1]["usage"]
    assert second["prompt_tokens_details"]["cached_tokens"] > 0
    assert second | {"prompt_tokens_details": details} == first
    narrow.until("vllm:generation_tokens_total", 2 * 102)
    narrow.end()
    assert [(row.prompt_tokens, row.output_tokens) for row in read_trace(tmp_path / "came-in.jsonl").rows] == [
        (64, 102),
        (64, 102),
    ]
