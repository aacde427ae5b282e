"""What is left out of a plot, held to plain loops."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtop.plots.axes import Axis
from kvtop.report.thin import ECDF_PLACES, ecdf, keep_extremes

VALUES = st.lists(st.integers(0, 50), min_size=1, max_size=400)


@settings(max_examples=60, deadline=None)
@given(VALUES, st.integers(1, 12), st.randoms(use_true_random=False))
def test_every_stretch_keeps_its_least_and_its_most(values: list[int], num_intervals: int, random) -> None:
    t = np.cumsum([random.choice((0.1, 0.5, 3.0)) for _ in values])
    column = np.array(values)
    kept = keep_extremes(t, [column], num_intervals)
    assert {0, len(values) - 1} <= set(kept.rows.tolist())
    assert np.all(np.diff(kept.rows) > 0)
    if kept.interval is None:
        assert len(kept.rows) == len(values)
        return
    assert len(kept.rows) <= 2 * num_intervals + 2
    place = [min(int((at - t[0]) / kept.interval), num_intervals - 1) for at in t]
    for stretch in set(place):
        inside = [values[i] for i in range(len(values)) if place[i] == stretch]
        shown = [values[i] for i in kept.rows if place[i] == stretch]
        assert (min(shown), max(shown)) == (min(inside), max(inside))


def test_a_single_spike_among_many_steps_is_kept() -> None:
    column = np.zeros(100_000)
    column[70_007] = 9
    kept = keep_extremes(np.arange(100_000.0), [column], 100)
    assert 70_007 in kept.rows
    assert len(kept.rows) <= 202


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 10**10), min_size=1, max_size=3_000))
def test_an_ecdf_is_exact_where_it_steps_and_less_than_a_place_off_elsewhere(values: list[int]) -> None:
    ordered = sorted(values)
    axis = Axis.over(ordered)
    points = ecdf(ordered, axis)
    assert points[0] == (ordered[0], 0.0)
    assert points[-1] == (ordered[-1], 1.0)
    assert len(points) <= ECDF_PLACES + 2
    array = np.array(ordered)
    for value, share in points[1:]:
        assert share == np.count_nonzero(array <= value) / len(array)
    drawn = np.array([axis.place(value) for value, _ in points[1:]])
    gaps = [np.abs(drawn - axis.place(value)).min() for value in ordered]
    assert max(gaps) <= 1 / ECDF_PLACES


def test_an_ecdf_of_nothing_has_no_points() -> None:
    assert ecdf([], Axis.over([1.0])) == []
