"""What the server lets in, and how it says no."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
from pathlib import Path

import httpx2
import pytest
from serving import PROMPT, Served, null_spec, serving

from kvtop.engine.errors import UsageError
from kvtop.engine.events import Abort, Pause, RequestEvent, Resume, RunStarted
from kvtop.run.session import RunSession
from kvtop.serve_api.broker import Broker
from kvtop.serve_api.errors import ApiError
from kvtop.serve_api.fields import Asked
from kvtop.serve_api.session import ApiSession, ServeOptions
from kvtop.workloads.load import load_workload
from kvtop.workloads.spec import WorkloadSpec


def error(answer: httpx2.Response) -> dict:
    """The error of a refusal, in OpenAI's shape."""
    found = answer.json()["error"]
    assert set(found) == {"message", "type", "param", "code"}
    return found


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        ({"prompt": "x", "max_tokens": "4"}, "max_tokens", "max_tokens is '4', expected an integer from 1"),
        ({"prompt": "x", "max_tokens": 0}, "max_tokens", "max_tokens is 0"),
        ({"prompt": "x", "max_tokens": True}, "max_tokens", "max_tokens is true"),
        ({"prompt": "x", "n": 0}, "n", "n is 0, expected an integer from 1 to 1024"),
        ({"prompt": "x", "top_p": 0}, "top_p", "top_p is 0, expected a number above 0 and at most 1"),
        ({"prompt": "x", "seed": 2**70}, "seed", "an integer of more than 20 digits"),
        ({"prompt": "x", "stop": ["a", ""]}, "stop", "stop is '', expected a text"),
        ({"prompt": "x", "logprobs": 5}, "logprobs", "logprobs is 5, which is not supported: leave it out, or give"),
        ({"prompt": "x", "echo": True}, "echo", "echo is true, which is not supported"),
        ({"prompt": "x", "temprature": 1}, "temprature", "unknown field 'temprature'; did you mean 'temperature'?"),
        ({"prompt": []}, "prompt", "prompt is a list of 0"),
        ({"prompt": [1, "a"]}, "prompt", "prompt is a list of 2"),
        ({"prompt": [-1]}, "prompt", "prompt is a list of 1"),
        ({"prompt": None}, "prompt", "prompt is null"),
        ({"prompt": ""}, "prompt", "at least one token"),
        ({"prompt": "x", "stream_options": {"include_usage": True}}, "stream_options", "stream is not true"),
        ({"prompt": "x", "min_tokens": 20, "max_tokens": 10}, "min_tokens", "at most max_tokens (10)"),
        ({"prompt": "x", "stop": "a"}, None, "stop strings need a tokenizer"),
        ([1], None, "the body is a list of 1, expected an object"),
    ],
)
def test_a_bad_field_is_named_with_what_was_found(
    served: Served, body: object, param: str | None, message: str
) -> None:
    answer = served.post("/v1/completions", body)
    assert answer.status_code == 400
    assert message in error(answer)["message"]
    assert error(answer)["param"] == param


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([], "messages is a list of 0"),
        ([{"role": "wizard", "content": "x"}], "messages[0].role is 'wizard', expected one of system, developer"),
        ([{"role": "user"}], "messages[0].content is null"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "messages[0].content[0] is 'image_url'"),
    ],
)
def test_a_bad_message_is_named_by_its_place(served: Served, messages: list, message: str) -> None:
    answer = served.post("/v1/chat/completions", {"messages": messages})
    assert answer.status_code == 400
    assert message in error(answer)["message"]


def test_neutral_values_of_what_is_not_supported_are_accepted(served: Served) -> None:
    neutral = {
        "logprobs": None,
        "echo": False,
        "best_of": 1,
        "repetition_penalty": 1.0,
        "logit_bias": {},
        "suffix": None,
    }
    assert served.post("/v1/completions", PROMPT | neutral).status_code == 200


