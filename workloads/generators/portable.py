"""Logarithm and exponential that give the same bits on every machine.

A C library's ``log`` and ``exp`` may differ in the last bit from one machine to the next, and with it a generated
arrival. These use only operations that IEEE 754 rounds exactly: + - * / and a square root.
"""

from __future__ import annotations

import math

_LN2 = 0.6931471805599453
_LN2_HIGH = 0.693147180369123816490  # 32 bits: k * _LN2_HIGH is exact
_LN2_LOW = 1.90821492927058770002e-10
_SQRT_HALF = 0.7071067811865476
_ODD = tuple(1.0 / k for k in range(23, 0, -2))  # atanh: s + s^3/3 + s^5/5 + ..., |s| < 0.172
_TERMS = 14  # of the exponential series, |r| < 0.347


def log(x: float) -> float:
    """Natural logarithm of a positive, finite number; within 4 units in the last place."""
    mantissa, exponent = math.frexp(x)  # 0.5 <= mantissa < 1
    if mantissa < _SQRT_HALF:
        mantissa, exponent = 2.0 * mantissa, exponent - 1
    s = (mantissa - 1.0) / (mantissa + 1.0)
    square, total = s * s, 0.0
    for coefficient in _ODD:
        total = total * square + coefficient
    return exponent * _LN2_HIGH + (exponent * _LN2_LOW + 2.0 * s * total)


def exp(x: float) -> float:
    """e to the x; 0 below the smallest number, within 4 units in the last place elsewhere.

    Raises:
        OverflowError: above the largest number.
    """
    if x < -745.2:
        return 0.0
    k = round(x / _LN2)
    r = (x - k * _LN2_HIGH) - k * _LN2_LOW
    total = 1.0
    for n in range(_TERMS, 0, -1):
        total = 1.0 + r / n * total
    return math.ldexp(total, k)


def power(base: float, exponent: float) -> float:
    """``base`` > 0 to any power."""
    return exp(exponent * log(base))
