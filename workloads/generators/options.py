"""Reads a generator's options: each value checked, the key in the message. ``within`` says which table it stands in."""

from __future__ import annotations

from random import Random
from typing import Any

from kvtop.engine.errors import WorkloadError
from kvtop.workloads.rows import MAX_LENGTH_TOKENS

MAX_REQUESTS = 1_000_000
NS_PER_S = 1_000_000_000


def integer(options: dict[str, Any], key: str, low: int, high: int, within: str = "") -> int:
    """A whole number from ``low`` to ``high``.

    Raises:
        WorkloadError: missing (None), of another type or out of range; so do the readers below.
    """
    value = options[key]
    if type(value) is not int or not low <= value <= high:
        raise WorkloadError(f"{within}{key} is {shown(value)}, expected an integer from {low:,} to {high:,}")
    return value


def number(options: dict[str, Any], key: str, low: float, high: float, within: str = "") -> float:
    """A number from ``low`` to ``high``, whole or not."""
    value = options[key]
    if type(value) not in (int, float) or not low <= value <= high:  # NaN compares false
        raise WorkloadError(f"{within}{key} is {shown(value)}, expected a number from {low:g} to {high:g}")
    return float(value)


def lengths(options: dict[str, Any], key: str, within: str = "") -> tuple[int, int]:
    """One number of tokens, or [low, high]."""
    value = options[key]
    bounds = [value, value] if type(value) is int else value
    ok = isinstance(bounds, list) and len(bounds) == 2 and all(type(b) is int for b in bounds)
    if not ok or not 1 <= bounds[0] <= bounds[1] <= MAX_LENGTH_TOKENS // 2:
        raise WorkloadError(
            f"{within}{key} is {shown(value)}, expected a number of tokens or [low, high] with 1 <= low <= high "
            f"<= {MAX_LENGTH_TOKENS // 2:,}"
        )
    return bounds[0], bounds[1]


def uniform(random: Random, bounds: tuple[int, int]) -> int:
    """A whole number from low to high, both included, each as likely as the others."""
    # Only Random.random() is promised to stay the same in every Python version.
    low, high = bounds
    return low + int(random.random() * (high - low + 1))


def shown(value: object) -> str:
    """A value in an error message."""
    return "missing" if value is None else repr(value)[:60]
