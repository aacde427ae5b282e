"""Panels as one SVG: the share of values at or below each time (ECDF), a step line a column.

Plain SVG 1.1 with a style sheet, so that a page shows it as an image: no script, no font of its own. Colours follow the
reader's light or dark scheme; lines differ in their dashes too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from kvtop.cli.text import format_ns
from kvtop.plots.axes import Axis
from kvtop.plots.panels import Panel, Series
from kvtop.stats import percentile

WIDTH = 800
LEFT, RIGHT = 64, 24  # of the plot's area
HEIGHT = 220  # of the plot's area
TITLE, ROW, GAP, FOOT = 62, 18, 32, 62  # above the legend, a line of it, between it and the area, below that
LEGEND_COLUMNS = (470, 560, 668, 776)  # right ends of n, p50, p99, max
MAX_LABEL = 58

_LIGHT = ("#0068a8", "#c8500a", "#00795a", "#a8387c", "#7a5c00", "#5b48c0", "#b02020", "#4f5b66")
_DARK = ("#5cb8f2", "#f2994a", "#3cc99a", "#ee86bd", "#d9b93c", "#a99bff", "#ff7b72", "#aab4be")
_DASHES = ("", "7 3", "2 3", "10 3 2 3")

_STYLE = """\
text { font: 12px system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif; fill: #1f2328 }
.title { font-size: 15px; font-weight: 600 }
.quiet { fill: #59636e }
.page { fill: #ffffff }
.grid { stroke: #d7dce1; stroke-width: 1 }
.axis { stroke: #59636e; stroke-width: 1 }
.end { text-anchor: end }
.middle { text-anchor: middle }
.line { fill: none; stroke-width: 2; stroke-linejoin: round }
"""
_DARK_STYLE = """\
text { fill: #e6edf3 }
.quiet { fill: #9aa5b1 }
.page { fill: #0d1117 }
.grid { stroke: #2b323b }
.axis { stroke: #9aa5b1 }
"""


def render(panels: Sequence[Panel], scale: str = "auto") -> str:
    """The text of an SVG file with the panels below each other. ``scale`` of the time axis: auto, log or linear."""
    heights = [_height(panel) for panel in panels]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{sum(heights)}" '
        f'viewBox="0 0 {WIDTH} {sum(heights)}" role="img">',
        f"<title>{_text('; '.join(panel.title for panel in panels))}</title>",
        f"<style>\n{_style()}</style>",
        '<rect class="page" width="100%" height="100%"/>',
    ]
    top = 0
    for panel, height in zip(panels, heights, strict=True):
        parts += [f'<g transform="translate(0 {top})">', *_panel(panel, scale), "</g>"]
        top += height
    return "\n".join([*parts, "</svg>", ""])


def _height(panel: Panel) -> int:
    return _top(panel) + HEIGHT + FOOT


def _top(panel: Panel) -> int:
    """Where the area begins, below the legend."""
    return TITLE + ROW * (1 + len(panel.series)) + GAP


def _style() -> str:
    def lines(colours: tuple[str, ...]) -> str:
        return "".join(
            f".c{i} {{ stroke: {colour} }}\n.d{i} {{ fill: {colour} }}\n" for i, colour in enumerate(colours)
        )

    return f"{_STYLE}{lines(_LIGHT)}@media (prefers-color-scheme: dark) {{\n{_DARK_STYLE}{lines(_DARK)}}}\n"


def _panel(panel: Panel, scale: str) -> Iterator[str]:
    axis = Axis.over((value for series in panel.series for value in series.values), scale)
    yield f'<text class="title" x="{LEFT}" y="28">{_text(panel.title)}</text>'
    yield f'<text class="quiet" x="{LEFT}" y="48">{_text(_subtitle(panel))}</text>'
    yield from _legend(panel)
    top = _top(panel)
    yield from _frame(panel, axis, top)
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
        swatch = f'x1="{LEFT}" x2="{LEFT + 30}" y1="{y - 4}" y2="{y - 4}"'
        yield f'<line class="line c{_colour(index)}"{_dash(index)} {swatch}/>'
        yield f'<text x="{LEFT + 40}" y="{y}">{_text(_short(series.label))}</text>'
        figures = (percentile(series.values, q) for q in (50, 99, 100))
        cells = (f"{len(series.values):,}", *map(format_ns, figures))
        for x, cell in zip(LEGEND_COLUMNS, cells, strict=True):
            yield f'<text class="end" x="{x}" y="{y}">{_text(cell)}</text>'


def _frame(panel: Panel, axis: Axis, top: int) -> Iterator[str]:
    bottom, right = top + HEIGHT, WIDTH - RIGHT
    for share in (0, 25, 50, 75, 100):
        y = round(bottom - HEIGHT * share / 100, 1)
        yield f'<line class="{"grid" if share else "axis"}" x1="{LEFT}" x2="{right}" y1="{y}" y2="{y}"/>'
        yield f'<text class="quiet end" x="{LEFT - 8}" y="{y + 4}">{share} %</text>'
    for value, word in axis.ticks():
        x = _x(axis, value)
        yield f'<line class="grid" x1="{x}" x2="{x}" y1="{top}" y2="{bottom}"/>'
        yield f'<line class="axis" x1="{x}" x2="{x}" y1="{bottom}" y2="{bottom + 4}"/>'
        yield f'<text class="quiet middle" x="{x}" y="{bottom + 18}">{_text(word)}</text>'
    across = f"{panel.plotted.label}{' (log axis)' if axis.log else ''}"
    up = f"share of {panel.plotted.counted} at or below"
    yield f'<text class="quiet middle" x="{(LEFT + right) / 2:g}" y="{bottom + 38}">{_text(across)}</text>'
    yield f'<text class="quiet" x="{LEFT}" y="{top - 10}">{_text(up)}</text>'


def _line(series: Series, axis: Axis, top: int, index: int) -> Iterator[str]:
    if not series.values:
        return
    bottom, num = top + HEIGHT, len(series.values)
    path = [f"M{_x(axis, series.values[0])} {bottom}"]
    for x, rank in _steps(series.values, axis):
        path.append(f"H{x}V{round(bottom - HEIGHT * rank / num, 1)}")
    colour = _colour(index)
    yield f'<path class="line c{colour}"{_dash(index)} d="{"".join(path)}"><title>{_text(series.label)}</title></path>'
    yield f'<circle class="d{colour}" cx="{_x(axis, series.values[-1])}" cy="{top}" r="3.5"/>'


def _steps(values: list[float], axis: Axis) -> Iterator[tuple[float, int]]:
    """Where the line steps and how many values are then behind it; what is within a tenth of a pixel is one step."""
    for rank, value in enumerate(values, 1):
        x = _x(axis, value)
        if rank == len(values) or _x(axis, values[rank]) != x:
            yield x, rank


def _x(axis: Axis, value: float) -> float:
    return round(LEFT + (WIDTH - RIGHT - LEFT) * axis.place(value), 1)


def _colour(index: int) -> int:
    return index % len(_LIGHT)


def _dash(index: int) -> str:
    dash = _DASHES[(index + index // len(_LIGHT)) % len(_DASHES)]
    return f' stroke-dasharray="{dash}"' if dash else ""


def _short(label: str) -> str:
    return label if len(label) <= MAX_LABEL else f"{label[: MAX_LABEL - 3]}..."


def _text(text: str) -> str:
    """Escaped, without the control characters that no XML file may hold."""
    return escape("".join(char if char.isprintable() else "?" for char in text))