def test_pages_methods_and_types_that_do_not_exist(served: Served) -> None:
    assert error(served.post("/v2/completions", PROMPT))["message"] == "there is no '/v2/completions'"
    with served.client() as client:
        wrong = client.get("/v1/completions")
        assert (wrong.status_code, wrong.headers["allow"]) == (405, "POST")
        assert error(wrong) == {
            "message": "'GET' at '/v1/completions', expected POST", "type": "invalid_request_error", "param": None,
            "code": "method_not_allowed",
        }  # fmt: skip
        answer = client.post("/v1/completions", content=b"{", headers={"content-type": "application/json"})
        assert (answer.status_code, error(answer)["code"]) == (400, "invalid_json")
        answer = client.post("/v1/completions", content=json.dumps(PROMPT), headers={"content-type": "text/plain"})
        assert answer.status_code == 415
        deep = b'{"prompt":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
        assert (
            client.post("/v1/completions", content=deep, headers={"content-type": "application/json"}).status_code
            == 400
        )


def test_limits() -> None:
    """One server for all that options limit: key, length of a body, requests at a time, the engine's queue."""
    spec = null_spec(engine={"max_queue": 2, "max_model_len": 512})
    options = {"api_key": "s3cret", "model_name": "mine", "max_body_bytes": 2000, "max_concurrency": 3}
    with serving(spec, **options) as served, served.client() as client:
        assert client.get("/v1/models").status_code == 401
        wrong = client.post("/v1/completions", json=PROMPT, headers={"Authorization": "Bearer nope"})
        assert (wrong.status_code, error(wrong)["code"]) == (401, "invalid_api_key")
        assert client.get("/health").status_code == client.get("/metrics").status_code == 200
        client.headers["Authorization"] = "Bearer s3cret"
        assert client.post("/v1/completions", json=PROMPT | {"model": "mine"}).status_code == 200
        _long_bodies(client)
        _too_many(served, client)


def _long_bodies(client: httpx2.Client) -> None:
    """Refused whether it says its length or not."""
    headers = {"content-type": "application/json"}
    answer = client.post("/v1/completions", content=b"x" * 2001, headers=headers)
    assert (answer.status_code, error(answer)["code"]) == (413, "request_too_large")
    answer = client.post("/v1/completions", content=iter([b"x" * 1500] * 2), headers=headers)
    assert answer.status_code == 413


def _too_many(served: Served, client: httpx2.Client) -> None:
    """While the engine is paused two fit its queue; a third may be open, and is refused by the engine."""
    served.session.send(Pause())
    results: list[int] = []

    def ask() -> None:
        results.append(client.post("/v1/completions", json=PROMPT).status_code)

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    served.until("kvtop_requests_waiting", 2, reason="not_looked_at")
    full = client.post("/v1/completions", json=PROMPT)
    assert (full.status_code, full.headers["retry-after"]) == (429, "1")
    assert "max_queue is reached" in error(full)["message"]
    one_more = client.post("/v1/completions", json={"prompt": [[1], [2], [3]]})  # one HTTP request, refused as a whole
    assert one_more.status_code == 429
    served.session.send(Resume())
    for thread in threads:
        thread.join()
    assert results == [200, 200]
    served.until_at_least("vllm:admission_rejections_total", 2)
    served.assert_empty(2000)


def test_more_requests_than_the_most_at_a_time_are_told_to_come_back() -> None:
    broker = Broker(RunSession(null_spec()), lambda events: None, max_concurrency=0)
    broker.started = RunStarted(run_id="x", manifest={})
    with pytest.raises(ApiError, match="0 requests are arriving or being answered") as caught:
        broker.submit(Asked(chat=False, model=None, prompts=["x"]))
    answer = caught.value.response()
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")


def test_stopping_lets_answers_become_complete() -> None:
    with serving(drain_s=60) as served:
        lines: list[str] = []
        reader = threading.Thread(target=lambda: lines.extend(_stream_lines(served, PROMPT | {"max_tokens": 3000})))
        reader.start()
        served.until_at_least("vllm:generation_tokens_total", 1)
        assert served.end().status == "interrupted"
        reader.join(60)
        assert lines[-1] == "data: [DONE]"
        assert sum('"text"' in line for line in lines) == 3000


