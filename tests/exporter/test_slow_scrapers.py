"""Clients of ``/metrics`` that take their time: none holds a thread for ever, and there are never too many of them."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack

import httpx2
import pytest
from slow_client import LIMIT_S, dripping, said_until_closed  # pyright: ignore[reportMissingImports]

from kvtop.exporter import server as metrics
from kvtop.exporter.server import MetricsServer

GET = b"GET /metrics HTTP/1.1\r\nHost: x\r\n"


def serve(text: str = "up 1\n") -> MetricsServer:
    return MetricsServer(lambda: text, "127.0.0.1", 0)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> Iterator[MetricsServer]:
    monkeypatch.setattr(metrics, "REQUEST_S", 2.0)
    served = serve()
    yield served
    served.close()


def connect(served: MetricsServer) -> socket.socket:
    return socket.create_connection((served.host, served.port), timeout=LIMIT_S)


@pytest.mark.parametrize(
    ("first", "then"),
    [(b"", b""), (b"GET /met", b""), (b"GET /", b"a"), (GET + b"X-Long: ", b"a"), (GET, b"X: y\r\n"), (GET, b"")],
)
def test_a_request_that_is_not_there_in_time_is_closed(impatient: MetricsServer, first: bytes, then: bytes) -> None:
    with connect(impatient) as client:
        client.sendall(first)
        with dripping(client, then):
            assert said_until_closed(client) == b""
    assert httpx2.get(impatient.url).text == "up 1\n"


def test_a_request_in_pieces_that_is_there_in_time_is_answered() -> None:
    served = serve()
    with connect(served) as client:
        for piece in (GET[:7], GET[7:], b"\r\n"):
            client.sendall(piece)
            time.sleep(0.05)
        assert client.recv(12) == b"HTTP/1.0 200"
    served.close()


def until_free(served: MetricsServer, method: str = "GET") -> None:
    deadline = time.monotonic() + LIMIT_S
    while True:
        try:
            status = httpx2.request(method, served.url).status_code
        except httpx2.TransportError:  # what it sent was not read: it may see no more than a connection that is reset
            status = 0
        if status == 200:
            return
        assert time.monotonic() < deadline, status
        time.sleep(0.02)


def test_a_client_that_takes_nothing_of_its_answer_loses_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "REQUEST_S", 2.0)
    monkeypatch.setattr(metrics, "MAX_CONNECTIONS", 1)
    served = serve("x" * 50_000_000)  # more than any buffer on the way takes
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect((served.host, served.port))
        client.sendall(GET + b"\r\n")
        assert client.recv(12, socket.MSG_WAITALL) == b"HTTP/1.0 200"  # it has the place
        until_free(served, "HEAD")
    served.close()


def test_one_connection_too_many_is_told_so_and_a_place_is_free_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "MAX_CONNECTIONS", 3)
    monkeypatch.setattr(metrics, "REQUEST_S", 600.0)
    served = serve()
    threads = threading.active_count()
    with ExitStack() as stack:
        clients = [stack.enter_context(connect(served)) for _ in range(3)]
        for _ in range(20):  # they are taken in the order in which they came
            with connect(served) as client:
                assert client.recv(12, socket.MSG_WAITALL) == b"HTTP/1.0 503"
        assert threading.active_count() <= threads + 3
        clients[0].close()
        until_free(served)
    served.close()


def test_whoever_is_connected_is_cut_off_when_it_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "REQUEST_S", 600.0)
    served = serve()
    with connect(served) as client:
        assert httpx2.get(served.url).status_code == 200  # the one that came before it has been taken in
        served.close()
        assert client.recv(1) == b""


def test_a_closed_server_neither_listens_nor_runs() -> None:
    served = serve()
    assert httpx2.get(served.url).status_code == 200
    served.close()
    assert not served._thread.is_alive()
    with pytest.raises(ConnectionRefusedError):
        connect(served)
    again = MetricsServer(lambda: "up 2\n", served.host, served.port)
    assert httpx2.get(again.url).text == "up 2\n"
    again.close()
