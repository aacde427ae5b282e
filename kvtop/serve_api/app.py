"""The routes: OpenAI's, /health and /metrics."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from kvtop.exporter.server import CONTENT_TYPE
from kvtop.serve_api.broker import Broker, Ticket
from kvtop.serve_api.errors import ApiError, json_response, shown
from kvtop.serve_api.fields import parse
from kvtop.serve_api.replies import Reply

CLIENT_GONE = 499  # nobody reads it


@dataclass(slots=True)
class Limits:
    """What the server lets in."""

    api_key: str | None = None
    max_body_bytes: int = 1 << 20


class Api:
    """The handlers over one broker. ``model_name``: what the model is called to clients; None: as the engine says.
    ``asked_as``: the name it was started by, which clients may use as well."""

    def __init__(
        self,
        broker: Broker,
        metrics: Callable[[], str],
        limits: Limits,
        model_name: str | None = None,
        asked_as: str | None = None,
    ) -> None:
        self._broker, self._metrics, self._limits, self._model_name = broker, metrics, limits, model_name
        self._asked_as = asked_as

    def app(self) -> Starlette:
        routes = [
            Route("/v1/chat/completions", self._guarded(self._chat), methods=["POST"]),
            Route("/v1/completions", self._guarded(self._completion), methods=["POST"]),
            Route("/v1/models", self._guarded(self._models), methods=["GET"]),
            Route("/v1/models/{name:path}", self._guarded(self._one_model), methods=["GET"]),
            Route("/health", self._open(self._health), methods=["GET"]),
            Route("/metrics", self._open(self._metrics_text), methods=["GET"]),
        ]
        return Starlette(routes=routes, exception_handlers={HTTPException: _no_such_page, Exception: _our_fault})

    # Around every handler ------------------------------------------------------------------------------------

    def _open(self, handler: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
        async def handle(request: Request) -> Response:
            try:
                return await handler(request)
            except ApiError as error:
                return error.response()

        return handle

    def _guarded(self, handler: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
        async def check(request: Request) -> Response:
            self._check_key(request)
            return await handler(request)

        return self._open(check)

    def _check_key(self, request: Request) -> None:
        if self._limits.api_key is None:
            return
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and hmac.compare_digest(key.strip().encode(), self._limits.api_key.encode()):
            return
        what = "the API key is not the one of this server" if key else "no API key: send Authorization: Bearer KEY"
        raise ApiError(401, what, kind="authentication_error", code="invalid_api_key")

    async def _body(self, request: Request) -> bytes:
        """The body, as long as it is not too long.

        Raises:
            ApiError: 413; 415 for anything but JSON (a web page elsewhere can send only other types unasked).
        """
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise ApiError(415, f"Content-Type is {shown(kind)}, expected application/json")
        limit, length = self._limits.max_body_bytes, request.headers.get("content-length", "")
        body = bytearray()
        if length.isdecimal() and int(length[:20]) > limit:
            raise _too_large(limit)
        async for chunk in request.stream():
            body += chunk
            if len(body) > limit:
                raise _too_large(limit)
        return bytes(body)

    # Handlers ------------------------------------------------------------------------------------------------

    async def _chat(self, request: Request) -> Response:
        return await self._answer(request, chat=True)

    async def _completion(self, request: Request) -> Response:
        return await self._answer(request, chat=False)

    async def _answer(self, request: Request, *, chat: bool) -> Response:
        try:
            with self._broker.arriving():
                data = await self._body(request)
        except ClientDisconnect:
            return Response(status_code=CLIENT_GONE)
        self._broker.check_ready()
        asked = parse(data, chat=chat)
        self._check_model(asked.model)
        ticket = self._broker.submit(asked)
        try:
            await ticket.wait_accepted()
            reply = Reply(ticket, asked, self._name)
            if asked.stream:
                return _Stream(reply, ticket)
            return await _whole(request, reply, ticket)
        except BaseException:
            ticket.close()
            raise

    def _check_model(self, name: str | None) -> None:
        if name is not None and name not in (self._name, self._asked_as):
            message = f"the model {shown(name)} does not exist: this server has {self._name!r}"
            raise ApiError(404, message, kind="not_found_error", param="model", code="model_not_found")

    @property
    def _name(self) -> str:
        started = self._broker.started
        return self._model_name or str((started.manifest.get("model") if started else None) or "none")

    @property
    def _card(self) -> dict[str, object]:
        started = self._broker.started
        manifest = started.manifest if started is not None else {}
        return {
            "id": self._name,
            "object": "model",
            "created": 0,
            "owned_by": "kvtop",
            "max_model_len": manifest.get("max_model_len"),
        }

    async def _models(self, request: Request) -> Response:
        self._broker.check_ready()
        return json_response({"object": "list", "data": [self._card]})

    async def _one_model(self, request: Request) -> Response:
        self._broker.check_ready()
        self._check_model(request.path_params["name"])
        return json_response(self._card)

    async def _health(self, request: Request) -> Response:
        self._broker.check_ready()
        return json_response({"status": "ok"})

    async def _metrics_text(self, request: Request) -> Response:
        return Response(self._metrics(), headers={"Content-Type": CONTENT_TYPE})


async def _whole(request: Request, reply: Reply, ticket: Ticket) -> Response:
    """The whole answer, or nothing if the client goes away before it is there."""
    answer, gone = asyncio.ensure_future(reply.whole()), asyncio.ensure_future(_until_gone(request))
    try:
        await asyncio.wait({answer, gone}, return_when=asyncio.FIRST_COMPLETED)
        return json_response(answer.result()) if answer.done() else Response(status_code=CLIENT_GONE)
    finally:
        ticket.close()
        answer.cancel()
        gone.cancel()


async def _until_gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


class _Stream(StreamingResponse):
    """Server-sent events; the request is given up when the client goes away, even before the first one is made."""

    def __init__(self, reply: Reply, ticket: Ticket) -> None:
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        super().__init__(reply.events(), headers=headers, media_type="text/event-stream")
        self._ticket = ticket

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._ticket.close()


def _too_large(limit: int) -> ApiError:
    return ApiError(413, f"the body is longer than {limit:,} bytes (--max-body)", code="request_too_large")


async def _no_such_page(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    path, headers = shown(request.url.path), dict(error.headers or {})
    if error.status_code == 404:
        told = ApiError(404, f"there is no {path}", kind="not_found_error", code="not_found")
    elif error.status_code == 405:
        allowed = headers.get("Allow", "another method")
        told = ApiError(405, f"{shown(request.method)} at {path}, expected {allowed}", code="method_not_allowed")
    else:
        told = ApiError(error.status_code, str(error.detail), code="bad_request")
    answer = told.response()
    answer.headers.update(headers)
    return answer


async def _our_fault(request: Request, error: Exception) -> Response:
    return ApiError(500, f"internal error: {type(error).__name__}", kind="server_error", code="internal").response()
