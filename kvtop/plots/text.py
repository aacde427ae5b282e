"""A panel as lines of text: p50, p95, p99 and the largest value of every column as marks on one common axis. ASCII."""

from __future__ import annotations

from kvtop.analysis.stats import percentile
from kvtop.plots.axes import Axis
from kvtop.plots.panels import Panel, Series

MARKS = ((50, "o", "p50"), (95, "+", "p95"), (99, "x", "p99"), (100, "#", "max"))
DEFAULT_WIDTH = 100
MIN_AREA = 24
MAX_LABEL = 32


def render(panel: Panel, *, width: int | None = None, scale: str = "auto") -> str:
    """A line a column, then the axis. A mark that falls on another hides it; later in ``MARKS`` wins.

    ``width`` in characters (default 100); narrower than the labels leave room for is not kept.
    """
    filled = [series for series in panel.series if series.values]
    log = ", log axis" if filled and _axis(filled, scale).log else ""
    simulated = " (simulated)" if panel.simulated else ""
    head = f"{panel.title}{simulated}{log}   {'  '.join(f'{mark} {name}' for _, mark, name in MARKS)}"
    labels = [_short(series.label) for series in panel.series]
    counts = [f"n {len(series.values):,}" for series in panel.series]
    left = max(map(len, labels)) + 2 + max(map(len, counts)) + 2
    area = max(MIN_AREA, (width or DEFAULT_WIDTH) - left - 2)
    if not filled:
        return f"{head}\nno values"
    axis = _axis(filled, scale)
    lines = [head]
    for series, label, count in zip(panel.series, labels, counts, strict=True):
        room = left - 4 - max(map(len, counts))
        lines.append(f"{label.ljust(room)}  {count.rjust(max(map(len, counts)))}  |{_marks(series, axis, area)}|")
    return "\n".join([*lines, *(f"{' ' * (left + 1)}{line}".rstrip() for line in _ticks(axis, area))])


def _axis(filled: list[Series], scale: str) -> Axis:
    """Over the marks, not over all values: what lies below every median needs no room."""
    return Axis.over(
        (v for series in filled for q, *_ in MARKS if (v := percentile(series.values, q)) is not None), scale
    )


def _marks(series: Series, axis: Axis, area: int) -> str:
    if not series.values:
        return " " * area
    places = [(_column(axis, percentile(series.values, q) or 0.0, area), mark) for q, mark, _ in MARKS]
    low, high = min(place for place, _ in places), max(place for place, _ in places)
    cells = [" "] * low + ["-"] * (high - low + 1) + [" "] * (area - high - 1)
    for place, mark in places:
        cells[place] = mark
    return "".join(cells)


def _ticks(axis: Axis, area: int) -> list[str]:
    """Two lines: a dash line with marks, and the words below them, as far as they do not touch."""
    rule, words = ["-"] * area, [" "] * (area + 12)
    free = 0
    for value, word in axis.ticks():
        place = _column(axis, value, area)
        rule[place] = "+"
        start = max(0, place - len(word) // 2)
        if start >= free and start + len(word) <= len(words):
            words[start : start + len(word)] = word
            free = start + len(word) + 1
    return ["".join(rule), "".join(words)]


def _column(axis: Axis, value: float, area: int) -> int:
    return round(axis.place(value) * (area - 1))


def _short(label: str) -> str:
    return label if len(label) <= MAX_LABEL else f"{label[: MAX_LABEL - 3]}..."
