"""Values a user gave, checked by type and range: one line says the name, what was found and what was expected.

``error`` is the exception to raise: InvalidRequest for a request, ConfigError for a configuration.
"""

from __future__ import annotations

import math
import sys
from array import array
from collections.abc import Sequence as Seq
from operator import countOf

from kvtop.engine.errors import KvtopError

Error = type[KvtopError]

LARGEST, SMALLEST = sys.float_info.max, math.ulp(0.0)  # of fp64, above 0

INTEGER_CODES = "bBhHiIlLqQ"


def is_integer(value: object, low: int = -(1 << 63)) -> bool:
    """An int (no bool) of 64 bits, which is what events hold, and of at least ``low``."""
    return isinstance(value, int) and not isinstance(value, bool) and low <= value < 1 << 63


def check_integer(error: Error, name: str, value: object, low: int, *, or_none: bool = False) -> None:
    if not is_integer(value, low) and not (or_none and value is None):
        bits = " of 64 bits" if isinstance(value, int) and value > low else ""
        raise error(f"{name} is {value!r}, expected an integer >= {low}{bits}{' or None' if or_none else ''}")


def check_number(error: Error, name: str, value: object, low: float, high: float, expected: str) -> None:
    """A real number (no bool, no NaN) from ``low`` to ``high``, both finite."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not low <= value <= high:
        raise error(f"{name} is {value!r}, expected {expected}")


def check_flag(error: Error, name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise error(f"{name} is {value!r}, expected True or False")


def check_ids(error: Error, name: str, ids: object) -> None:
    """A sequence of integers. Looked through by C loops only: a prompt has thousands."""
    if isinstance(ids, range) or (isinstance(ids, array) and ids.typecode in INTEGER_CODES):
        return  # nothing else can be in it
    if isinstance(ids, memoryview) and ids.ndim == 1 and ids.format in INTEGER_CODES:
        return  # nothing else can be in it
    if not isinstance(ids, Seq) or isinstance(ids, str | bytes | bytearray):
        raise error(f"{name} is {type(ids).__name__}, expected a sequence of token ids")
    if countOf(map(type, ids), int) < len(ids):
        index, bad = next((i, token) for i, token in enumerate(ids) if type(token) is not int)
        raise error(f"{name}[{index}] is {bad!r}, expected a token id (an integer)")
