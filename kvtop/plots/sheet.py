"""What all SVG plots have in common: the page, its style sheet, colours and dashes, and text that is safe in XML.

Plain SVG 1.1 with a style sheet, so that a page shows it as an image: no script, no font of its own. Colours follow the
reader's light or dark scheme; lines differ in their dashes too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from html import escape

from kvtop.plots.axes import Axis

WIDTH = 800
LEFT, RIGHT = 64, 24  # of the plot's area
HEIGHT = 220  # of the plot's area
TITLE, ROW, GAP, FOOT = 62, 18, 32, 62  # above the legend, a line of it, between it and the area, below that
MAX_LABEL = 58

LIGHT = ("#0068a8", "#c8500a", "#00795a", "#a8387c", "#7a5c00", "#5b48c0", "#b02020", "#4f5b66")
DARK = ("#5cb8f2", "#f2994a", "#3cc99a", "#ee86bd", "#d9b93c", "#a99bff", "#ff7b72", "#aab4be")
DASHES = ("", "7 3", "2 3", "10 3 2 3")

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


def page(title: str, height: int, body: Iterable[str]) -> str:
    """The text of an SVG file."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
        f'viewBox="0 0 {WIDTH} {height}" role="img">',
        f"<title>{safe(title)}</title>",
        f"<style>\n{_style()}</style>",
        '<rect class="page" width="100%" height="100%"/>',
        *body,
    ]
    return "\n".join([*parts, "</svg>", ""])


def _style() -> str:
    def lines(colours: tuple[str, ...]) -> str:
        return "".join(
            f".c{i} {{ stroke: {colour} }}\n.d{i} {{ fill: {colour} }}\n" for i, colour in enumerate(colours)
        )

    return f"{_STYLE}{lines(LIGHT)}@media (prefers-color-scheme: dark) {{\n{_DARK_STYLE}{lines(DARK)}}}\n"


def colour(index: int) -> int:
    """Of the line ``index``: the number in its class, ``c0`` as a stroke and ``d0`` as a fill."""
    return index % len(LIGHT)


def dash(index: int) -> str:
    """The attribute that sets the line ``index`` apart without colour."""
    pattern = DASHES[(index + index // len(LIGHT)) % len(DASHES)]
    return f' stroke-dasharray="{pattern}"' if pattern else ""


def swatch(index: int, y: int) -> str:
    """The piece of line in a legend."""
    place = f'x1="{LEFT}" x2="{LEFT + 30}" y1="{y - 4}" y2="{y - 4}"'
    return f'<line class="line c{colour(index)}"{dash(index)} {place}/>'


def place(axis: Axis, value: float) -> float:
    """Where ``value`` stands across the plot's area."""
    return round(LEFT + (WIDTH - RIGHT - LEFT) * axis.place(value), 1)


def grid(
    axis: Axis,
    words: Iterable[tuple[float, str]],
    levels: Iterable[tuple[float, float]],
    top: int,
    across: str,
    up: str,
) -> Iterator[str]:
    """The area's lines and what stands beside them: ``words`` below values of ``axis``, ``levels`` as (percent, y)."""
    bottom, right = top + HEIGHT, WIDTH - RIGHT
    for percent, y in levels:
        yield f'<line class="{"grid" if percent else "axis"}" x1="{LEFT}" x2="{right}" y1="{y}" y2="{y}"/>'
        yield f'<text class="quiet end" x="{LEFT - 8}" y="{y + 4}">{percent:g} %</text>'
    for value, word in words:
        x = place(axis, value)
        yield f'<line class="grid" x1="{x}" x2="{x}" y1="{top}" y2="{bottom}"/>'
        yield f'<line class="axis" x1="{x}" x2="{x}" y1="{bottom}" y2="{bottom + 4}"/>'
        yield f'<text class="quiet middle" x="{x}" y="{bottom + 18}">{safe(word)}</text>'
    named = f"{across}{' (log axis)' if axis.log else ''}"
    yield f'<text class="quiet middle" x="{(LEFT + right) / 2:g}" y="{bottom + 38}">{safe(named)}</text>'
    yield f'<text class="quiet" x="{LEFT}" y="{top - 10}">{safe(up)}</text>'


def short(label: str) -> str:
    return label if len(label) <= MAX_LABEL else f"{label[: MAX_LABEL - 3]}..."


def printable(text: str) -> str:
    """Without control characters, which no XML file may hold, and without those that turn the direction of text."""
    return "".join(char if char.isprintable() else "?" for char in text)


def safe(text: str) -> str:
    """Printable, and escaped for XML and HTML."""
    return escape(printable(text))
