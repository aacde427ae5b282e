"""OpenAI JSONL: requests of the batch API, and chats as for fine-tuning.

A batch row is ``{"custom_id", "method", "url", "body"}``: its prompt is ``body.messages`` (or ``body.prompt``, a
text), its output length ``max_completion_tokens`` or ``max_tokens``, the most that was allowed; ``n`` is kept. A chat
row is ``{"messages": [...]}``: each answer in it becomes a turn of a session; without one it is a request. Tokens are
counted from the text, by a tokenizer where one is given, every message with its role. Prompts of requests that begin
with the same text share ids, one for each 16 full tokens. Arrivals are not recorded.
"""

from __future__ import annotations

from typing import Any

import msgspec

from kvtop.engine.errors import WorkloadError
from kvtop.workloads.files import TextFile
from kvtop.workloads.formats.base import Clock, ReadOptions, Stamped, Trace, TraceFormat, check_length, finish
from kvtop.workloads.formats.hash_ids import FLOOR
from kvtop.workloads.formats.json_rows import Field, json_lines
from kvtop.workloads.formats.sharegpt import turns, unrecorded
from kvtop.workloads.formats.text_tokens import PrefixIds, TokenCounter, message_text
from kvtop.workloads.rows import Row
from kvtop.workloads.words import counted, shorten

MAX_SAMPLES = 1024
FIELDS = {
    "body": Field((dict,), "an object (the request)", optional=True),
    "messages": Field((list,), "a list of messages", optional=True),
}


class _Message(msgspec.Struct, gc=False):
    role: str
    content: Any = None


class _Body(msgspec.Struct, gc=False):
    messages: list[_Message] | None = None
    prompt: str | None = None
    max_completion_tokens: int | None = None
    max_tokens: int | None = None
    n: int | None = None


class _Line(msgspec.Struct, gc=False):
    body: _Body | None = None
    messages: list[_Message] | None = None


_decode = msgspec.json.Decoder(_Line).decode


def read(file: TextFile, options: ReadOptions) -> Trace:
    """Read every row; one of which a length is not known raises WorkloadError with its number and the way out."""
    counter, ids = TokenCounter(options.tokenizer), PrefixIds()
    stamped: list[Stamped] = []
    num_limits = 0
    for line, found in json_lines(file, _decode, FIELDS):
        place = f"{file.path}:{line}"
        body = found.body if found.body is not None else _Body(messages=found.messages)
        if found.body is None and found.messages and any(message.role == "assistant" for message in found.messages):
            texts = [(message.role == "assistant", _rendered(message, place)) for message in found.messages]
            stamped += [Stamped(line, None, row) for row in turns(texts, counter, line, place)]
            continue
        pieces = counter.pieces(_prompt(body, place))
        output_tokens, is_limit = _output_tokens(body, options, place)
        num_limits += is_limit
        check_length(len(pieces), "the prompt", path=file.path, line=line)
        check_length(output_tokens, "the output", path=file.path, line=line)
        hash_ids = ids.of(pieces)
        row = Row(0, len(pieces), output_tokens, hash_ids, ids.block_tokens if hash_ids else 0, n=_samples(body, place))
        stamped.append(Stamped(line, None, row))
    notices = unrecorded(stamped)
    if num_limits:
        notices.append(
            f"max_tokens is the output length of {counted(num_limits, 'request')}: the most allowed, not what was said"
        )
    trace = finish(
        stamped, OPENAI, path=file.path, sha256=file.sha256, notices=notices, counted_by=counter.name, rounding=FLOOR
    )
    return msgspec.structs.replace(trace, nominal_arrivals=any(entry.row.think_ns is not None for entry in stamped))


def _prompt(body: _Body, place: str) -> str:
    if body.messages:
        return "".join(_rendered(message, place) for message in body.messages)
    if body.prompt:
        return body.prompt
    raise WorkloadError("holds neither messages nor a prompt, expected one of them in body", path=place)


def _rendered(message: _Message, place: str) -> str:
    return f"{message.role}\n{message_text(message.content, place)}\n"


def _output_tokens(body: _Body, options: ReadOptions, place: str) -> tuple[int, bool]:
    """The length of the answer, and whether it is a limit that stands for it."""
    limit = body.max_completion_tokens if body.max_completion_tokens is not None else body.max_tokens
    if options.output_tokens is not None:
        return options.output_tokens if limit is None else min(limit, options.output_tokens), False
    if limit is None:
        raise WorkloadError(
            "has neither max_completion_tokens nor max_tokens: give the length of answers (output_tokens)", path=place
        )
    return limit, True


def _samples(body: _Body, place: str) -> int:
    if body.n is not None and not 1 <= body.n <= MAX_SAMPLES:
        raise WorkloadError(f"n is {shorten(body.n)}, expected 1 to {MAX_SAMPLES}", path=place)
    return body.n or 1


OPENAI = TraceFormat(
    name="openai",
    summary='JSON lines like {"custom_id": "a", "method": "POST", "url": "/v1/...", "body": {"messages": [...]}}',
    keys=("messages", "role", "content"),
    read=read,
    clock=Clock(key="arrival", unit="seconds"),
    is_json=True,
)
