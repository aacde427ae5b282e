"""``/metrics`` over HTTP, from a thread of its own.

A client has one deadline for all of it, the request and taking the answer, however it spreads its bytes; and only so
many are served at a time.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from kvtop.engine.errors import UsageError

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
REQUEST_S = 10.0  # from connection to the last byte of the answer: a scrape's own default timeout
MAX_CONNECTIONS = 32  # each has a thread; one more is answered with 503
POLL_S = 0.1  # a deadline is noticed so late at most
BUSY = b"HTTP/1.0 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


class MetricsServer:
    """Answers ``GET /metrics`` with ``render()`` until ``close``. ``port`` 0 takes a free one; then ``port`` is it.

    Raises:
        UsageError: the address cannot be listened on.
    """

    def __init__(self, render: Callable[[], str], host: str, port: int) -> None:
        handler = type("Handler", (_Handler,), {"render": staticmethod(render)})
        try:
            self._server = _Server((host, port), handler)
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or error
            raise UsageError(f"--metrics-port {port}: cannot listen on {host}:{port}: {reason}") from None
        self.host, self.port = host, self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(POLL_S,), name="metrics", daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}/metrics"

    def close(self) -> None:
        """Whoever is still connected is cut off."""
        self._server.shutdown()
        self._server.server_close()
        self._server.cut_off(time.monotonic() + REQUEST_S)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self._due_s: dict[socket.socket, float] = {}  # of each connection that is open
        self._lock = threading.Lock()  # a connection is not closed by its thread while it is cut off
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            is_one_too_many = len(self._due_s) >= MAX_CONNECTIONS
            if not is_one_too_many:
                self._due_s[request] = time.monotonic() + REQUEST_S
        if not is_one_too_many:
            super().process_request(request, client_address)
            return
        with suppress(OSError):
            request.setblocking(False)
            request.send(BUSY)
        self.shutdown_request(request)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._due_s.pop(request, None)
            super().shutdown_request(request)

    def service_actions(self) -> None:
        self.cut_off(time.monotonic())

    def cut_off(self, now_s: float) -> None:
        """End the connections whose time is over by ``now_s``: their threads find that the client has left."""
        with self._lock:
            for request in [request for request, due_s in self._due_s.items() if due_s <= now_s]:
                with suppress(OSError):
                    request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that hangs up is no news; a terminal may belong to the screen."""


class _Handler(BaseHTTPRequestHandler):
    server_version, sys_version = "kvtop", ""
    render: Callable[[], str]

    def do_GET(self) -> None:
        if self.path.partition("?")[0] not in ("/metrics", "/metrics/"):
            self._answer(404, "not found: the metrics are at /metrics\n", "text/plain; charset=utf-8")
            return
        self._answer(200, self.render(), CONTENT_TYPE)

    do_HEAD = do_GET

    def _answer(self, status: int, text: str, kind: str) -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: a scrape a few seconds for as long as the run takes."""
