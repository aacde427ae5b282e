"""Values in running text: where a line is cut or broken, a number keeps its digits and its unit."""

from __future__ import annotations

import re
import textwrap

# 12, 1,024, 0:15.314, 17/256; no part of a name (r22, conv-49). Units: ms, %, blocks, tok/s, GiB; no "4 Requests".
_VALUE = re.compile(
    r"(?<![\w#-])[+~-]?\d(?:[\d.,:]*\d)?(?:/\d(?:[\d.,]*\d)?)?"
    r"(?: ?(?:%|[KMGT]?i?B|[^\W\d_A-Z][^\W\d_]*(?:/[^\W\d_]+)?))?(?![\w-])"
)


def kept_whole(text: str, count: int) -> int:
    """How many of the first ``count`` characters stay where ``text`` is cut there: a value whole, or not at all.

    A number that is all there is, a name perhaps, is cut like a word. A comma behind a number stays: "12…" might be
    1,234, "12,…" is 12.
    """
    kept = len(text[:count].rstrip(" "))
    for value in _VALUE.finditer(text):
        if value.start() >= kept:
            break
        if kept < value.end() and value[0] != text.strip():
            kept = len(text[: value.start()].rstrip(" "))
    return kept


def bound(text: str) -> str:
    """``text`` with spaces that do not break between a number and its unit."""
    return _VALUE.sub(lambda value: value[0].replace(" ", "\u00a0"), text)


def wrap(text: str, width: int, *, indent: str = "", break_long_words: bool = True) -> list[str]:
    """``text`` in lines of at most ``width`` cells, broken at spaces, and at none between a number and its unit.

    ``indent`` goes before all lines but the first.
    """
    lines = textwrap.wrap(
        bound(text), width, subsequent_indent=indent, break_long_words=break_long_words, break_on_hyphens=False
    )
    return [line.replace("\u00a0", " ") for line in lines]
