"""Shares over a number of blocks: what to draw, as lines of text and as SVG."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kvtop.plots.axes import Axis
from kvtop.plots.sheet import (
    FOOT,
    GAP,
    HEIGHT,
    LEFT,
    RIGHT,
    ROW,
    TITLE,
    WIDTH,
    colour,
    dash,
    grid,
    page,
    place,
    safe,
    swatch,
)

MARKS = "o+x#*%@&"
TEXT_HEIGHT = 12
DEFAULT_WIDTH = 100
MIN_AREA = 24
EDGE = 9  # characters before the area of a text plot


@dataclass(frozen=True, slots=True)
class Curve:
    """One line: its name, what it means, and a share from 0 to 1 at each place on the axis."""

    label: str
    meaning: str
    shares: list[float]


@dataclass(frozen=True, slots=True)
class CurvePlot:
    """Curves over the same ascending numbers of blocks, and the share that none exceeds."""

    title: str
    subtitle: str
    across: str
    up: str
    places: list[int]
    curves: list[Curve]
    limit: Curve  # its one share

    def axes(self) -> tuple[Axis, Axis]:
        """Across (log where places spread widely) and up (percent)."""
        shares = [100 * share for curve in (*self.curves, self.limit) for share in curve.shares]
        return Axis.over(self.places), Axis.over([max([1.0, *shares])], "linear")


def blocks_text(value: float) -> str:
    """``500``, ``20k``, ``1.5M``."""
    for scale, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= scale:
            return f"{value / scale:.6g}{unit}"
    return f"{value:.6g}"


def render_text(plot: CurvePlot, width: int | None = None) -> str:
    """A mark a value; where two fall on one place the later curve's is seen. ``width`` in characters (default 100)."""
    x, y = plot.axes()
    area = max(MIN_AREA, (width or DEFAULT_WIDTH) - EDGE - 1)
    cells = [[" "] * area for _ in range(TEXT_HEIGHT + 1)]
    level = TEXT_HEIGHT - round(y.place(100 * plot.limit.shares[0]) * TEXT_HEIGHT)
    cells[level] = ["."] * area
    for mark, curve in zip(_marks(plot.curves), plot.curves, strict=True):
        for blocks, share in zip(plot.places, curve.shares, strict=True):
            row = TEXT_HEIGHT - round(y.place(100 * share) * TEXT_HEIGHT)
            cells[row][round(x.place(blocks) * (area - 1))] = mark
    legend = "  ".join(f"{mark} {curve.label}" for mark, curve in zip(_marks(plot.curves), plot.curves, strict=True))
    lines = [f"{plot.up}   {legend}  . {plot.limit.label}"]
    for index, row in enumerate(cells):
        share = y.high * (TEXT_HEIGHT - index) / TEXT_HEIGHT
        edge = f"{share:5.1f} % " if index % 3 == 0 else " " * (EDGE - 1)
        lines.append(f"{edge}|{''.join(row)}".rstrip())
    return "\n".join([*lines, *_ticks(x, area), f"{' ' * EDGE}{plot.across}"])


def _marks(curves: Sequence[Curve]) -> list[str]:
    return [MARKS[index % len(MARKS)] for index in range(len(curves))]


def _ticks(axis: Axis, area: int) -> list[str]:
    """A dash line with marks, and the numbers below them, as far as they do not touch."""
    rule, words = ["-"] * area, [" "] * (area + 12)
    free = 0
    for value, _ in axis.ticks():
        column, word = round(axis.place(value) * (area - 1)), blocks_text(value)
        rule[column] = "+"
        start = max(0, column - len(word) // 2)
        if start >= free and start + len(word) <= len(words):
            words[start : start + len(word)] = word
            free = start + len(word) + 1
    return [f"{' ' * EDGE}{''.join(rule)}", f"{' ' * EDGE}{''.join(words)}".rstrip()]


def render_svg(plot: CurvePlot) -> str:
    """The text of an SVG file."""
    top = TITLE + ROW * (len(plot.curves) + 1) + GAP
    return page(plot.title, top + HEIGHT + FOOT, _parts(plot, top))


def _parts(plot: CurvePlot, top: int) -> Iterator[str]:
    x, y = plot.axes()
    yield f'<text class="title" x="{LEFT}" y="28">{safe(plot.title)}</text>'
    yield f'<text class="quiet" x="{LEFT}" y="48">{safe(plot.subtitle)}</text>'
    for index, curve in enumerate((*plot.curves, plot.limit)):
        below = TITLE + 12 + ROW * index
        yield swatch(index, below)
        yield f'<text x="{LEFT + 40}" y="{below}">{safe(f"{curve.label}: {curve.meaning}")}</text>'
    words = ((value, blocks_text(value)) for value, _ in x.ticks())
    levels = ((percent, _up(y, percent / 100, top)) for percent, _ in y.ticks())
    yield from grid(x, words, levels, top, plot.across, plot.up)
    for index, curve in enumerate(plot.curves):
        points = [
            (place(x, blocks), _up(y, share, top)) for blocks, share in zip(plot.places, curve.shares, strict=True)
        ]
        yield from _line(curve, points, index)
    ends = [(float(LEFT), _up(y, plot.limit.shares[0], top)), (float(WIDTH - RIGHT), _up(y, plot.limit.shares[0], top))]
    yield from _line(plot.limit, ends, len(plot.curves), dots=False)


def _line(curve: Curve, points: list[tuple[float, float]], index: int, *, dots: bool = True) -> Iterator[str]:
    path = "L".join(f"{x} {y}" for x, y in points)
    yield f'<path class="line c{colour(index)}"{dash(index)} d="M{path}"><title>{safe(curve.label)}</title></path>'
    if dots:
        yield from (f'<circle class="d{colour(index)}" cx="{x}" cy="{y}" r="2.5"/>' for x, y in points)


def _up(axis: Axis, share: float, top: int) -> float:
    return round(top + HEIGHT * (1 - axis.place(100 * share)), 1)
