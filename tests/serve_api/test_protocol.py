"""One connection without a network: what it holds, and that it gives it back whichever way it ends."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import uvicorn
from uvicorn.server import ServerState

from kvtop.serve_api.protocol import BoundedProtocol, Patience, bounded

GET = b"GET /health HTTP/1.1\r\nHost: x\r\n"


class Timer:
    def __init__(self, seconds: float, fire: Callable[[], None]) -> None:
        self.seconds, self.fire, self.is_cancelled = seconds, fire, False

    def cancel(self) -> None:
        self.is_cancelled = True


class Loop:
    """Time stands still until a test fires a timer."""

    def __init__(self) -> None:
        self.timers: list[Timer] = []

    def call_later(self, seconds: float, fire: Callable[[], None]) -> Timer:
        self.timers.append(Timer(seconds, fire))
        return self.timers[-1]

    @property
    def running(self) -> list[Timer]:
        return [timer for timer in self.timers if not timer.is_cancelled]


class Wire(asyncio.Transport):
    """Keeps what is written. It stays open until it is said to be lost: the client takes nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.written, self.closing, self.is_aborted = b"", False, False

    def write(self, data: Any) -> None:
        self.written += bytes(data)

    def close(self) -> None:
        self.closing = True

    def is_closing(self) -> bool:
        return self.closing

    def abort(self) -> None:
        self.closing = self.is_aborted = True

    @property
    def answers(self) -> int:
        return self.written.count(b"HTTP/1.1 ")


def connection(patience: Patience) -> tuple[BoundedProtocol, Wire, Loop]:
    async def app(scope: object, receive: object, send: object) -> None:
        raise AssertionError("no request is whole")

    loop, wire = Loop(), Wire()
    config = uvicorn.Config(app, http=bounded(patience), ws="none", lifespan="off", log_config=None)
    made = bounded(patience)(config, ServerState(), {}, _loop=loop)
    made.connection_made(wire)
    return made, wire, loop


def test_a_connection_that_is_lost_gives_its_place_back_and_leaves_no_timer() -> None:
    patience = Patience(30.0, 1)
    protocol, _, loop = connection(patience)
    protocol.data_received(GET)
    protocol.pause_writing()
    assert patience.arriving == {protocol}
    assert len(loop.running) == 2
    protocol.connection_lost(None)
    assert not patience.arriving
    assert not loop.running


def test_a_client_that_takes_nothing_is_cut_off_once_and_one_that_takes_it_is_not() -> None:
    protocol, wire, loop = connection(Patience(30.0, 1))
    before = len(loop.timers)
    protocol.pause_writing()
    protocol.pause_writing()
    (first,) = loop.timers[before:]
    assert first.seconds == 30.0
    protocol.resume_writing()
    assert first.is_cancelled
    protocol.pause_writing()
    (_, second) = loop.timers[before:]
    second.fire()
    assert wire.is_aborted


def test_a_request_is_refused_once_and_its_place_is_free_before_the_client_has_taken_that() -> None:
    patience = Patience(30.0, 1)
    protocol, wire, loop = connection(patience)
    protocol.data_received(GET)  # its headers have not ended
    (late,) = loop.running
    late.fire()
    assert wire.written.startswith(b"HTTP/1.1 408 Request Timeout\r\n")
    assert wire.closing
    assert not patience.arriving
    protocol.handle_events()  # what had been received by then
    assert not patience.arriving
    assert not loop.running
    protocol._too_late()
    assert wire.answers == 1


def test_one_connection_too_many_takes_no_place_and_is_told_so_once() -> None:
    patience = Patience(30.0, 1)
    first, _, _ = connection(patience)
    _, wire, loop = connection(patience)
    assert (wire.answers, wire.closing, loop.timers) == (1, True, [])
    head, _, body = wire.written.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 429 ")
    assert json.loads(body)["error"]["code"] == "too_many_requests"
    assert patience.arriving == {first}
