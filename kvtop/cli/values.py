"""Strict readers of command-line values. Each raises ``ArgumentTypeError`` with one line that argparse prefixes."""

from __future__ import annotations

import re
from argparse import ArgumentTypeError
from collections.abc import Callable
from decimal import Decimal, InvalidOperation

_UNITS = {
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
}
_BY_LOWER = {unit.lower(): scale for unit, scale in _UNITS.items()}
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?(?:[eE]\+?[0-9]{1,2})?)\s*([A-Za-z]*)")

MAX_COUNT = 10**15
"""Larger than any count of layers, tokens or blocks that means something; keeps results printable."""


def size_bytes(text: str) -> int:
    """Bytes from ``2GiB``, ``512MiB``, ``1.5GB``, ``80e9``: exact, whole and positive.

    Raises:
        ArgumentTypeError: no number, an unknown or ambiguous unit, a fraction of a byte, zero or absurdly much.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ArgumentTypeError(
            f"{text!r} is not a size (expected a positive number with a unit, e.g. 2GiB, 512MiB, 80e9)"
        )
    number, unit = match.groups()
    scale = _BY_LOWER.get(unit.lower()) if unit else 1
    if scale is None:
        raise ArgumentTypeError(_unit_hint(text, number, unit))
    value = Decimal(number) * scale
    if value != value.to_integral_value():
        raise ArgumentTypeError(f"{text!r} is {value} bytes, expected a whole number of bytes")
    if not 0 < value <= 2**60:
        raise ArgumentTypeError(f"{text!r} is {value:g} bytes, expected more than 0 and at most 1024 PiB")
    return int(value)


def _unit_hint(text: str, number: str, unit: str) -> str:
    if unit.upper() in ("K", "M", "G", "T"):
        letter = unit.upper()
        return f"{text!r} is ambiguous: write {number}{letter}iB (powers of 1024) or {number}{letter}B (powers of 1000)"
    return f"{text!r} has the unknown unit {unit!r} (valid: {', '.join(_UNITS)})"


def count(text: str) -> int:
    """A positive whole number; ``70e9`` and ``8_000`` are fine."""
    value = _whole(text)
    if not 0 < value <= MAX_COUNT:
        most = f", at most {MAX_COUNT:,}" if value > 0 else ""
        raise ArgumentTypeError(f"{text!r} is out of range (expected a whole number >= 1{most})")
    return value


def count_or_zero(text: str) -> int:
    """A whole number >= 0."""
    value = _whole(text)
    if not 0 <= value <= MAX_COUNT:
        raise ArgumentTypeError(f"{text!r} is out of range (expected a whole number >= 0)")
    return value


def port_number(text: str) -> int:
    """A TCP port; 0 stands for any that is free."""
    value = _whole(text)
    if not 0 <= value <= 65_535:
        raise ArgumentTypeError(f"{text!r} is no port (expected 0 to 65535)")
    return value


def _whole(text: str) -> int:
    try:
        value = Decimal(text.strip().replace("_", ""))
    except InvalidOperation:
        raise ArgumentTypeError(f"{text!r} is not a whole number") from None
    if not value.is_finite() or abs(value) > 10**18 or value != value.to_integral_value():
        raise ArgumentTypeError(f"{text!r} is not a whole number (in a sensible range)")
    return int(value)


def positive(text: str) -> float:
    """A finite number > 0."""
    value = _number(text)
    if not 0.0 < value < float("inf"):
        raise ArgumentTypeError(f"{text!r} is out of range (expected a finite number > 0)")
    return value


def not_negative(text: str) -> float:
    """A finite number >= 0."""
    value = _number(text)
    if not 0.0 <= value < float("inf"):
        raise ArgumentTypeError(f"{text!r} is out of range (expected a finite number >= 0)")
    return value


def fraction(text: str) -> float:
    """A number with 0 < x <= 1."""
    value = _number(text)
    if not 0.0 < value <= 1.0:
        raise ArgumentTypeError(f"{text!r} is out of range (expected more than 0 and at most 1)")
    return value


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is not a number") from None


def one_of(what: str, valid: tuple[str, ...]) -> Callable[[str], str]:
    """A reader that accepts the given names and tells the nearest one otherwise."""

    def read(text: str) -> str:
        from kvtop.engine.errors import UnknownName

        if text not in valid:
            raise ArgumentTypeError(str(UnknownName(what, text, valid)))
        return text

    return read
