"""HTTP/1.1 with limits of time and number: no client holds a connection for longer than it makes use of it.

uvicorn's own protocol bounds a connection that is idle between two requests, and headers by their size. It waits for
ever for a first byte, for headers and bodies that drip, and for a client that takes nothing of its answer.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

import h11
import msgspec
from uvicorn.protocols.http.h11_impl import H11Protocol

from kvtop.serve_api.errors import ApiError, overloaded


@dataclass(slots=True)
class Patience:
    """``request_s``: for a request to be there whole, from its first byte or the connection; and for a client to take
    what waits for it of an answer. ``max_arriving``: requests that are not there whole yet, at a time."""

    request_s: float
    max_arriving: int
    arriving: set[BoundedProtocol] = field(default_factory=set)


class BoundedProtocol(H11Protocol):
    """One connection. A request that takes too long is answered with 408 and the connection closed; one too many with
    429. Made by ``bounded``, which gives it ``patience``."""

    patience: Patience

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._late: asyncio.TimerHandle | None = None  # the request that is arriving
        self._stuck: asyncio.TimerHandle | None = None  # the answer that nobody takes

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._arrives(True)

    def connection_lost(self, exc: Exception | None) -> None:
        self._arrives(False)
        self.resume_writing()
        super().connection_lost(exc)

    def handle_events(self) -> None:
        super().handle_events()
        if self.transport.is_closing():
            return
        state = self.conn.their_state
        self._arrives(state is h11.SEND_BODY or (state is h11.IDLE and bool(self.conn.trailing_data[0])))

    def _arrives(self, is_so: bool) -> None:
        if is_so == (self._late is not None):
            return
        if self._late is not None:
            self._late.cancel()
            self._late = None
            self.patience.arriving.discard(self)
        elif len(self.patience.arriving) >= self.patience.max_arriving:
            self._refuse(overloaded(self.patience.max_arriving))
        else:
            self._late = self.loop.call_later(self.patience.request_s, self._too_late)
            self.patience.arriving.add(self)

    def _too_late(self) -> None:
        seconds = f"{self.patience.request_s:g}"
        self._refuse(ApiError(408, f"the request was not whole after {seconds} s (--request-timeout)", code="timeout"))

    def _refuse(self, error: ApiError) -> None:
        """Close, and say why where nothing has been said yet. A handler that waits for more is told the client left."""
        self._arrives(False)
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE) and self.conn.their_state is not h11.ERROR:
            body = msgspec.json.encode(error.body)
            headers = [
                ("content-type", "application/json"),
                ("content-length", str(len(body))),
                ("connection", "close"),
            ]
            events = (
                h11.Response(
                    status_code=error.status, headers=headers, reason=HTTPStatus(error.status).phrase.encode()
                ),
                h11.Data(body),
                h11.EndOfMessage(),
            )
            self.transport.write(b"".join(self.conn.send(event) or b"" for event in events))
        if self.cycle is not None:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self.transport.close()

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._stuck is None:
            self._stuck = self.loop.call_later(self.patience.request_s, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._stuck is not None:
            self._stuck.cancel()
            self._stuck = None


def bounded(patience: Patience) -> type[BoundedProtocol]:
    """The protocol with ``patience``, as uvicorn takes it: a class."""
    return type("Bounded", (BoundedProtocol,), {"patience": patience})
