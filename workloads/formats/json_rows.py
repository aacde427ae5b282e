"""JSON traces: one object a line or one document a file, decoded strictly, and explained when they are not as expected.

NaN and Infinity are not JSON and are refused wherever they stand.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from decimal import Decimal
from itertools import islice
from typing import Any, NoReturn, TypeVar

import msgspec

from kvtop.engine.errors import WorkloadError
from kvtop.workloads.files import TextFile, each_row
from kvtop.workloads.formats.base import MAX_TIME_NS, missing_key, nearest_key
from kvtop.workloads.words import shorten

T = TypeVar("T")

_keys = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
"""A row's keys, its values left as they stand: those that nothing reads may be of any size and depth."""


class Field(msgspec.Struct, frozen=True):
    """What a key of a row must hold. ``items``: the type of a list's items."""

    types: tuple[type, ...]
    expected: str
    optional: bool = False
    items: type | None = None


TOKENS = Field((int,), "an integer (tokens)")
HASH_IDS = Field((list,), "a list of integers", items=int)
TOO_DEEP = "bad JSON: nested too deeply to be read, expected fewer than some hundred levels"


def json_lines(
    file: TextFile, decode: Callable[[str], T], fields: dict[str, Field], *, skip: int = 0
) -> Iterator[tuple[int, T]]:
    """(line, decoded row) of every row that is not blank, from row ``skip`` + 1 on.

    Raises:
        WorkloadError: a row that is not JSON or does not hold what ``fields`` says, with its number and reason.
    """
    for line, text in enumerate(each_row(file.text), 1):
        if line <= skip or not text or text.isspace():
            continue
        try:
            yield line, decode(text)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            _explain(text, fields, file.path, line, error)


def json_document(file: TextFile, decode: Callable[[str], T], expected: str) -> T:
    """The whole file as one JSON value.

    Raises:
        WorkloadError: it is not JSON (with the row), or not of the expected shape (with the place inside).
    """
    try:
        return decode(file.text)
    except msgspec.ValidationError as error:
        raise WorkloadError(f"{lowered(str(error))}; expected {expected}", path=file.path) from None
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise _bad_json(file, error) from None


def unit_ns(value: float, per_unit: int, key: str, unit: str, path: str, line: int | None) -> int:
    """A time as exact ns: the shortest decimal that reads as the float is what was written.

    Raises:
        WorkloadError: below 0, or beyond 146 years.
    """
    if not 0 <= (exact := Decimal(repr(value)) * per_unit) <= MAX_TIME_NS:
        raise WorkloadError(f"{key} is {shorten(value)}, expected {unit} from 0 up", path=path, row=line)
    return round(exact)


def lowered(text: str) -> str:
    """An error of a library as the rest of a line; a name in capitals stays one."""
    return text if text[1:2].isupper() else text[:1].lower() + text[1:]


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON, expected a finite number")


def _bad_json(file: TextFile, error: Exception) -> WorkloadError:
    if isinstance(error, RecursionError):
        return WorkloadError(TOO_DEEP, path=file.path)
    try:
        value = json.loads(file.text, parse_constant=_refuse)
    except json.JSONDecodeError as bad:
        return WorkloadError(f"bad JSON at column {bad.colno}: {lowered(bad.msg)}", path=file.path, row=bad.lineno)
    except RecursionError:
        return WorkloadError(TOO_DEEP, path=file.path)
    except ValueError as bad:
        return WorkloadError(f"bad JSON: {str(bad)[:100]}", path=file.path)
    return WorkloadError(f"bad JSON: {_half_character(value) or lowered(str(error))[:100]}", path=file.path)


def _half_character(value: object) -> str | None:
    """What to say of a value that holds one: Python's reader takes it, the one that reads rows does not."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as bad:
        return f"holds \\u{ord(bad.object[bad.start]):04x}, half of a character, expected both halves"
    except RecursionError:
        return None
    return None


def _explain(text: str, fields: dict[str, Field], path: str, line: int, error: Exception) -> NoReturn:
    """Say why ``text`` is not a row. Slow and exact; only ever runs for the first bad row."""

    def fail(message: str) -> NoReturn:
        raise WorkloadError(message, path=path, row=line) from None

    if isinstance(error, RecursionError):
        fail(TOO_DEEP)
    try:
        value: Any = json.loads(text, parse_constant=_refuse)
    except json.JSONDecodeError as bad:
        fail(f"bad JSON at column {bad.colno}: {lowered(bad.msg)} (found {shorten(text.strip())})")
    except RecursionError:
        fail(TOO_DEEP)
    except ValueError as bad:
        fail(str(bad) if "is not JSON" in str(bad) else f"bad JSON: {str(error)[:100]}")
    if not isinstance(value, dict):
        fail(f"found {shown(value)}, expected one JSON object a line")
    for key, field in fields.items():
        if key not in value and not field.optional:
            raise missing_key(key, value, valid=fields, what="key", path=path, line=line) from None
    for key, field in fields.items():
        if key in value and not (field.optional and value[key] is None):
            _explain_field(key, value[key], field, fail)
    fail(_half_character(value) or f"cannot be read: {lowered(str(error))}")


def _explain_field(key: str, value: object, field: Field, fail: Callable[[str], NoReturn]) -> None:
    if type(value) not in field.types:
        fail(f"{key} is {shown(value)}, expected {field.expected}")
    if isinstance(value, list) and field.items is not None:
        for item in value:
            if type(item) is not field.items:
                fail(f"{key} holds {shown(item)}, expected {field.expected.removeprefix('a list of ')}")


def check_spelling(key: str, file: TextFile, line: int, fields: dict[str, Field]) -> None:
    """Raise WorkloadError if a row without the optional ``key`` seems to spell it in another way."""
    try:
        found = _keys(next(islice(each_row(file.text), line - 1, None)))
    except msgspec.MsgspecError:  # a key that is no text, which no reader has looked at
        return
    if nearest_key(key, found, fields) is not None:
        raise missing_key(key, found, valid=fields, what="key", path=file.path, line=line)


def shown(value: object) -> str:
    """The value as JSON, as it stands in the file, cut short."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "..."
