"""The HTML file: the page, its style, its plots and the library that makes them live. Nothing is fetched."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib.resources import files

from kvtop.plots.sheet import DARK, LIGHT, safe
from kvtop.report import charts, vega
from kvtop.report.figure import Figure
from kvtop.report.html import heading, paragraph
from kvtop.values_in_text import bound

# Nothing may be loaded, whatever a name in a table looks like; styles and scripts are those of the file itself.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data: blob:"

_DARK_GREYS = {charts.TEXT: "#e6edf3", charts.QUIET: "#9aa5b1", charts.GRID: "#2b323b", charts.FRESH: "#3d4651"}


@dataclass(slots=True)
class Part:
    """A piece of a chapter with a heading of its own: HTML, then figures with their drawings."""

    title: str
    html: list[str] = field(default_factory=list)
    figures: list[tuple[Figure, str]] = field(default_factory=list)  # with the text of its SVG, "" without a plot


@dataclass(slots=True)
class Chapter:
    """One comparison."""

    title: str
    lead: str
    simulated: bool
    parts: list[Part]


def render(title: str, lead: str, chapters: Sequence[Chapter], data: object, footer: str) -> str:
    """The text of the file. ``data`` is kept in it as JSON, for programs."""
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{safe(title)}</title>",
            f"<style>\n{_read('page.css')}{_dark_plots()}</style>",
            "</head>",
            "<body>",
            f"<header><h1>{safe(title)}</h1>",
            f'<p class="lead">{safe(lead)}</p></header>',
            _contents(chapters),
            "<main>",
            *(line for number, chapter in enumerate(chapters, 1) for line in _chapter(number, chapter)),
            "</main>",
            f"<footer>{paragraph(footer)}</footer>",
            f'<script type="application/json" id="comparisons">{vega.as_json(data)}</script>',
            f"<script>{vega.script(_read('page.js'))}</script>",
            "</body>",
            "</html>",
            "",
        ]
    )


def _read(name: str) -> str:
    return files("kvtop.report").joinpath(name).read_text(encoding="utf-8")


def _dark_plots() -> str:
    """Plots are drawn in the light colours; on a dark page each of them stands for its dark one."""
    rules = []
    for light, dark in (*zip(LIGHT, DARK, strict=True), *_DARK_GREYS.items()):
        rules += [f'  .plot [{name}="{light}"] {{ {name}: {dark} }}\n' for name in ("fill", "stroke")]
    return f"@media screen and (prefers-color-scheme: dark) {{\n{''.join(rules)}}}\n"


def _contents(chapters: Sequence[Chapter]) -> str:
    entries = []
    for number, chapter in enumerate(chapters, 1):
        inner = "".join(
            f'<li><a href="#{_anchor(number, place)}">{safe(part.title)}</a></li>'
            for place, part in enumerate(chapter.parts, 1)
        )
        entries.append(f'<li><a href="#c{number}">{safe(chapter.title)}</a>\n<ul>{inner}</ul></li>')
    return f'<nav aria-label="contents"><ul>\n{chr(10).join(entries)}\n</ul></nav>'


def _anchor(chapter: int, part: int) -> str:
    return f"c{chapter}-{part}"


def _chapter(number: int, chapter: Chapter) -> Iterator[str]:
    yield f"<section>{heading(2, chapter.title, f'c{number}')}"
    if chapter.simulated:
        yield '<p><span class="mark">simulated: virtual clock</span></p>'
    yield paragraph(chapter.lead)
    for place, part in enumerate(chapter.parts, 1):
        yield heading(3, part.title, _anchor(number, place))
        yield from part.html
        for figure, drawing in part.figures:
            yield _figure(f"c{number}-{figure.key}", figure, drawing)
    yield "</section>"


def _figure(anchor: str, figure: Figure, drawing: str) -> str:
    """Title, drawing, caption, and what the drawing is made of."""
    title = f"<h4>{safe(figure.title)}</h4>"
    words = bound(safe(figure.caption))
    caption = f"<figcaption>{words}</figcaption>"
    if figure.spec is None:
        return f'<div id="{anchor}">{title}<p class="lead">{words}</p></div>'
    plot = f'<div class="plot" role="img" aria-label="{safe(figure.title)}">{drawing}</div>'
    spec = f'<script type="application/json">{vega.as_json(charts.finished(figure.spec))}</script>'
    return f'<figure id="{anchor}">{title}\n{plot}\n{caption}\n{spec}</figure>'
