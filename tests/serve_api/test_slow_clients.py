"""Clients that take their time: none holds a connection or a place for ever, and there are never too many of them."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack

import pytest
from serving import PROMPT, Served, null_spec, serving
from slow_client import LIMIT_S, dripping, said_until_closed  # pyright: ignore[reportMissingImports]

from kvtop.serve_api import session as api_session

BODY = json.dumps(PROMPT).encode()
POST = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
LENGTH = b"Content-Length: %d\r\n\r\n" % len(BODY)


def connect(served: Served) -> socket.socket:
    host, port = served.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=LIMIT_S)


def answered(client: socket.socket, then: bytes = b"") -> bytes:
    """All that comes until the server closes, while ``then`` goes out byte by byte, over and over."""
    with dripping(client, then):
        return said_until_closed(client)


def after_an_answer(client: socket.socket) -> None:
    """One request on the connection is answered, and it is kept open."""
    client.sendall(POST + LENGTH + BODY)
    said = b""
    while b'"usage"' not in said:
        piece = client.recv(65_536)
        assert piece
        said += piece


@pytest.fixture(scope="module")
def impatient():
    with serving(request_s=1.0, max_concurrency=2) as served:
        yield served


@pytest.mark.parametrize(
    ("before", "first", "then"),
    [
        (None, b"", b""),  # it says nothing at all
        (None, b"GET /hea", b""),
        (None, POST + b"X-Long: ", b"a"),
        (None, POST, b"X: y\r\n"),
        (None, POST + b"Content-Length: 100000\r\n\r\n", b" "),
        (None, POST + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n"),
        (None, POST + LENGTH + BODY[:-1], b""),
        (after_an_answer, POST + b"X-Long: ", b"a"),
        (after_an_answer, POST + b"Content-Length: 100000\r\n\r\n", b" "),
    ],
)
def test_a_request_that_is_not_there_in_time_is_told_so_and_closed(
    impatient: Served, before: Callable[[socket.socket], None] | None, first: bytes, then: bytes
) -> None:
    with connect(impatient) as client:
        if before is not None:
            before(client)
        client.sendall(first)
        said = answered(client, then)
    assert said.startswith(b"HTTP/1.1 408 Request Timeout\r\n")
    error = json.loads(said.partition(b"\r\n\r\n")[2])["error"]
    assert error["message"] == "the request was not whole after 1 s (--request-timeout)"
    assert impatient.post("/v1/completions", PROMPT).status_code == 200  # the place is free again


def test_what_is_refused_before_it_is_whole_is_closed_too(impatient: Served) -> None:
    """The answer has been given: the rest of the body is waited for no longer than any other."""
    with connect(impatient) as client:
        client.sendall(POST.replace(b"application/json", b"text/plain") + b"Content-Length: 100000\r\n\r\n")
        said = answered(client, b" ")
    assert said.startswith(b"HTTP/1.1 415 ")
    assert said.count(b"HTTP/1.1") == 1


def test_a_request_in_pieces_that_is_there_in_time_is_answered() -> None:
    with serving(request_s=LIMIT_S) as served, connect(served) as client:
        for piece in (POST[:20], POST[20:] + LENGTH, BODY[:5], BODY[5:]):
            client.sendall(piece)
            time.sleep(0.05)
        assert client.recv(12) == b"HTTP/1.1 200"


def until_status(served: Served, status: int) -> None:
    deadline = time.monotonic() + LIMIT_S
    while (found := served.post("/v1/completions", PROMPT).status_code) != status:
        assert time.monotonic() < deadline, found
        time.sleep(0.02)


def test_bodies_that_arrive_take_the_places_of_requests() -> None:
    with serving(request_s=600, max_concurrency=2) as served, ExitStack() as stack:
        clients = [stack.enter_context(connect(served)) for _ in range(2)]
        for client in clients:
            client.sendall(POST + LENGTH + BODY[:5])
        until_status(served, 429)
        with connect(served) as client:
            client.sendall(POST + LENGTH + BODY[:5])
            assert client.recv(12) == b"HTTP/1.1 429"  # before its body is there: none is held that has no place
        clients[0].close()
        until_status(served, 200)
        clients[1].sendall(BODY[5:])
        assert clients[1].recv(12) == b"HTTP/1.1 200"


def test_connections_on_which_nothing_has_arrived_are_not_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_session, "SPARE", 2)
    with serving(request_s=600, max_concurrency=3) as served, ExitStack() as stack:
        clients = [stack.enter_context(connect(served)) for _ in range(5)]
        deadline = time.monotonic() + LIMIT_S
        while True:  # the server may not have taken all five in yet
            with connect(served) as client:
                client.settimeout(0.5)
                try:
                    said = client.recv(12)
                except TimeoutError:
                    said = b""
            if said:
                break
            assert time.monotonic() < deadline
        assert said == b"HTTP/1.1 429"
        clients[0].close()
        until_status(served, 200)


def test_a_client_that_takes_nothing_of_its_answer_loses_it() -> None:
    """It would hold the only place for as long as it likes."""
    spec = null_spec(8000, engine={"max_model_len": 110_000})
    body = json.dumps(PROMPT | {"max_tokens": 100_000, "stream": True, "ignore_eos": True}).encode()
    with serving(spec, request_s=5.0, max_concurrency=1) as served:
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        with client:
            host, port = served.url.removeprefix("http://").split(":")
            client.connect((host, int(port)))
            client.sendall(POST + b"Content-Length: %d\r\n\r\n" % len(body) + body)
            until_status(served, 429)
            until_status(served, 200)
