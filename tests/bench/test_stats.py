"""Percentiles: linear interpolation, None when empty, never NaN."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtop.analysis.stats import Distribution, mean, percentile, ratio

values = st.lists(st.integers(-(10**12), 10**12), min_size=1, max_size=50)


@given(values, st.floats(0, 100))
@settings(max_examples=200, deadline=None)
def test_percentile_agrees_with_numpy(numbers: list[int], q: float) -> None:
    import numpy as np

    expected = float(np.percentile(numbers, q))
    found = percentile(sorted(numbers), q)
    assert found is not None
    assert math.isclose(found, expected, rel_tol=1e-9, abs_tol=1e-3)


def test_percentiles_between_two_values_are_interpolated() -> None:
    assert percentile([10, 20], 50) == 15
    assert percentile([10, 20, 30, 40], 95) == pytest.approx(38.5)
    assert percentile([7], 99) == 7


def test_nothing_is_none_and_not_zero() -> None:
    assert percentile([], 50) is None
    assert mean([]) is None
    assert ratio(3, 0) is None
    assert ratio(None, 4) is None
    assert ratio(0, 4) == 0
    assert Distribution.of([None, None]) == Distribution(0)


def test_a_distribution_leaves_missing_values_out() -> None:
    found = Distribution.of([None, 4, 2, None])
    assert (found.n, found.mean, found.p50, found.max) == (2, 3, 3, 4)
