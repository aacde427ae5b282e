"""Reads a generator's options: each value checked, the key in the message. ``within`` says which table it stands in."""

from __future__ import annotations

import math
from typing import Any

from kvtop.engine.errors import WorkloadError

MAX_REQUESTS = 1_000_000
MAX_SECONDS = 1e7
NS_PER_S = 1_000_000_000


def integer(options: dict[str, Any], key: str, low: int, high: int, within: str = "") -> int:
    """A whole number from ``low`` to ``high``.

    Raises:
        WorkloadError: of another type or out of range; so do the readers below.
    """
    value = options[key]
    if type(value) is not int or not low <= value <= high:
        raise WorkloadError(f"{within}{key} is {shown(value)}, expected an integer from {low:,} to {high:,}")
    return value


def number(
    options: dict[str, Any], key: str, low: float, high: float, within: str = "", *, above: bool = False
) -> float:
    """A number from ``low`` (with ``above``: more than that) to ``high``, whole or not."""
    value = options[key]
    if not is_number(value) or not low <= value <= high or (above and value == low):
        how = "above" if above else "from"
        raise WorkloadError(f"{within}{key} is {shown(value)}, expected a number {how} {low:g} to {high:g}")
    return float(value)


def seconds(options: dict[str, Any], key: str, within: str = "", *, above: bool = False) -> float:
    """A duration in seconds, 0 or more (with ``above``: more)."""
    return number(options, key, 0.0, MAX_SECONDS, within, above=above)


def rate(options: dict[str, Any], key: str, within: str = "", *, zero: bool = False) -> float:
    """Arrivals per second."""
    if zero and options[key] == 0 and is_number(options[key]):
        return 0.0
    return number(options, key, 1e-6, 1e6, within)


def text(options: dict[str, Any], key: str, within: str = "") -> str:
    """A string."""
    value = options[key]
    if not isinstance(value, str):
        raise WorkloadError(f"{within}{key} is {shown(value)}, expected a string")
    return value


def is_number(value: object) -> bool:
    """An integer or a finite float or an infinity; no NaN, and no true or false."""
    return type(value) in (int, float) and not math.isnan(value)  # type: ignore[arg-type]


def shown(value: object) -> str:
    """A value in an error message."""
    return "missing" if value is None else repr(value)[:60]
