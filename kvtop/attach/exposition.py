"""The text that a Prometheus endpoint serves, read in one pass. Pure; it never raises on any text.

    name{label="value",...} value [timestamp] [# {exemplar} ...]

What stands left of the value hardly ever changes from one look to the next, so that its meaning is kept: of a line seen
before only the number is read; `tests/perf/attach.py` measures it, beside prometheus_client's parser where that is
installed.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import NamedTuple

MAX_CACHED = 200_000  # left sides kept; a server that makes up labels without end starts anew

_ESCAPES = {"\\": "\\", '"': '"', "n": "\n"}


class Series(NamedTuple):
    """One sample. ``value`` may be NaN or infinite, as it was written."""

    name: str
    labels: dict[str, str]
    value: float
    text: str  # the value as it stood there


@dataclass(slots=True)
class Parsed:
    """``bad``: the first lines that are no samples, ``num_bad`` how many; ``is_whole``: the text ends like a line."""

    series: list[Series] = field(default_factory=list)
    num_lines: int = 0  # samples, of wanted and unwanted names
    num_bad: int = 0
    bad: list[str] = field(default_factory=list)
    is_whole: bool = True


class Exposition:
    """A parser that remembers the left sides of lines. ``wanted``: the names to keep (None: all)."""

    def __init__(self, wanted: Collection[str] | None = None) -> None:
        self.wanted = None if wanted is None else frozenset(wanted)
        self._known: dict[str, tuple[str, dict[str, str]] | None] = {}

    def parse(self, text: str) -> Parsed:
        """Every sample of a wanted name, in order. Complexity: linear in the text."""
        parsed = Parsed(is_whole=not text or text.endswith("\n"))
        known, series = self._known, parsed.series
        if len(known) > MAX_CACHED:
            known.clear()
        for line in text.split("\n"):
            if not line or line[0] == "#":
                continue
            end = line.rfind("} ")
            if end < 0 or " # " in line:
                left, rest = split_line(line)
            else:
                left, rest = line[: end + 1], line[end + 2 :]
            try:
                meaning = known[left]
            except KeyError:
                meaning = known[left] = self._meaning(left)
            value = _number(rest)
            if value is None or meaning == _NO_SAMPLE:
                known.pop(left, None)
                _note_bad(parsed, line)
                continue
            parsed.num_lines += 1
            if meaning is not None:
                series.append(Series(*meaning, value, rest))
        return parsed

    def _meaning(self, left: str) -> tuple[str, dict[str, str]] | None:
        """Name and labels; None: not wanted; ``_NO_SAMPLE``: it has no such form."""
        name, brace, rest = left.partition("{")
        name = name.strip()
        if not is_name(name):
            return _NO_SAMPLE
        labels: dict[str, str] | None = {}
        if brace:
            labels = parse_labels(rest)
        if labels is None:
            return _NO_SAMPLE
        return (name, labels) if self.wanted is None or name in self.wanted else None


_NO_SAMPLE: tuple[str, dict[str, str]] = ("", {})


def _note_bad(parsed: Parsed, line: str) -> None:
    if line.strip():
        parsed.num_bad += 1
        if len(parsed.bad) < 3:
            parsed.bad.append(line[:120])


def _number(rest: str) -> float | None:
    """The value of ``value [timestamp]``; None: there is none. 1e400 is infinite, as in every other reader."""
    if "_" not in rest:  # which Python's numbers may have
        try:
            return float(rest)
        except ValueError:
            pass
    words = rest.partition(" # ")[0].split()
    if not 1 <= len(words) <= 2 or any("_" in word for word in words):
        return None
    try:
        if len(words) == 2:
            float(words[1])
        return float(words[0])
    except ValueError:
        return None


def is_name(name: str) -> bool:
    """A metric's name: letters, digits, ``_`` and ``:``, no digit first."""
    plain = name.replace(":", "_")
    return plain.isascii() and plain.isidentifier()


def split_line(line: str) -> tuple[str, str]:
    """(name and labels, what follows) of a line without the usual form: no labels, exemplars, other white space."""
    name, brace, rest = line.partition("{")
    if not brace or any(c in " \t" for c in name.strip()):
        words = line.split(None, 1)
        return words[0] if words else "", words[1] if len(words) == 2 else ""
    quoted = escaped = False
    for position, char in enumerate(rest):
        if escaped:
            escaped = False
        elif quoted and char == "\\":
            escaped = True
        elif char == '"':
            quoted = not quoted
        elif char == "}" and not quoted:
            return f"{name.strip()}{{{rest[: position + 1]}", rest[position + 1 :].strip()
    return line, ""


def parse_labels(text: str) -> dict[str, str] | None:
    """``a="b",c="d"}`` as a dictionary; None when it has another form. Escapes are undone."""
    labels: dict[str, str] = {}
    position, length = 0, len(text)
    while True:
        while position < length and text[position] in " \t,":
            position += 1
        if position >= length:
            return None
        if text[position] == "}":
            return labels if not text[position + 1 :].strip() else None
        equals = text.find("=", position)
        if equals < 0:
            return None
        name = text[position:equals].strip()
        position = equals + 1
        while position < length and text[position] in " \t":
            position += 1
        if not is_name(name) or position >= length or text[position] != '"':
            return None
        value, position = _quoted(text, position + 1)
        if position < 0:
            return None
        labels[name] = value


def _quoted(text: str, start: int) -> tuple[str, int]:
    """The string that begins at ``start``, and where it is over (-1: never)."""
    end = text.find('"', start)
    if end >= 0 and "\\" not in text[start:end]:
        return text[start:end], end + 1
    out: list[str] = []
    position = start
    while position < len(text):
        char = text[position]
        if char == '"':
            return "".join(out), position + 1
        if char == "\\" and position + 1 < len(text):
            position += 1
            out.append(_ESCAPES.get(text[position], "\\" + text[position]))
        else:
            out.append(char)
        position += 1
    return "", -1
