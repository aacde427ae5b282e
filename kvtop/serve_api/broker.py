"""Between HTTP and the engine's process: requests go in as commands, pieces of answers come out. One event loop's."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress

from kvtop.engine.events import (
    Abort,
    Answered,
    AnswerEnd,
    AnswerPart,
    Event,
    RunEnded,
    RunStarted,
    Submit,
)
from kvtop.run.session import RunSession
from kvtop.serve_api.errors import RETRY_AFTER_S, ApiError, overloaded, unavailable
from kvtop.serve_api.fields import Asked

Item = AnswerPart | AnswerEnd
_STATUS = {"too_long": 400, "invalid": 400, "queue_full": 429, "failed": 500, "aborted": 503}
_CODES = {"too_long": "context_length_exceeded", "queue_full": "too_many_requests", "aborted": "aborted"}


def error_of(end: AnswerEnd) -> ApiError:
    """Why a request has no (whole) answer, as HTTP says it."""
    status = _STATUS.get(end.kind, 500)
    kind = {400: "invalid_request_error", 429: "rate_limit_error"}.get(status, "server_error")
    param = "prompt" if end.kind == "too_long" else None
    text = (
        end.error.partition(": ")[2] if end.error.startswith("request ") else end.error
    )  # our id says nothing to them
    retry_s = RETRY_AFTER_S if status in (429, 503) else None
    message = text or "the request was aborted"
    return ApiError(status, message, kind=kind, param=param, code=_CODES.get(end.kind), retry_s=retry_s)


class Ticket:
    """One HTTP request: one engine request a prompt, and what has come of them so far.

    ``close`` must be called, whatever happens: what is still running then is aborted.
    """

    def __init__(self, broker: Broker, asked: Asked) -> None:
        self.id = f"{'chatcmpl' if asked.chat else 'cmpl'}-{secrets.token_hex(12)}"
        count = 1 if asked.chat else len(asked.prompts)
        self.request_ids = [f"{self.id}-{index}" for index in range(count)]
        self.places = {request_id: index for index, request_id in enumerate(self.request_ids)}
        self.prompt_tokens = 0
        self._broker = broker
        self._open = set(self.request_ids)
        self._unanswered = set(self.request_ids)  # neither accepted nor refused
        self._refused: AnswerEnd | None = None
        self._items: list[Item] = []
        self._changed = asyncio.Event()

    # Fed by the broker ---------------------------------------------------------------------------------------

    def accepted(self, request_id: str, prompt_tokens: int) -> None:
        self._unanswered.discard(request_id)
        self.prompt_tokens += prompt_tokens
        self._changed.set()

    def take(self, item: Item) -> None:
        if isinstance(item, AnswerEnd):
            self._open.discard(item.request_id)
            if item.request_id in self._unanswered:
                self._unanswered.discard(item.request_id)
                self._refused = self._refused or item
        self._items.append(item)
        self._changed.set()

    # Read by a handler ---------------------------------------------------------------------------------------

    async def wait_accepted(self) -> None:
        """Until the engine has taken all of it.

        Raises:
            ApiError: it refuses one of the prompts.
        """
        while self._unanswered and self._refused is None:
            self._changed.clear()
            await self._changed.wait()
        if self._refused is not None:
            raise error_of(self._refused)

    async def items(self) -> list[Item]:
        """What has come since the last call; waits for something. [] once everything has been read."""
        while not self._items and self._open:
            self._changed.clear()
            await self._changed.wait()
        items, self._items = self._items, []
        return items

    def choice_of(self, seq_id: str, n: int) -> int:
        """The index of a sequence among the answers: those of the first prompt first."""
        request_id, _, branch = seq_id.partition("#")
        return self.places[request_id] * n + int(branch or 0)

    def close(self) -> None:
        """Nobody reads any more."""
        self._broker.forget(self)
        self._changed.set()

    @property
    def open_ids(self) -> set[str]:
        return self._open


class Broker:
    """Everything that happens to the session, on one event loop. ``pass_on`` is given all events but the answers."""

    def __init__(self, session: RunSession, pass_on: Callable[[list[Event]], None], max_concurrency: int) -> None:
        self._session, self._pass_on, self._limit = session, pass_on, max_concurrency
        self._tickets: dict[str, Ticket] = {}  # by engine request
        self._live: set[Ticket] = set()
        self._num_arriving = 0  # requests whose bodies are not there whole yet
        self._fd = -1
        self.started: RunStarted | None = None
        self.end: RunEnded | None = None
        self.closing = False

    def attach(self) -> None:
        """Read the session's events as they come, on the running loop. A descriptor of our own: the session closes its
        as soon as it has seen the end."""
        self._fd = os.dup(self._session.fileno())
        asyncio.get_running_loop().add_reader(self._fd, self.pump)

    def detach(self) -> None:
        if self._fd >= 0:
            asyncio.get_running_loop().remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1

    @property
    def num_live(self) -> int:
        """HTTP requests being answered."""
        return len(self._live)

    def check_ready(self) -> None:
        """Raises ApiError: 503, still loading, or going."""
        if self.closing or self.end is not None:
            raise unavailable("the server is shutting down", retry_s=None)
        if self.started is None:
            raise unavailable("the model is being loaded", retry_s=5)

    @contextmanager
    def arriving(self) -> Iterator[None]:
        """While the body of a request is read: it takes one of the places of those that are answered.

        Raises:
            ApiError: 429.
        """
        self._check_room()
        self._num_arriving += 1
        try:
            yield
        finally:
            self._num_arriving -= 1

    def _check_room(self) -> None:
        if len(self._live) + self._num_arriving >= self._limit:
            raise overloaded(self._limit)

    def submit(self, asked: Asked) -> Ticket:
        """Hand the request to the engine.

        Raises:
            ApiError: 503 or 429.
        """
        self.check_ready()
        self._check_room()
        ticket = Ticket(self, asked)
        self._live.add(ticket)
        for index, request_id in enumerate(ticket.request_ids):
            self._tickets[request_id] = ticket
            command = Submit(
                request_id=request_id,
                prompt=None if asked.chat else asked.prompts[index],
                messages=asked.messages,
                params=asked.params,
                priority=asked.priority,
                tenant=asked.user,
            )
            self._session.send(command)
        return ticket

    def forget(self, ticket: Ticket) -> None:
        """Abort what is still running of it. Safe to call twice."""
        self._live.discard(ticket)
        for request_id in ticket.request_ids:
            if self._tickets.pop(request_id, None) is not None and request_id in ticket.open_ids:
                self._session.send(Abort(request_id))

    def cut_off(self, why: str) -> None:
        """End every answer where it is, and abort its request."""
        for request_id, ticket in list(self._tickets.items()):
            if request_id in ticket.open_ids:
                self._session.send(Abort(request_id))
                ticket.take(AnswerEnd(request_id, kind="aborted", error=why))

    def pump(self) -> None:
        """Take in what the session has. Also called now and then: it hands on commands that the pipe did not take."""
        if self.end is not None:
            return
        events = self._session.poll(0.0)
        others: list[Event] = []
        for event in events:
            if isinstance(event, Answered):
                self._deliver(event)
                continue
            if isinstance(event, RunStarted):
                self.started = event
            elif isinstance(event, RunEnded):
                self.end = event
                self._fail_all(event)
            others.append(event)
        if others:
            self._pass_on(others)
        if self.end is not None:
            self.detach()

    def _deliver(self, event: Answered) -> None:
        tickets = self._tickets
        for request_id, prompt_tokens in event.accepted:
            if (ticket := tickets.get(request_id)) is not None:
                ticket.accepted(request_id, prompt_tokens)
        for part in event.parts:
            if (ticket := tickets.get(part.seq_id.partition("#")[0])) is not None:
                ticket.take(part)
        self._end(event.ended)

    def _end(self, ended: Iterable[AnswerEnd]) -> None:
        for end in ended:
            if (ticket := self._tickets.pop(end.request_id, None)) is not None:
                ticket.take(end)

    def _fail_all(self, event: RunEnded) -> None:
        kind = "failed" if event.status == "failed" else "aborted"
        error = f"the engine has stopped: {event.error}" if event.error else "the engine has stopped"
        with suppress(KeyError):
            self._end([AnswerEnd(request_id, kind=kind, error=error) for request_id in self._tickets])
