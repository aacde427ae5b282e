"""Panels as one SVG: the share of values at or below each time (ECDF), a step line a column."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kvtop.analysis.stats import percentile
from kvtop.cli.text import format_ns
from kvtop.plots.axes import Axis
from kvtop.plots.panels import Panel, Series
from kvtop.plots.sheet import (
    FOOT,
    GAP,
    HEIGHT,
    LEFT,
    ROW,
    TITLE,
    colour,
    dash,
    grid,
    page,
    place,
    safe,
    short,
    swatch,
)

LEGEND_COLUMNS = (470, 560, 668, 776)  # right ends of n, p50, p99, max


def render(panels: Sequence[Panel], scale: str = "auto") -> str:
    """The text of an SVG file with the panels below each other. ``scale`` of the time axis: auto, log or linear."""
    heights = [_height(panel) for panel in panels]
    parts: list[str] = []
    top = 0
    for panel, height in zip(panels, heights, strict=True):
        parts += [f'<g transform="translate(0 {top})">', *_panel(panel, scale), "</g>"]
        top += height
    return page("; ".join(panel.title for panel in panels), sum(heights), parts)


def _height(panel: Panel) -> int:
    return _top(panel) + HEIGHT + FOOT


def _top(panel: Panel) -> int:
    """Where the area begins, below the legend."""
    return TITLE + ROW * (1 + len(panel.series)) + GAP


def _panel(panel: Panel, scale: str) -> Iterator[str]:
    axis = Axis.over((value for series in panel.series for value in series.values), scale)
    yield f'<text class="title" x="{LEFT}" y="28">{safe(panel.title)}</text>'
    yield f'<text class="quiet" x="{LEFT}" y="48">{safe(_subtitle(panel))}</text>'
    yield from _legend(panel)
    top = _top(panel)
    levels = ((share, round(top + HEIGHT - HEIGHT * share / 100, 1)) for share in (0, 25, 50, 75, 100))
    up = f"share of {panel.plotted.counted}s at or below"
    yield from grid(axis, axis.ticks(), levels, top, panel.plotted.label, up)
    for index, series in enumerate(panel.series):
        yield from _line(series, axis, top, index)


def _subtitle(panel: Panel) -> str:
    words = ["simulated: virtual clock"] if panel.simulated else []
    most = max(series.num_runs for series in panel.series)
    pooled = [f"{most} replicates pooled"] if most > 1 else []
    return " · ".join([*words, *panel.facts, *pooled])


def _legend(panel: Panel) -> Iterator[str]:
    y = TITLE + 12
    for x, word in zip(LEGEND_COLUMNS, ("n", "p50", "p99", "max"), strict=True):
        yield f'<text class="quiet end" x="{x}" y="{y}">{word}</text>'
    for index, series in enumerate(panel.series):
        y += ROW
        yield swatch(index, y)
        yield f'<text x="{LEFT + 40}" y="{y}">{safe(short(series.label))}</text>'
        figures = (percentile(series.values, q) for q in (50, 99, 100))
        cells = (f"{len(series.values):,}", *map(format_ns, figures))
        for x, cell in zip(LEGEND_COLUMNS, cells, strict=True):
            yield f'<text class="end" x="{x}" y="{y}">{safe(cell)}</text>'


def _line(series: Series, axis: Axis, top: int, index: int) -> Iterator[str]:
    if not series.values:
        return
    bottom, num = top + HEIGHT, len(series.values)
    path = [f"M{place(axis, series.values[0])} {bottom}"]
    for x, rank in _steps(series.values, axis):
        path.append(f"H{x}V{round(bottom - HEIGHT * rank / num, 1)}")
    line = f'class="line c{colour(index)}"{dash(index)}'
    yield f'<path {line} d="{"".join(path)}"><title>{safe(series.label)}</title></path>'
    yield f'<circle class="d{colour(index)}" cx="{place(axis, series.values[-1])}" cy="{top}" r="3.5"/>'


def _steps(values: list[float], axis: Axis) -> Iterator[tuple[float, int]]:
    """Where the line steps and how many values are then behind it; what is within a tenth of a pixel is one step."""
    for rank, value in enumerate(values, 1):
        x = place(axis, value)
        if rank == len(values) or place(axis, values[rank]) != x:
            yield x, rank
