"""Least squares without negative coefficients (Lawson and Hanson, "Solving Least Squares Problems", chapter 23)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def nnls(a: Floats, b: Floats) -> Floats:
    """x >= 0 that minimises ``|a @ x - b|``; ``a`` is (rows, columns), few columns. Zero columns get 0.

    Columns are scaled to length 1 first: here they count bytes in one place and steps in another.
    """
    scale = np.linalg.norm(a, axis=0)
    scale[scale == 0] = 1.0
    a = a / scale
    num = a.shape[1]
    x = np.zeros(num)
    passive = np.zeros(num, dtype=bool)
    gradient = a.T @ b
    tolerance = 1e-10 * max(1.0, float(np.abs(gradient).max(initial=0.0)))
    for _ in range(10 * num + 10):
        candidates = ~passive & (gradient > tolerance)
        if not candidates.any():
            break
        passive[np.argmax(np.where(candidates, gradient, -np.inf))] = True
        while True:
            trial = np.zeros(num)
            trial[passive] = np.linalg.lstsq(a[:, passive], b, rcond=None)[0]
            negative = passive & (trial <= 0)
            if not negative.any():
                break
            steps = x[negative] / (x[negative] - trial[negative])  # how far until the first of them is 0
            x = x + float(steps.min()) * (trial - x)
            passive &= x > 1e-14 * max(1.0, float(x.max(initial=0.0)))
            x[~passive] = 0.0
        x = trial
        gradient = a.T @ (b - a @ x)
    return x / scale
