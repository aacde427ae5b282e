"""What a generator and its pieces are: named options with defaults, and a function that makes something of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec

from kvtop.engine.errors import UnknownName, WorkloadError
from kvtop.workloads.generators.draws import Draws
from kvtop.workloads.generators.options import shown
from kvtop.workloads.rows import RowSet

REQUIRED: Any = ...
"""Stands in for the default of an option that has none."""


class Generator(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of workload spec: ``generate(options, seed)`` checks the options and makes the rows.

    ``keys(options)`` are the options there are, which may depend on those given. ``generate`` raises WorkloadError for
    a value out of range; the key is in the message.
    """

    name: str
    summary: str
    keys: Callable[[dict[str, Any]], Iterable[str]]
    generate: Callable[[dict[str, Any], int], RowSet]


class Place(msgspec.Struct, frozen=True):
    """Where an option stands, for messages and for the files it names."""

    within: str = ""  # before every key in a message
    column: str = "prompt"  # which of a trace's lengths: prompt or output
    whole: bool = True  # whole numbers
    low: float = 0.0
    high: float = 1e15


class Distribution(msgspec.Struct, frozen=True, kw_only=True):
    """One family of numbers: ``make(options, place)`` checks the options and returns what draws one."""

    name: str
    summary: str
    options: dict[str, Any]
    make: Callable[[dict[str, Any], Place], Callable[[Draws], float]]


class Arrivals(msgspec.Struct, frozen=True, kw_only=True):
    """One arrival process: ``times(options, draws, within)`` checks the options and yields ns that never decrease."""

    name: str
    summary: str
    options: dict[str, Any]
    times: Callable[[dict[str, Any], Draws, str], Iterator[int]]


def placed(what: str, within: str) -> str:
    """The kind of thing that a name is not, and where it stands."""
    return f"{what} in {within.rstrip(' .:')}" if within else what


def pick(table: dict[str, Any], registry: dict[str, Any], what: str, within: str) -> tuple[Any, dict[str, Any]]:
    """The piece that a table's ``kind`` names, and its options with defaults.

    Raises:
        UnknownName: no such kind, or a key that it does not have.
        WorkloadError: no kind, or a required key is missing.
    """
    kind = table.get("kind")
    if not isinstance(kind, str):
        found = "is missing" if kind is None else f"is {shown(kind)}"
        raise WorkloadError(f"{within}kind {found}, expected one of {', '.join(registry)}")
    if kind not in registry:
        raise UnknownName(placed(what, f"{within}kind"), kind, registry)
    piece = registry[kind]
    given = {key: value for key, value in table.items() if key != "kind"}
    return piece, filled(given, piece.options, f"key of {what} {kind}", within)


def filled(given: dict[str, Any], options: dict[str, Any], what: str, within: str) -> dict[str, Any]:
    """``given`` with the defaults of what is not; the errors of ``pick``."""
    for key in given:
        if key not in options:
            raise UnknownName(placed(what, within), key, options or ("(none)",))
    for key, default in options.items():
        if default is REQUIRED and key not in given:
            raise WorkloadError(f"{within}{key} is missing")
    return {**options, **given}
