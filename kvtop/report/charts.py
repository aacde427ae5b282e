"""Building blocks of Vega-Lite specifications: one look, times with units, data as compact tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from kvtop.plots.axes import Axis
from kvtop.plots.sheet import DASHES, LIGHT, printable
from kvtop.report.vega import Spec

WIDTH = 740
ROW_HEIGHT = 110  # of one run's part where each has its own
TEXT, QUIET, GRID = "#1f2328", "#59636e", "#d7dce1"
FONT = "system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif"
USED, IDLE, TRANSFER = LIGHT[2], LIGHT[0], LIGHT[3]  # the hues of the TUI's block map
FRESH = "#c3cad2"
WARN, BAD = LIGHT[1], LIGHT[6]

TIME_TEXT = (
    "datum.value == 0 ? '0' : abs(datum.value) < 1e3 ? format(datum.value, '~g') + ' ns' : "
    "abs(datum.value) < 1e6 ? format(datum.value / 1e3, '~g') + ' µs' : "
    "abs(datum.value) < 1e9 ? format(datum.value / 1e6, '~g') + ' ms' : format(datum.value / 1e9, ',~g') + ' s'"
)
"""Words of a tick at a time in ns."""

ZOOM: list[Spec] = [{"name": "zoom", "select": {"type": "interval", "encodings": ["x"]}, "bind": "scales"}]
PICK: list[Spec] = [{"name": "pick", "select": {"type": "point", "fields": ["run"]}, "bind": "legend"}]
"""A click on a legend's entry shows that one; another click on it shows all."""

CONFIG: Spec = {
    "font": FONT,
    "background": None,
    "aria": False,  # a label on each of thousands of marks; the plot as a whole has one in the page
    "view": {"stroke": None},
    "axis": {
        "labelColor": QUIET, "titleColor": TEXT, "titleFontWeight": "normal", "labelFontSize": 11, "titleFontSize": 12,
        "gridColor": GRID, "domainColor": QUIET, "tickColor": QUIET, "titlePadding": 8,
    },
    "legend": {
        "labelColor": TEXT, "titleColor": QUIET, "labelFontSize": 12, "titleFontSize": 12, "labelLimit": 330,
        "orient": "top", "titleFontWeight": "normal", "symbolStrokeWidth": 2.5, "columnPadding": 24, "symbolSize": 250,
    },
    "header": {
        "labelColor": TEXT, "labelFontSize": 12, "labelFontWeight": 600, "titleColor": QUIET, "labelLimit": 700,
        "labelAnchor": "start", "labelOrient": "top", "labelPadding": 4,
    },
    "line": {"strokeWidth": 1.8, "strokeJoin": "round"},
    "facet": {"spacing": 14},
}  # fmt: skip


NUMBER_TEXT = "format(datum.value, ',.6~g')"
"""Words of a tick at a plain number: the format option would pass to exponents."""


PERCENT_TEXT = "format(100 * datum.value, '.4~g') + '%'"
"""Words of a tick at a share, with as many digits as it takes to tell it from the next."""


def finished(spec: Spec) -> Spec:
    """With the schema and the common look."""
    return {"$schema": "https://vega.github.io/schema/vega-lite/v6.json", "config": CONFIG, **spec}


def names(labels: Sequence[str]) -> list[str]:
    """Labels as a plot may show them."""
    return [printable(label) for label in labels]


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> Spec:
    """Numbers as CSV, which is a third of the same as JSON; None is an empty cell, which is null."""
    lines = [",".join(columns)]
    lines += [",".join("" if value is None else f"{value:.7g}" for value in row) for row in rows]
    return {"values": "\n".join(lines), "format": {"type": "csv", "parse": dict.fromkeys(columns, "number")}}


def run_names(labels: Sequence[str]) -> Spec:
    """The transform that gives each row its ``run``, by the number in its column ``c``."""
    known = [{"c": index, "run": label} for index, label in enumerate(names(labels))]
    return {"lookup": "c", "from": {"data": {"values": known}, "key": "c", "fields": ["run"]}}


