"""From a body of JSON to what is asked for: every field checked by name, nothing unknown passed over.

A field that kvtop cannot honour is accepted at the value that asks for nothing (``NEUTRAL``) and refused at any other:
an answer is never silently another one than was asked for.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from kvtop.engine.types import MAX_BRANCHES
from kvtop.serve_api.errors import ApiError, bad_field, shown

MAX_TOKENS = 10_000_000
MAX_PROMPTS = 128  # of one request
MAX_STOPS, MAX_STOP_LENGTH = 16, 1000
MAX_USER = 64
INT64 = 1 << 63
ROLES = ("system", "developer", "user", "assistant")

Body = dict[str, Any]


@dataclass(slots=True)
class Asked:
    """One request, checked. ``params`` are SamplingParams by name; ``prompts`` is [] where there are messages."""

    chat: bool
    model: str | None
    prompts: list[str | list[int]] = field(default_factory=list)
    messages: list[dict[str, str]] = field(default_factory=list)
    params: dict[str, Any] = field(default_factory=dict)
    n: int = 1
    stream: bool = False
    include_usage: bool = False
    priority: int = 0
    user: str = ""


def parse(data: bytes, *, chat: bool) -> Asked:
    """What the body of /v1/chat/completions or /v1/completions asks for.

    Raises:
        ApiError: 400, naming the field, what was found and what was expected.
    """
    body = _decode(data)
    known = CHAT if chat else COMPLETION
    for name in body:
        if name not in known and name not in NEUTRAL:
            near = difflib.get_close_matches(name, [*known, *NEUTRAL], n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ApiError(400, f"unknown field {shown(name)}{hint}", param=name[:48])
    for name in NEUTRAL:
        if name in body and name not in known:
            _check_neutral(name, body[name])
    asked = Asked(chat=chat, model=None)
    for name, read in known.items():
        read(asked, name, body.get(name))
    if asked.params.get("min_tokens", 0) > asked.params.get("max_tokens", MAX_TOKENS):
        expected = f"at most max_tokens ({asked.params['max_tokens']})"
        raise bad_field("min_tokens", asked.params["min_tokens"], expected)
    return asked


def _decode(data: bytes) -> Body:
    try:
        body = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError) as error:
        text = " ".join(str(error).split())[:200] or type(error).__name__
        raise ApiError(400, f"the body is no JSON: {text}", code="invalid_json") from None
    if not isinstance(body, dict):
        raise ApiError(400, f"the body is {shown(body)}, expected an object")
    return body


# Readers: (asked, name, value); value None is "not given" ------------------------------------------------------

Reader = Callable[[Asked, str, Any], None]


def _is_int(value: Any, low: int, high: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def _integer(low: int, high: int, *, param: str | None = None, default: int | None = None) -> Reader:
    def read(asked: Asked, name: str, value: Any) -> None:
        if value is None:
            value = default
        elif not _is_int(value, low, high):
            raise bad_field(name, value, f"an integer from {low} to {high}")
        if value is not None:
            asked.params[param or name] = value

    return read


def _number(low: float, high: float, default: float, *, above: bool = False) -> Reader:
    expected = f"a number {'above' if above else 'from'} {low:g} {'and at most' if above else 'to'} {high:g}"

    def read(asked: Asked, name: str, value: Any) -> None:
        value = default if value is None else value
        fine = isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high
        if not fine or (above and value == low):
            raise bad_field(name, value, expected)
        asked.params[name] = float(value)

    return read


def _flag_of(name: str, value: Any) -> bool:
    if value is not None and not isinstance(value, bool):
        raise bad_field(name, value, "true or false")
    return bool(value)


def _ignore_eos(asked: Asked, name: str, value: Any) -> None:
    asked.params["ignore_eos"] = _flag_of(name, value)


def _stream(asked: Asked, name: str, value: Any) -> None:
    asked.stream = _flag_of(name, value)


def _stream_options(asked: Asked, name: str, value: Any) -> None:
    if value is None:
        return
    if not isinstance(value, dict):
        raise bad_field(name, value, "an object")
    for key, each in value.items():
        if key == "include_usage":
            asked.include_usage = _flag_of(f"{name}.{key}", each)
        elif key not in ("include_obfuscation", "continuous_usage_stats") or each not in (None, False):
            raise ApiError(400, f"{name}.{shown(key)[1:-1]} is not supported: include_usage is", param=name)
    if not asked.stream:
        raise ApiError(400, f"{name} is given, but stream is not true", param=name)


def _model(asked: Asked, name: str, value: Any) -> None:
    if value is not None and not isinstance(value, str):
        raise bad_field(name, value, "a model's name")
    asked.model = value


def _n(asked: Asked, name: str, value: Any) -> None:
    if value is not None and not _is_int(value, 1, MAX_BRANCHES):
        raise bad_field(name, value, f"an integer from 1 to {MAX_BRANCHES}")
    asked.n = asked.params["n"] = 1 if value is None else value


def _top_k(asked: Asked, name: str, value: Any) -> None:
    if value is not None and not _is_int(value, -1, MAX_TOKENS):
        raise bad_field(name, value, "an integer >= 1, or 0 or -1 for all tokens")
    asked.params[name] = max(0, value or 0)


def _stop(asked: Asked, name: str, value: Any) -> None:
    texts = [] if value is None else [value] if isinstance(value, str) else value
    expected = f"a text or a list of at most {MAX_STOPS} texts of 1 to {MAX_STOP_LENGTH} characters"
    if not isinstance(texts, list) or len(texts) > MAX_STOPS:
        raise bad_field(name, value, expected)
    for text in texts:
        if not isinstance(text, str) or not 0 < len(text) <= MAX_STOP_LENGTH:
            raise bad_field(name, text, expected)
    if texts:
        asked.params[name] = texts


def _stop_token_ids(asked: Asked, name: str, value: Any) -> None:
    if value is not None:
        if not isinstance(value, list) or not all(_is_int(token, 0, INT64 - 1) for token in value):
            raise bad_field(name, value, "a list of token ids")
        asked.params[name] = value


def _user(asked: Asked, name: str, value: Any) -> None:
    if value is not None and not isinstance(value, str):
        raise bad_field(name, value, "a text")
    asked.user = "".join(c for c in (value or "")[:MAX_USER] if c.isprintable())


def _priority(asked: Asked, name: str, value: Any) -> None:
    if value is not None and not _is_int(value, -INT64, INT64 - 1):
        raise bad_field(name, value, "an integer of 64 bits (lower is more important)")
    asked.priority = value or 0


def _prompt(asked: Asked, name: str, value: Any) -> None:
    """A text, token ids, or a list of either."""
    expected = f"a text, a list of token ids, or a list of at most {MAX_PROMPTS} of these"
    prompts = value if isinstance(value, list) and value and isinstance(value[0], str | list) else [value]
    if value is None or len(prompts) > MAX_PROMPTS:
        raise bad_field(name, value, expected)
    for each in prompts:
        if not isinstance(each, str) and not (isinstance(each, list) and all(_is_int(t, 0, INT64 - 1) for t in each)):
            raise bad_field(name, each, expected)
        if not each:
            raise bad_field(name, each, "at least one token")
    asked.prompts = prompts


def _messages(asked: Asked, name: str, value: Any) -> None:
    if not isinstance(value, list) or not value:
        raise bad_field(name, value, "a list of at least one message")
    asked.messages = [_message(f"{name}[{index}]", each) for index, each in enumerate(value)]


def _message(name: str, value: Any) -> dict[str, str]:
    if not isinstance(value, dict):
        raise bad_field(name, value, "an object with role and content")
    role = value.get("role")
    if role not in ROLES:
        raise bad_field(f"{name}.role", role, f"one of {', '.join(ROLES)}")
    for key, each in value.items():
        if key not in ("role", "content", "name") and each not in (None, [], ""):
            raise ApiError(400, f"{name}: field {shown(key)} is not supported", param=name)
    content = value.get("content")
    if isinstance(content, list):
        content = "".join(_text_part(f"{name}.content[{index}]", part) for index, part in enumerate(content))
    if not isinstance(content, str):
        raise bad_field(f"{name}.content", content, "a text, or a list of text parts")
    return {"role": "system" if role == "developer" else role, "content": content}


def _text_part(name: str, part: Any) -> str:
    if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
        found = part.get("type") if isinstance(part, dict) else part
        raise bad_field(name, found, 'a part {"type": "text", "text": ...}: this model reads text only')
    return part["text"]


_max_tokens = _integer(1, MAX_TOKENS)
_SHARED: dict[str, Reader] = {
    "model": _model,
    "n": _n,
    "temperature": _number(0.0, 2.0, 1.0),
    "top_p": _number(0.0, 1.0, 1.0, above=True),
    "top_k": _top_k,
    "seed": _integer(-INT64, INT64 - 1),
    "stop": _stop,
    "stop_token_ids": _stop_token_ids,
    "min_tokens": _integer(0, MAX_TOKENS),
    "ignore_eos": _ignore_eos,
    "stream": _stream,
    "stream_options": _stream_options,
    "priority": _priority,
    "user": _user,
}
COMPLETION: dict[str, Reader] = {
    **_SHARED, "max_tokens": _integer(1, MAX_TOKENS, default=16), "prompt": _prompt,
}  # fmt: skip
CHAT: dict[str, Reader] = {
    **_SHARED,
    "max_tokens": _max_tokens,
    "max_completion_tokens": _integer(1, MAX_TOKENS, param="max_tokens"),
    "messages": _messages,
}

NEUTRAL: dict[str, tuple[Any, ...]] = {
    "best_of": (1,), "echo": (False,), "suffix": ("",), "logprobs": (False,), "top_logprobs": (0,), "logit_bias": ({},),
    "frequency_penalty": (0,), "presence_penalty": (0,), "repetition_penalty": (1,), "min_p": (0,),
    "length_penalty": (1,), "use_beam_search": (False,), "tools": ([],), "tool_choice": ("none", "auto"),
    "functions": ([],), "response_format": ({"type": "text"},), "modalities": (["text"],), "store": (False,),
    "skip_special_tokens": (True,), "spaces_between_special_tokens": (True,), "add_special_tokens": (True,),
    "add_generation_prompt": (True,), "continue_final_message": (False,), "service_tier": ("auto", "default"),
    "prompt_logprobs": (0,), "parallel_tool_calls": (True, False), "metadata": ({},),
}  # fmt: skip
"""Fields whose other values kvtop does not honour, with those that ask for nothing (null always does)."""


def _check_neutral(name: str, value: Any) -> None:
    fine = NEUTRAL[name]
    if value is None or any(value == each and isinstance(value, bool) == isinstance(each, bool) for each in fine):
        return
    allowed = " or ".join(msgspec.json.encode(each).decode() for each in fine)
    message = f"{name} is {shown(value)}, which is not supported: leave it out, or give {allowed}"
    raise ApiError(400, message, param=name)
