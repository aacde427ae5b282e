"""``/metrics`` over HTTP, from a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from kvtop.engine.errors import UsageError

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
TIMEOUT_S = 10.0  # of a client that says nothing


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
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.1,), name="metrics", daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}/metrics"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that hangs up is no news; a terminal may belong to the screen."""


class _Handler(BaseHTTPRequestHandler):
    server_version, sys_version = "kvtop", ""
    timeout = TIMEOUT_S
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
