"""The oracle of quantised K and V: every number of the format in a table, the nearest one looked up. Slow, obvious."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def e4m3_number(code: int) -> float:
    """The number of an e4m3 byte (OCP 8-bit floating point, no infinities): 1 sign, 4 exponent (bias 7), 3 mantissa."""
    sign, exponent, mantissa = -1.0 if code & 0x80 else 1.0, (code >> 3) & 0xF, code & 0x7
    if exponent == 0xF and mantissa == 0x7:
        return float("nan")
    if exponent == 0:
        return sign * mantissa / 8 * 2.0**-6
    return sign * (1 + mantissa / 8) * 2.0 ** (exponent - 7)


def numbers(kv_dtype: str) -> Array:
    """All numbers of the format that rows are stored as, ascending, zero once."""
    if kv_dtype == "int8":
        return np.arange(-127.0, 128.0)
    found = {e4m3_number(code) for code in range(256)}
    return np.array(sorted(number for number in found if not np.isnan(number)))


def round_trip(row: Array, kv_dtype: str) -> tuple[Array, float]:
    """What a finite row (D,) is read back as, and its scale: max|row| / the largest number, in fp32."""
    table = numbers(kv_dtype)
    smallest = np.finfo(np.float32).tiny
    scale = max(np.float32(np.abs(row).max()) / np.float32(table[-1]), smallest)
    nearest = [table[np.abs(table - x / np.float64(scale)).argmin()] for x in row.astype(np.float64)]
    return np.array(nearest) * np.float64(scale), float(scale)
