"""How counts and found values read in a one-line message."""

from __future__ import annotations


def shorten(value: object, width: int = 60) -> str:
    """``repr`` of a value found in a file, cut so that the message stays one short line."""
    text = repr(value[: width + 1] if isinstance(value, str) else value)
    return text if len(text) <= width else text[: width - 3] + "..."


def counted(count: int, noun: str) -> str:
    """``counted(1, "row")`` is "1 row", ``counted(2000, "row")`` is "2,000 rows"."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