def test_answers_that_are_cut_off_say_so() -> None:
    """By someone who aborts a request, and by a server that has waited long enough."""
    with serving(drain_s=0.1) as served:
        served.session.send(Pause())
        results: list[httpx2.Response] = []
        thread = threading.Thread(target=lambda: results.append(served.post("/v1/completions", PROMPT)))
        thread.start()
        served.until("kvtop_requests_waiting", 1, reason="not_looked_at")
        ids: list[str] = []
        while not ids:
            served.events += served.session.poll(1)
            ids = [event.request_id for event in served.events if isinstance(event, RequestEvent)]
        served.session.send(Abort(ids[0]))
        thread.join(60)
        assert (results[0].status_code, error(results[0])["code"]) == (503, "aborted")
        lines: list[str] = []
        reader = threading.Thread(target=lambda: lines.extend(_stream_lines(served, PROMPT)))
        reader.start()
        served.until("kvtop_requests_waiting", 1, reason="not_looked_at")
        assert served.end().status == "interrupted"
        reader.join(60)
        assert lines[-1] == "data: [DONE]"
        assert json.loads(lines[-2].removeprefix("data: "))["choices"][0]["finish_reason"] == "abort"


def _stream_lines(served: Served, body: dict) -> list[str]:
    with served.client() as client, client.stream("POST", "/v1/completions", json=body | {"stream": True}) as answer:
        return [line for line in answer.iter_lines() if line]


def test_an_engine_that_dies_ends_what_was_asked() -> None:
    with serving() as served:
        served.session.send(Pause())
        results: list[httpx2.Response] = []
        thread = threading.Thread(target=lambda: results.append(served.post("/v1/completions", PROMPT)))
        thread.start()
        served.until("kvtop_requests_waiting", 1, reason="not_looked_at")
        assert served.session.pid is not None
        os.kill(served.session.pid, signal.SIGKILL)
        thread.join(60)
        assert results[0].status_code == 500
        assert "the engine has stopped" in error(results[0])["message"]
        end = served.end()
        assert (end.status, end.exit_code) == ("failed", 1)


def test_a_port_in_use_is_one_line() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=f"cannot listen on 127.0.0.1:{port}: "):
            ApiSession(null_spec(), ServeOptions(port=port)).start()


def test_ids_are_the_servers_own(served: Served) -> None:
    headers = {"X-Request-Id": "../../etc#1\x7f"}
    ids = {served.post("/v1/completions", PROMPT, headers=headers).json()["id"] for _ in range(5)}
    assert len(ids) == 5
    assert all(each.startswith("cmpl-") and each[5:].isalnum() for each in ids)


def test_what_came_in_is_recorded_and_can_be_replayed(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    shared = list(range(40))
    with serving(null_spec(record_workload=str(path))) as served:
        for own in range(3):
            served.post("/v1/completions", {"prompt": shared + [100 + own] * 30, "max_tokens": 5 + own, "user": "u"})
        served.post("/v1/completions", {"prompt": "secret", "max_tokens": 2, "n": 2, "temperature": 0.5})
    assert "secret" not in path.read_text()
    workload = load_workload(WorkloadSpec(name=str(path)), vocab_size=1000)
    rows = workload.rows
    assert [(row.prompt_tokens, row.output_tokens, row.n) for row in rows] == [
        (70, 5, 1),
        (70, 6, 1),
        (70, 7, 1),
        (6, 2, 2),
    ]
    assert [row.tenant for row in rows] == ["u", "u", "u", ""]
    assert [len(row.hash_ids) for row in rows] == [4, 4, 4, 0]
    assert {row.hash_ids[:2] for row in rows[:3]} == {(0, 1)}  # 32 of the 40 shared tokens are whole blocks
    assert len({row.hash_ids[2] for row in rows[:3]}) == 3
    source = workload.source()
    made = [list(spec.prompt) for spec in source.pop_due(10**15)]
    assert made[0][:32] == made[1][:32] == made[2][:32]
    assert made[0][32:48] != made[1][32:48]
