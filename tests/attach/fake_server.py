"""A server that is none: serves metrics over HTTP and KV events over ZeroMQ, on loopback, from what it is told.

As a program it plays the recorded server of ``data/`` in real time:

    python tests/attach/fake_server.py --port 8000 --events-port 5557 --replay-port 5558 [--speed 2]
"""

from __future__ import annotations

import argparse
import base64
import gzip
import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import msgspec
import zmq

DATA = Path(__file__).parent / "data"
END = (-1).to_bytes(8, "big", signed=True)


@dataclass
class Answer:
    """What a request gets. ``delay_s`` before anything is said; ``length`` claims another Content-Length."""

    body: bytes = b""
    status: int = 200
    delay_s: float = 0.0
    headers: dict[str, str] = field(default_factory=dict)
    length: int | None = None


class FakeMetrics:
    """An HTTP server on a free port; ``answer`` may be replaced at any time. Counts what is asked and in flight."""

    def __init__(self, answer: Answer | Callable[[], Answer], port: int = 0) -> None:
        self.answer = answer
        self.requests: list[dict[str, str]] = []
        self.posted: list[bytes] = []
        self.on_post = Answer(b"no such page", status=404)
        self.in_flight = self.most_in_flight = 0
        self._closing = threading.Event()
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                fake._handle(self)

            def do_POST(self) -> None:
                fake.posted.append(self.rfile.read(int(self.headers.get("Content-Length", 0))))
                fake._handle(self, fake.on_post)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.server.daemon_threads = True
        self.server.block_on_close = False
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        self._thread = threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def _handle(self, handler: BaseHTTPRequestHandler, given: Answer | None = None) -> None:
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        self.requests.append({"path": handler.path, **dict(handler.headers.items())})
        try:
            answer = given or (self.answer if isinstance(self.answer, Answer) else self.answer())
            self._closing.wait(answer.delay_s)
            handler.send_response(answer.status)
            for name, value in answer.headers.items():
                handler.send_header(name, value)
            handler.send_header("Content-Length", str(len(answer.body) if answer.length is None else answer.length))
            handler.end_headers()
            handler.wfile.write(answer.body)
        except OSError:
            pass
        finally:
            self.in_flight -= 1

    def close(self) -> None:
        self._closing.set()
        self.server.shutdown()
        self.server.server_close()

    def __enter__(self) -> FakeMetrics:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class FakePublisher:
    """A PUB socket and, where asked for, a ROUTER that replays. ``skip``: sequence numbers that are lost on the way.

    It is an XPUB: one that knows when somebody has subscribed. What a PUB sends before that is lost without a word.
    """

    def __init__(self, *, replays: bool = True, port: int = 0, replay_port: int = 0) -> None:
        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.XPUB)
        self.socket.setsockopt(zmq.SNDHWM, 0)
        self.endpoint = _bind(self.socket, port)
        self.seq = 0
        self.kept: list[tuple[int, bytes]] = []
        self.first_kept = 0
        self.asked: list[int] = []
        self.replay_endpoint = ""
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        if replays:
            router = self.context.socket(zmq.ROUTER)
            self.replay_endpoint = _bind(router, replay_port)
            self._thread = threading.Thread(target=self._replay, args=(router,), daemon=True)
            self._thread.start()

    def wait_for_subscriber(self, limit_s: float = 60.0) -> None:
        """Until there is one: what is published from then on reaches it."""
        assert self.socket.poll(int(limit_s * 1000)), "nobody has subscribed"
        assert self.socket.recv() == b"\x01"  # to everything

    def publish(self, *events: Any, skip: bool = False, t_s: float | None = None, rank: int | None = None) -> None:
        self.publish_body(msgspec.msgpack.encode([t_s or time.time(), list(events), rank]), skip=skip)

    def publish_body(self, body: bytes, *, skip: bool = False) -> None:
        self.kept.append((self.seq, body))
        if not skip:
            self.socket.send_multipart([b"kv", self.seq.to_bytes(8, "big"), body])
        self.seq += 1

    def _replay(self, router: zmq.Socket[bytes]) -> None:
        while not self._stop.is_set():
            if not router.poll(20):
                continue
            client, _, start = router.recv_multipart()
            first = int.from_bytes(start, "big")
            self.asked.append(first)
            for seq, body in list(self.kept):
                if seq >= max(first, self.first_kept):
                    router.send_multipart([client, b"", seq.to_bytes(8, "big"), body])
            router.send_multipart([client, b"", END, b""])
        router.close(0)

    def close(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(60)
        self.socket.close(0)
        self.context.destroy(linger=0)

    def __enter__(self) -> FakePublisher:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _bind(socket: zmq.Socket[bytes], port: int) -> str:
    if port:
        socket.bind(f"tcp://127.0.0.1:{port}")
    else:
        port = socket.bind_to_random_port("tcp://127.0.0.1")
    return f"tcp://127.0.0.1:{port}"


def recorded_metrics() -> list[tuple[float, str]]:
    """(seconds, body) of the recorded server, 80 looks."""
    with gzip.open(DATA / "vllm-0.32-metrics.jsonl.gz") as file:
        return [(row["t"], row["text"]) for row in map(json.loads, file)]


def recorded_messages() -> list[tuple[float, list[bytes]]]:
    """(seconds, frames) of the recorded server, 71 messages."""
    with gzip.open(DATA / "vllm-0.32-kv-events.jsonl.gz") as file:
        return [(row["t"], [base64.b64decode(frame) for frame in row["frames"]]) for row in map(json.loads, file)]


def play(metrics: FakeMetrics, publisher: FakePublisher, speed: float) -> None:
    """The recorded minute and a half, from its start."""
    began = time.monotonic()
    moments: list[tuple[float, str | list[bytes]]] = [*recorded_metrics(), *recorded_messages()]
    for t_s, what in sorted(moments, key=lambda moment: moment[0]):
        time.sleep(max(0.0, t_s / speed - (time.monotonic() - began)))
        if isinstance(what, str):
            metrics.answer = Answer(what.encode())
        else:
            batch = msgspec.msgpack.decode(what[2])
            publisher.publish_body(msgspec.msgpack.encode([time.time(), *batch[1:]]))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--events-port", type=int, default=5557)
    parser.add_argument("--replay-port", type=int, default=5558)
    parser.add_argument("--speed", type=float, default=1.0)
    args = parser.parse_args()
    first = Answer(recorded_metrics()[0][1].encode())
    with (
        FakeMetrics(first, args.port) as metrics,
        FakePublisher(port=args.events_port, replay_port=args.replay_port) as publisher,
    ):
        play(metrics, publisher, args.speed)
        threading.Event().wait()


if __name__ == "__main__":
    main()
