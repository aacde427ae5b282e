"""How counts and found values read in a one-line message."""

from __future__ import annotations


def shorten(value: object, width: int = 60) -> str:
    """``repr`` of a value found in a file, cut so that the message stays one short line."""
    text = repr(value[: width + 1] if isinstance(value, str) else value)
    return text if len(text) <= width else text[: width - 3] + "..."


def counted(count: int, noun: str) -> str:
    """``counted(1, "row")`` is "1 row", ``counted(2000, "row")`` is "2,000 rows", ``counted(2, "copy")`` "2 copies"."""
    if count == 1:
        return f"1 {noun}"
    several = f"{noun[:-1]}ies" if noun.endswith("y") and noun[-2] not in "aeiou" else f"{noun}s"
    return f"{count:,} {several}"


def was(count: int) -> str:
    """The verb that fits ``count``."""
    return "was" if count == 1 else "were"