def run_colour(labels: Sequence[str]) -> Spec:
    """A colour a column of the comparison, as in all its plots."""
    shown = names(labels)
    colours = [LIGHT[index % len(LIGHT)] for index in range(len(shown))]
    columns = 3 if max(map(len, shown), default=0) <= 28 else 2 if max(map(len, shown)) <= 44 else 1
    return {
        "field": "run",
        "type": "nominal",
        "scale": {"domain": shown, "range": colours},
        "legend": {"title": None, "columns": columns, "symbolType": "stroke"},
    }


def run_dash(labels: Sequence[str]) -> Spec:
    """The dashes that tell columns apart without colour."""
    dashes = []
    for index in range(len(labels)):
        pattern = DASHES[(index + index // len(LIGHT)) % len(DASHES)]
        dashes.append([int(length) for length in pattern.split()] or [1, 0])
    return {
        "field": "run",
        "type": "nominal",
        "scale": {"domain": names(labels), "range": dashes},
        "legend": {"title": None, "symbolType": "stroke"},
    }


def time_axis(field: str, title: str, axis: Axis) -> Spec:
    """An encoding of times in ns along ``axis``, with round ticks and their units."""
    return {
        "field": field,
        "type": "quantitative",
        "title": f"{title}{' (log axis)' if axis.log else ''}",
        "scale": {"type": "log" if axis.log else "linear", "domain": [axis.low, axis.high], "nice": False},
        "axis": {"values": [value for value, _ in axis.ticks()], "labelExpr": TIME_TEXT, "labelOverlap": "greedy"},
    }


def run_time(title: str = "time of the run, s", end: float | None = None) -> Spec:
    """An encoding of ``t`` in s."""
    domain = {} if end is None else {"domain": [0, end]}
    return {
        "field": "t",
        "type": "quantitative",
        "title": title,
        "scale": {"nice": False, "zero": True, **domain},
        "axis": {"grid": False, "tickCount": 10, "labelExpr": NUMBER_TEXT},
    }


def axis_over(values: Iterable[float]) -> Axis:
    """An axis over times in ns. On a linear one the largest value does not lie on the edge of the plot."""
    known = list(values)
    axis = Axis.over(known)
    if axis.log or max(known) < 0.97 * axis.high:
        return axis
    step = axis.ticks()[1][0]
    return Axis(axis.low, axis.high + step, False)


def share_axis(field: str, title: str | None) -> Spec:
    """An encoding of shares from 0 to 1 as percent."""
    return {
        "field": field,
        "type": "quantitative",
        "title": title,
        "scale": {"domain": [0, 1]},
        "axis": {"format": ".0%", "values": [0, 0.25, 0.5, 0.75, 1]},
    }


def per_run(labels: Sequence[str], inner: Spec, *, height: int = ROW_HEIGHT) -> Spec:
    """``inner`` (without data) once for each run, below each other with one common time axis."""
    return {
        "facet": {"field": "run", "type": "nominal", "title": None, "sort": names(labels)},
        "columns": 1,
        "spec": {"width": WIDTH, "height": height, **inner},
    }


def stacked_bars(labels: Sequence[str], parts: Sequence[tuple[str, str, str]], rows: list[Spec], x: Spec) -> Spec:
    """A bar a run, of ``parts`` (name, words, colour) in their order. ``rows`` hold run, part (its words), place, the
    field of ``x`` and what else the tooltip shows: ``share`` of the whole.
    """
    known = names(labels)
    return {
        "data": {"values": rows},
        "width": WIDTH - 120,
        "height": {"step": 34},
        "mark": {"type": "bar", "height": 20},
        "encoding": {
            "y": {
                "field": "run", "type": "nominal", "title": None, "sort": known,
                "axis": {"labelLimit": 240, "domain": False, "ticks": False, "labelColor": TEXT},
            },
            "x": {"type": "quantitative", "stack": "zero", **x, "axis": {"tickCount": 10, **x["axis"]}},
            "order": {"field": "place"},
            "color": {
                "field": "part", "type": "nominal",
                "scale": {"domain": [words for _, words, _ in parts], "range": [colour for *_, colour in parts]},
                "legend": {"title": None, "columns": 3, "symbolType": "square", "symbolStrokeWidth": 0},
            },
            "tooltip": [
                {"field": "run", "type": "nominal"}, {"field": "part", "type": "nominal"},
                {"field": "share", "type": "quantitative", "format": ".1%"},
            ],
        },
    }  # fmt: skip
