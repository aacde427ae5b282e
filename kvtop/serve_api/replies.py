"""Pieces of answers as OpenAI's JSON: one object at the end, or server-sent events as they come."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Any

import msgspec

from kvtop.engine.events import AnswerEnd, AnswerPart
from kvtop.serve_api.broker import Ticket, error_of
from kvtop.serve_api.errors import ApiError
from kvtop.serve_api.fields import Asked

DONE = b"data: [DONE]\n\n"
_REASONS = {"capacity": "length", "aborted": "abort", "failed": "error"}
"""Of kvtop's finish reasons those that are called otherwise here. ``capacity``: the pool is the longest it can get."""


class Tally:
    """Token counts of all prompts and answers of a request."""

    def __init__(self) -> None:
        self.prompt = self.cached = self.output = 0

    def take(self, item: AnswerPart | AnswerEnd) -> None:
        if isinstance(item, AnswerPart):
            self.output += item.num_tokens
        else:
            self.prompt += item.prompt_tokens
            self.cached += item.cached_tokens

    @property
    def usage(self) -> dict[str, Any]:
        return {
            "prompt_tokens": self.prompt,
            "completion_tokens": self.output,
            "total_tokens": self.prompt + self.output,
            "prompt_tokens_details": {"cached_tokens": self.cached},
        }


class Reply:
    """One request's answer, of the model ``model``."""

    def __init__(self, ticket: Ticket, asked: Asked, model: str) -> None:
        self._ticket, self._asked = ticket, asked
        self._num_choices = len(ticket.request_ids) * asked.n
        kind = "chat.completion" if asked.chat else "text_completion"
        self._head = {"id": ticket.id, "object": kind, "created": int(time.time()), "model": model}
        self._tally = Tally()

    async def whole(self) -> dict[str, Any]:
        """The answer, once it is there.

        Raises:
            ApiError: it was cut off.
        """
        texts: list[list[str]] = [[] for _ in range(self._num_choices)]
        reasons: list[str | None] = [None] * self._num_choices
        while items := await self._ticket.items():
            for item in items:
                self._tally.take(item)
                if isinstance(item, AnswerPart):
                    index = self._ticket.choice_of(item.seq_id, self._asked.n)
                    texts[index].append(item.text)
                    reasons[index] = reasons[index] or _reason(item)
                elif item.kind:
                    raise error_of(item)
        choices = [
            self._choice(index, {"role": "assistant", "content": text} if self._asked.chat else text, reason)
            for index, (text, reason) in enumerate(zip(map("".join, texts), reasons, strict=True))
        ]
        return {**self._head, "choices": choices, "usage": self._tally.usage}

    def _choice(self, index: int, content: Any, reason: str | None, *, delta: bool = False) -> dict[str, Any]:
        name = ("delta" if delta else "message") if self._asked.chat else "text"
        return {"index": index, name: content, "logprobs": None, "finish_reason": reason}

    async def events(self) -> AsyncIterator[bytes]:
        """Server-sent events: a chunk for each token of each answer, then the usage if it was asked for."""
        if self._asked.chat:
            self._head["object"] = "chat.completion.chunk"
            for index in range(self._num_choices):
                yield self._chunk(index, {"role": "assistant", "content": ""}, None)
        going = set(range(self._num_choices))
        error: ApiError | None = None
        while items := await self._ticket.items():
            data: list[bytes] = []
            for item in items:
                self._tally.take(item)
                if isinstance(item, AnswerPart):
                    data.append(self._part(item, going))
                elif item.kind == "failed":
                    error = error_of(item)
            yield b"".join(data)
        if error is not None:
            yield b"data: " + msgspec.json.encode(error.body) + b"\n\n"
        else:  # cut off: said as such, and the stream ends in good order
            for index in sorted(going):
                yield self._chunk(index, {} if self._asked.chat else "", "abort")
        if self._asked.include_usage:
            yield self._data({**self._head, "choices": [], "usage": self._tally.usage})
        yield DONE

    def _part(self, item: AnswerPart, going: set[int]) -> bytes:
        index, reason = self._ticket.choice_of(item.seq_id, self._asked.n), _reason(item)
        if reason is not None:
            going.discard(index)
        return self._chunk(index, {"content": item.text} if self._asked.chat else item.text, reason)

    def _chunk(self, index: int, content: Any, reason: str | None) -> bytes:
        chunk = {**self._head, "choices": [self._choice(index, content, reason, delta=True)]}
        if self._asked.include_usage:
            chunk["usage"] = None
        return self._data(chunk)

    @staticmethod
    def _data(value: dict[str, Any]) -> bytes:
        return b"data: " + msgspec.json.encode(value) + b"\n\n"


def _reason(item: AnswerPart) -> str | None:
    return None if item.finish_reason is None else _REASONS.get(item.finish_reason, item.finish_reason)
