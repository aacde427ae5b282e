"""The language that picks requests: ``tenant:acme why:evicted wait>1s hit<10 state:waiting r7``.

    filter = term*                          all of them hold
    term   = ["!"] word                     the id holds the word
           | ["!"] KEY ":" word ["," word]* the value begins with one of the words; ``*`` stands for any letters
           | KEY OP NUMBER [UNIT]           OP: < <= > >= =

Durations take ns, us, ms, s or min (a bare number is seconds), ratios a percentage (``hit<10``: less than ten percent),
all else bare numbers, with k or M behind them. A value that is not known matches nothing, and neither does its ``!``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from kvtop.analysis.objectives import DURATIONS
from kvtop.engine.errors import UnknownName, UsageError
from kvtop.state.request_rows import END_STATES, LIVE_STATES, Row

Test = Callable[[Row], bool]

_TERM = re.compile(r"(!?)([A-Za-z_]+)(:|<=|>=|<|>|=)(.*)", re.DOTALL)
_NUMBER = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*([A-Za-zµ%]*)")
_MANY = {"": 1, "k": 1e3, "K": 1e3, "M": 1e6}


@dataclass(frozen=True, slots=True)
class Key:
    """What a filter may ask for. ``kind``: text, count, ratio or ns; ``read`` names an attribute of ``Row``."""

    kind: str
    read: str
    meaning: str
    values: tuple[str, ...] = ()  # of a text that has few
    words: tuple[str, ...] = ()  # further names of those values, first letters included


KEYS: dict[str, Key] = {
    "id": Key("text", "name", "request or branch"),
    "state": Key("text", "status", "what it does", (*LIVE_STATES, *END_STATES, "running")),
    "tenant": Key("text", "tenant", "whose it is"),
    "class": Key("text", "klass", "class of the workload"),
    "session": Key("text", "session", "conversation"),
    "prefix": Key("text", "prefix", "key of its first block"),
    "why": Key("text", "why", "why its prefix match ended"),
    "reason": Key("text", "reason", "why it waits, or how it ended"),
    "wait": Key("ns", "wait_ns", "waiting now, for so long"),
    "queue": Key("ns", "queue_ns", "from submission to its first step"),
    "ttft": Key("ns", "ttft_ns", "time to first token"),
    "itl": Key("ns", "itl_ns", "last gap; of an ended one its longest"),
    "tpot": Key("ns", "tpot_ns", "mean gap"),
    "age": Key("ns", "age_ns", "since it was due; of an ended one until its end"),
    "eta": Key("ns", "eta_ns", "until its token limit, at its pace"),
    "hit": Key("ratio", "hit", "share of its prompt found in the cache"),
    "prompt": Key("count", "prompt", "prompt tokens"),
    "cached": Key("count", "cached", "prompt tokens found in the cache"),
    "output": Key("count", "output", "tokens so far"),
    "max": Key("count", "max", "most tokens"),
    "blocks": Key("count", "blocks", "blocks held"),
    "shared": Key("count", "shared", "of them, held by others too"),
    "preemptions": Key("count", "preemptions", "how often it lost its blocks"),
    "redo": Key("count", "redo", "tokens computed again"),
}


@dataclass(frozen=True, slots=True)
class Filter:
    """``matches`` says whether a row passes; ``text`` is what was asked, tidied. An empty one passes everything."""

    text: str = ""
    tests: tuple[Test, ...] = ()

    def matches(self, row: Row) -> bool:
        return all(test(row) for test in self.tests)

    def keep(self, rows: Iterable[Row]) -> list[Row]:
        return list(rows) if not self.tests else [row for row in rows if self.matches(row)]


EVERYTHING = Filter()


def parse_filter(text: str) -> Filter:
    """The filter that ``text`` says.

    Raises:
        UnknownName: a key that there is not, or a state, with the nearest one.
        UsageError: a term that cannot be read: which, and what was expected.
    """
    terms = text.split()
    return Filter(" ".join(terms), tuple(_term(term) for term in terms))


def _term(term: str) -> Test:
    match = _TERM.fullmatch(term)
    if match is None:
        word = term.removeprefix("!")
        if not word or not re.fullmatch(r"[^:<>=!]+", word):
            raise UsageError(f"filter: {term!r} cannot be read, expected a word of an id, key:word or key>number")
        return _negated(lambda row: word in row.name, term.startswith("!"))
    negated, name, op, value = match.groups()
    if name not in KEYS:
        raise UnknownName("key in the filter", name, KEYS)
    key = KEYS[name]
    if key.kind == "text":
        if op not in (":", "="):
            raise UsageError(f"filter: {term!r}: {name} is a word, expected {name}:word")
        return _negated(_text_test(name, key, value, term), bool(negated))
    if negated:
        raise UsageError(f"filter: {term!r}: ! goes with words; {name} takes < and >")
    return _number_test(name, key, "=" if op == ":" else op, value, term)


def _negated(test: Test, negated: bool) -> Test:
    return (lambda row: not test(row)) if negated else test


def _text_test(name: str, key: Key, value: str, term: str) -> Test:
    words = [word for word in value.split(",") if word]
    if not words:
        raise UsageError(f"filter: {term!r}: expected a word behind {name}:")
    for word in words:
        if key.values and not any(_fits(valid, word) for valid in key.values):
            raise UnknownName(name, word, key.values)
    read = key.read
    if name == "state":
        return lambda row: any(_fits(row.status, w) or (_fits("running", w) and row.is_running) for w in words)
    return lambda row: any(_fits(getattr(row, read), word) for word in words)


def _fits(value: str, word: str) -> bool:
    if "*" in word:
        return fnmatchcase(value, word)
    return value.startswith(word)


_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
    "=": lambda a, b: a == b,
}


def _number_test(name: str, key: Key, op: str, value: str, term: str) -> Test:
    match = _NUMBER.fullmatch(value)
    if match is None:
        raise UsageError(f"filter: {term!r}: expected a number behind {name}{op}, such as {_example(name, key)}")
    scale, read, compare = _scale(name, key, match[2], term), key.read, _COMPARE[op]
    bound = float(match[1]) * scale

    def test(row: Row) -> bool:
        found = getattr(row, read)
        return found is not None and compare(found, bound)

    if name == "wait":  # those that run do not wait, not even for less than something
        return lambda row: bool(row.wait_ns) and test(row)
    return test


def _scale(name: str, key: Key, unit: str, term: str) -> float:
    units: dict[str, float] = {
        "ns": {**DURATIONS, "": 1e9},
        "ratio": {"": 0.01, "%": 0.01},
        "count": _MANY,
    }[key.kind]
    if unit in units:
        return units[unit]
    raise UsageError(f"filter: {term!r}: {name} takes no {unit!r}, expected {_units(key)}")


def _units(key: Key) -> str:
    if key.kind == "ns":
        return f"seconds, or a unit ({', '.join(u for u in DURATIONS if u.isascii())})"
    return "a percentage" if key.kind == "ratio" else "a bare number (k and M for thousands and millions)"


def _example(name: str, key: Key) -> str:
    return {"ns": f"{name}>1s", "ratio": f"{name}<10", "count": f"{name}>100"}[key.kind]


def grammar() -> str:
    """The language in a few lines, for help."""
    lines = [f"  {name:<12}{key.meaning}" for name, key in KEYS.items()]
    return "\n".join(lines)
