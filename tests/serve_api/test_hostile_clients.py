"""Clients that mean harm, or have lost their minds: refused by name, and nothing is left of them."""

from __future__ import annotations

import json
import socket
import struct
import threading

import httpx2
import pytest
from prometheus_client.parser import text_string_to_metric_families
from serving import PROMPT, Served, serving

JSON = {"content-type": "application/json"}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"prompt": "x", "n": 10**9}, "n is 1000000000, expected an integer from 1 to 1024"),
        ({"prompt": "x", "n": -1}, "n is -1"),
        ({"prompt": "x", "n": 1.5}, "n is 1.5"),
        ({"prompt": "x", "max_tokens": -5}, "max_tokens is -5, expected an integer from 1"),
        ({"prompt": "x", "max_tokens": 10**30}, "an integer of more than 20 digits"),
        ({"prompt": "x", "max_tokens": 1e300}, "max_tokens is 1e+300"),
        ({"prompt": "x", "stop": [str(number) for number in range(1000)]}, "stop is a list of 1000"),
        ({"prompt": "x", "stop": ["s" * 1001]}, "stop is 'sss"),
        ({"prompt": "x", "stop_token_ids": [-1]}, "stop_token_ids is a list of 1"),
        ({"prompt": [1 << 63]}, "prompt is a list of 1"),
        ({"prompt": [[]]}, "at least one token"),
        ({"prompt": [[1], []]}, "at least one token"),
        ({"prompt": [[1]] * 129}, "prompt is a list of 129"),
        ({"prompt": [1] * 5000}, "4096"),
        ({"prompt": "x", "logit_bias": {"1": 100}}, "logit_bias"),
        ({"prompt": "x", "user": ["a"]}, "user is a list of 1"),
    ],
)
def test_numbers_without_measure_are_refused_by_name(served: Served, body: dict, message: str) -> None:
    answer = served.post("/v1/completions", body)
    assert answer.status_code == 400
    assert message in answer.json()["error"]["message"]


def test_bytes_that_are_no_utf8_are_no_json(served: Served) -> None:
    with served.client() as client:
        for data in (
            b'{"prompt": "\xff"}',
            b"\xff\xfe{}",
            b'{"prompt": "\\ud800"}',
            '{"prompt": "x"}'.encode("utf-16"),
        ):
            answer = client.post("/v1/completions", content=data, headers=JSON)
            assert answer.status_code == 400, data
            assert "\n" not in answer.json()["error"]["message"]


def test_a_name_with_line_breaks_makes_no_header(served: Served) -> None:
    evil = "m\r\nX-Evil: 1\r\n\r\n<html>"
    answer = served.post("/v1/completions", PROMPT | {"model": evil})
    assert answer.status_code == 404
    assert "x-evil" not in answer.headers
    with served.client() as client:
        answer = client.get("/v1/models/m%0d%0aX-Evil:%201")
        assert (answer.status_code, "x-evil" in answer.headers) == (404, False)


def test_a_served_name_with_anything_in_it_leaves_the_metrics_readable() -> None:
    name = 'a"b\\c\nd{}'
    with serving(model_name=name) as served:
        assert served.post("/v1/completions", PROMPT | {"model": name}).status_code == 200
        families = text_string_to_metric_families(served.plain.get("/metrics").text)
        names = {sample.labels.get("model_name") for family in families for sample in family.samples}
        assert names <= {name, None}
        assert name in names


def _post_raw(served: Served, pieces: list[bytes], reset: bool) -> bytes:
    """What comes back; ``reset``: the client goes at once, without a word."""
    host, port = served.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=20) as client:
        try:
            for piece in pieces:
                client.sendall(piece)
            if reset:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                return b""
            return client.recv(65_536)
        except (BrokenPipeError, ConnectionResetError):
            return b""


def _request(body: dict, length: int | None = None) -> bytes:
    data = json.dumps(body).encode()
    head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(data) if length is None else length}\r\n\r\n".encode() + data


@pytest.mark.parametrize("says_length", [True, False])
def test_ten_megabytes_are_refused_and_the_server_goes_on(served: Served, says_length: bool) -> None:
    data = b'{"prompt": "' + b"x" * (10 << 20) + b'"}'
    with served.client() as client:
        try:
            content = data if says_length else iter([data[at : at + 65_536] for at in range(0, len(data), 65_536)])
            answer = client.post("/v1/completions", content=content, headers=JSON)
            assert answer.status_code == 413
        except (httpx2.WriteError, httpx2.ReadError):
            pass  # the server has closed before all of it was sent, which is its right
    assert served.post("/v1/completions", PROMPT).status_code == 200


def test_a_length_that_is_a_lie_is_no_request(served: Served) -> None:
    for length in ("-1", "1e9", "9" * 400, "0x10"):
        head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {length}"
        said = _post_raw(served, [head.encode() + b"\r\n\r\n{}"], reset=False)
        assert said.startswith((b"HTTP/1.1 400", b"HTTP/1.1 413")), said
    assert served.post("/v1/completions", PROMPT).status_code == 200


def test_clients_that_are_gone_at_once_leave_nothing() -> None:
    bodies = [
        PROMPT | {"stream": True, "max_tokens": 400, "ignore_eos": True},
        PROMPT | {"max_tokens": 400, "n": 3, "ignore_eos": True},
    ]
    with serving() as served:
        threads = [
            threading.Thread(target=_post_raw, args=(served, [_request(bodies[number % 2])], True))
            for number in range(60)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        _post_raw(served, [_request(bodies[0], length=5000)], reset=True)  # in the middle of its body
        assert served.post("/v1/completions", PROMPT).status_code == 200
        served.assert_empty(2000)


def test_token_ids_that_no_model_has_are_taken_by_the_executor_that_has_none(served: Served) -> None:
    answer = served.post("/v1/completions", {"prompt": [(1 << 63) - 1] * 40, "max_tokens": 2})
    assert answer.status_code in (200, 400)
    assert served.post("/v1/completions", PROMPT).status_code == 200
