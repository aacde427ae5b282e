"""Refusals in OpenAI's shape: one line for whoever reads, a type and code for programs."""

from __future__ import annotations

import math

import msgspec
from starlette.responses import Response

RETRY_AFTER_S = 1


class ApiError(Exception):
    """A request that is refused. ``param`` is the field at fault, ``retry_s`` when it may be tried again."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        retry_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.kind, self.param, self.code = status, message, kind, param, code
        self.retry_s = retry_s

    @property
    def body(self) -> dict[str, dict[str, str | None]]:
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}

    def response(self) -> Response:
        headers = {} if self.retry_s is None else {"Retry-After": str(math.ceil(self.retry_s))}
        if self.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        return json_response(self.body, self.status, headers)


def json_response(value: object, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(value), status, headers, "application/json")


def bad_field(field: str, found: object, expected: str) -> ApiError:
    """``field`` is not what it should be. What was found is shown short, whatever it was."""
    return ApiError(400, f"{field} is {shown(found)}, expected {expected}", param=field)


def shown(value: object) -> str:
    """A value of a JSON body in at most some 60 characters."""
    if isinstance(value, dict | list):
        what = "an object" if isinstance(value, dict) else "a list"
        return f"{what} of {len(value)}"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int) and abs(value) >= 10**20:
        return "an integer of more than 20 digits"
    text = repr(value[:48] + "..." if isinstance(value, str) and len(value) > 48 else value)
    return text if len(text) <= 120 else text[:117] + "..."


def overloaded(limit: int) -> ApiError:
    return ApiError(
        429,
        f"{limit:,} requests are arriving or being answered, which is the most at a time (--max-concurrency)",
        kind="rate_limit_error",
        code="too_many_requests",
        retry_s=RETRY_AFTER_S,
    )


def unavailable(why: str, *, retry_s: float | None = RETRY_AFTER_S) -> ApiError:
    return ApiError(503, why, kind="server_error", code="unavailable", retry_s=retry_s)
