"""Figures of differences from the first column: request by request, and intervals of the primary metrics."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kvtop.analysis.inference import Interval
from kvtop.analysis.paired import LABELS, paired_requests
from kvtop.analysis.replicates import LOG_RATIO, pairs
from kvtop.plots.axes import Axis
from kvtop.report import charts
from kvtop.report.figure import Figure, Material, counts, join
from kvtop.report.latency import CDF_HEIGHT
from kvtop.report.vega import Spec
from kvtop.workloads.words import counted

PLACES = 600
WIDE = 30.0
"""From this ratio of the largest difference to the median one on, the axis is compressed away from 0."""


def difference_figures(material: Material) -> Iterator[Figure]:
    """Nothing where there is one column only."""
    if len(material.labels) < 2:
        return
    yield changes(material)
    for key in ("ttft", "e2e", "tpot"):
        yield by_request(material, key)


def by_request(material: Material, key: str) -> Figure:
    """The ECDF of (this - first) over the requests that both have."""
    columns, label = material.comparison.columns, LABELS[key]
    title = f"{label} of the same requests against {material.labels[0]}"
    others = [column.label for column in columns[1:]]
    values = []
    for column in columns[1:]:
        found = [
            getattr(after, key) - getattr(before, key)
            for first, other in pairs(columns[0].runs, column.runs)
            for before, after in paired_requests(first, other, key)
        ]
        values.append(sorted(found))
    if not any(values):
        return Figure(f"differences-{key}", title, "No request has this time in both.", None)
    if not any(value for each in values for value in each):
        same = f"Every request has the same {label} in all of them: {counts(others, [len(v) for v in values], 'pair')}."
        return Figure(f"differences-{key}", title, same, None)
    shares = [f"{name} {_share(each)}" for name, each in zip(others, values, strict=True) if each]
    spec, compressed = _difference_spec(others, values, f"{label}, difference from {charts.names(material.labels)[0]}")
    caption = join(
        f"Share of requests whose {label} differs from the one under {material.labels[0]} by at most each amount: left "
        "of 0 they were faster, right of it slower.",
        "The axis is linear around 0 and logarithmic away from it." if compressed else "",
        f"{counts(others, [len(each) for each in values], 'request')} in both; slower: {', '.join(shares)}.",
    )
    return Figure(f"differences-{key}", title, caption, spec)


def _share(values: list[int]) -> str:
    from kvtop.cli.text import percent

    return percent(sum(value > 0 for value in values) / len(values))


def _difference_spec(labels: list[str], values: list[list[int]], across: str) -> tuple[Spec, bool]:
    sizes = sorted(abs(value) for each in values for value in each if value)
    typical, most = sizes[len(sizes) // 2], sizes[-1]
    compressed = most / typical >= WIDE
    scale: Spec = {"type": "symlog", "constant": typical} if compressed else {"type": "linear"}
    rows = [(index, x, y) for index, each in enumerate(values) for x, y in _steps(each)]
    low = min(each[0] for each in values if each)
    high = max(each[-1] for each in values if each)
    spec: Spec = {
        "width": charts.WIDTH,
        "height": CDF_HEIGHT,
        "layer": [
            {
                "data": {"values": [{"zero": 0}]},
                "mark": {"type": "rule", "color": charts.QUIET, "strokeDash": [3, 3]},
                "encoding": {"x": {"field": "zero", "type": "quantitative"}},
            },
            {
                "data": charts.table(("c", "x", "y"), rows),
                "transform": [charts.run_names(labels)],
                "mark": {"type": "line", "interpolate": "step-after"},
                "encoding": {
                    "x": {
                        "field": "x", "type": "quantitative", "title": across,
                        "scale": {**scale, "domain": [low, high], "nice": True},
                        "axis": {"labelExpr": _signed(), "labelOverlap": "greedy", **_ticks(low, high, compressed)},
                    },
                    "y": charts.share_axis("y", "share of requests"),
                    "color": _shifted(charts.run_colour(["", *labels])),
                    "strokeDash": _shifted(charts.run_dash(["", *labels])),
                },
            },
        ],
    }  # fmt: skip
    return spec, compressed


def _signed() -> str:
    return f"(datum.value > 0 ? '+' : '') + ({charts.TIME_TEXT})"


def _ticks(low: float, high: float, compressed: bool) -> Spec:
    """On a compressed axis powers of ten on both sides."""
    if not compressed:
        return {"tickCount": 9}
    powers = [10.0**power for power in range(3, 13)]
    return {"values": [*(-p for p in reversed(powers) if -p >= low), 0, *(p for p in powers if p <= high)]}


def _shifted(encoding: Spec) -> Spec:
    """Of the columns but the first, in the colours that they have elsewhere."""
    scale = encoding["scale"]
    return {**encoding, "scale": {"domain": scale["domain"][1:], "range": scale["range"][1:]}}


def _steps(values: list[int]) -> Iterator[tuple[float, float]]:
    """At most about ``PLACES`` ranks, the first and the last among them."""
    num = len(values)
    if not num:
        return
    yield values[0], 0.0
    every = max(1, num // PLACES)
    for rank in range(1, num + 1):
        if rank == num or rank % every == 0:
            yield values[rank - 1], rank / num


def changes(material: Material) -> Figure:
    """Relative changes with their intervals: over replicates where there are any, else within the pair of runs."""
    title = f"Changes against {material.labels[0]}"
    statistics = material.comparison.statistics
    rows: list[dict[str, Any]] = []
    of_replicates = any(test.change for found in statistics for test in found.tests)
    for label, found in zip(charts.names(material.labels)[1:], statistics[1:], strict=True):
        if of_replicates:
            known = [(test.measure.label, test.change, test.n) for test in found.tests if test.scale == LOG_RATIO]
        else:
            known = [(each.label, each.interval, each.n) for each in found.change_only]
        rows += [_row(label, name, change, n) for name, change, n in known if change is not None]
    if not rows:
        reason = "No interval: it takes 3 pairs of replicates, or within one pair of runs 10 requests for a median."
        return Figure("changes", title, reason, None)
    numbers = sorted({row["n"] for row in rows})
    noun = "pair" if of_replicates else "request"
    told = f"n = {'' if len(numbers) == 1 else f'{numbers[0]:,} to '}{counted(numbers[-1], noun)}."
    if not any(row[end] for row in rows for end in ("low", "high")):
        return Figure("changes", title, f"Every one of these is the same as under {material.labels[0]}: {told}", None)
    if of_replicates:
        meaning = (
            "Mean relative change over pairs of replicates, with its 95 % t-interval (of log ratios). An interval that "
            "holds 0 % shows no difference; the table above has p-values adjusted for their number."
        )
    else:
        meaning = (
            "These pairs of runs only: relative change of each percentile with its 95 % interval from a moving-block "
            "bootstrap over requests. It says nothing about other runs."
        )
    return Figure("changes", title, join(meaning, told), _forest(material.labels, rows))


def _row(label: str, name: str, change: Interval, n: int) -> dict[str, Any]:
    return {"run": label, "metric": name, "low": change.low, "at": change.estimate, "high": change.high, "n": n}


def _forest(labels: list[str], rows: list[dict[str, Any]]) -> Spec:
    metrics = list(dict.fromkeys(row["metric"] for row in rows))
    ends = [value for row in rows for value in (row["low"], row["high"], 0.0)]
    axis = Axis.over([max(abs(min(ends)), max(ends), 0.01)], "linear")
    shared: Spec = {
        "y": {
            "field": "metric", "type": "nominal", "title": None, "sort": metrics,
            "axis": {"labelColor": charts.TEXT, "grid": True, "ticks": False, "domain": False, "labelLimit": 200},
        },
        "yOffset": {"field": "run", "sort": charts.names(labels)[1:]},
        "color": _shifted(charts.run_colour(labels)),
    }  # fmt: skip
    across: Spec = {
        "type": "quantitative", "title": "relative change",
        "scale": {"domain": [max(-1.0, -axis.high) if min(ends) < 0 else 0, axis.high if max(ends) > 0 else 0]},
        "axis": {"format": "+.0%", "tickCount": 5},
    }  # fmt: skip
    tips = [{"field": name, "type": "nominal"} for name in ("run", "metric")]
    tips += [{"field": name, "type": "quantitative", "format": "+.2%"} for name in ("low", "at", "high")]
    return {
        "data": {"values": rows},
        "width": charts.WIDTH - 160,
        "height": {"step": 16 if len(labels) > 2 else 28},
        "layer": [
            {
                "mark": {"type": "rule", "color": charts.QUIET, "strokeDash": [3, 3]},
                "encoding": {"x": {"datum": 0}},
            },
            {
                "mark": {"type": "rule", "strokeWidth": 2},
                "encoding": {**shared, "x": {"field": "low", **across}, "x2": {"field": "high"}, "tooltip": tips},
            },
            {
                "mark": {"type": "point", "filled": True, "size": 60, "opacity": 1},
                "encoding": {**shared, "x": {"field": "at", **across}, "tooltip": tips},
            },
        ],
    }
