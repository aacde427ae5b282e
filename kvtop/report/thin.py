"""Fewer points for a plot, chosen so that it looks the same: what was left out is told in the caption."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kvtop.plots.axes import Axis

ECDF_PLACES = 600
"""Places along the axis of an ECDF: what falls on one place is one step, less than a pixel off."""


@dataclass(frozen=True, slots=True)
class Thinned:
    """Which rows are kept, ascending; ``interval`` (in the unit of ``t``) is None where all of them are."""

    rows: np.ndarray
    interval: float | None


def keep_extremes(t: np.ndarray, columns: Sequence[np.ndarray], num_intervals: int) -> Thinned:
    """Of each of ``num_intervals`` equal stretches of ``t`` (ascending) the rows where a column is least and most, the
    first and the last row besides. All rows where that would be hardly fewer.
    """
    if len(t) <= 2 * num_intervals * len(columns):
        return Thinned(np.arange(len(t)), None)
    interval = float(t[-1] - t[0]) / num_intervals
    place = np.minimum(((t - t[0]) / interval).astype(np.int64), num_intervals - 1)
    kept = [np.array([0, len(t) - 1])]
    for column in columns:
        order = np.lexsort((column, place))  # stable: of equal values the first of a stretch is its least
        starts = np.flatnonzero(np.diff(place[order], prepend=-1))
        ends = np.append(starts[1:], len(order)) - 1
        kept += [order[starts], order[ends]]
    return Thinned(np.unique(np.concatenate(kept)), interval)


def ecdf(values: Sequence[float], axis: Axis) -> list[tuple[float, float]]:
    """(value, share of values at or below it) for ascending ``values``: a step for each place on the axis that is
    reached, with the last value on it, after a first point of share 0.
    """
    if not values:
        return []
    low, num = values[0], len(values)
    points = [(low, 0.0)]
    places = [round(axis.place(value) * ECDF_PLACES) for value in values]
    for index, value in enumerate(values):
        if index == num - 1 or places[index + 1] != places[index]:
            points.append((value, (index + 1) / num))
    return points
