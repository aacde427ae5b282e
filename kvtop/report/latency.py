"""Figures of latency: how times are distributed, and how the gaps between tokens go over the run."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from kvtop.analysis.stats import percentile
from kvtop.analysis.token_times import emissions
from kvtop.plots.axes import Axis
from kvtop.plots.panels import PLOTTED, Plotted
from kvtop.report import charts
from kvtop.report.figure import Figure, Material, Shown, counts, join, same
from kvtop.report.thin import ecdf
from kvtop.report.vega import Spec

CDF_HEIGHT = 240
ITL_INTERVALS = 240

QUEUE = Plotted("queue", "queue time", "all time spent waiting, after preemptions included", "request")
CDFS = (PLOTTED["ttft"], QUEUE, PLOTTED["itl"], PLOTTED["tpot"], PLOTTED["e2e"])
WHO = {
    "ttft": "from the intended arrival to the first token; requests that were cut off count as far as they got",
    "queue": "from submission on; successful requests",
    "itl": "all answers pooled, so that long ones weigh more; a step of k tokens makes k gaps",
    "tpot": "(last - first token) / (tokens - 1), one value a request; successful requests of two tokens or more",
    "e2e": "from the intended arrival to the end; successful requests",
}


def latency_figures(material: Material) -> Iterator[Figure]:
    """An ECDF of each kind of time, then ITL over the run."""
    for plotted in CDFS:
        yield cdf(material, plotted)
    yield itl_over_time(material)


def samples(material: Material, key: str) -> list[list[float]]:
    """Ascending values in ns of each column, replicates pooled."""
    return [
        sorted(value for run in column.runs for value in run.samples.get(key, ()))
        for column in material.comparison.columns
    ]


def cdf(material: Material, plotted: Plotted) -> Figure:
    """The share of values at or below each time, a step line a column."""
    values, labels = samples(material, plotted.key), material.labels
    title = f"{plotted.label}: {plotted.meaning}"
    numbers = [len(each) for each in values]
    if not any(values):
        nobody = f"no {plotted.counted}s that have it"
        missing = "no recording and no tokens.parquet" if plotted.key == "itl" else nobody
        return Figure(plotted.key, title, f"Not reported: {missing}.", None)
    if constant := same(values):
        told = f"All of them are {constant}: {counts(labels, numbers, plotted.counted)}."
        return Figure(plotted.key, title, told, None)
    axis = charts.axis_over(value for each in values for value in each)
    rows = [(index, t, share) for index, each in enumerate(values) for t, share in ecdf(each, axis)]
    pooled = any(len(column.runs) > 1 for column in material.comparison.columns)
    caption = join(
        f"Share of {plotted.counted}s whose {plotted.label} is at or below each time: {WHO[plotted.key]}.",
        f"{counts(labels, numbers, plotted.counted)}{', replicates pooled' if pooled else ''}.",
        "Values at 0 lie at the left edge of the log axis." if axis.log and min(v[0] for v in values if v) <= 0 else "",
        _medians(labels, values, "of the pooled values" if pooled else ""),
    )
    return Figure(plotted.key, title, caption, step_lines(labels, rows, axis, plotted.label, f"{plotted.counted}s"))


def _medians(labels: list[str], values: list[list[float]], of: str) -> str:
    """p50 and p99 in words, where these fit a caption."""
    from kvtop.cli.text import format_ns

    if len(labels) > 4:
        return ""
    parts = []
    for label, each in zip(labels, values, strict=True):
        if each:
            p50, p99 = format_ns(percentile(each, 50)), format_ns(percentile(each, 99))
            parts.append(f"{label} {p50} and {p99}")
    return f"p50 and p99{' ' * bool(of)}{of}: {'; '.join(parts)}."


def step_lines(labels: list[str], rows: list[tuple[int, float, float]], axis: Axis, across: str, counted: str) -> Spec:
    """The specification of an ECDF over times in ns; ``rows`` are (column, time, share)."""
    return {
        "data": charts.table(("c", "x", "y"), [(c, max(x, axis.low), y) for c, x, y in rows]),
        "transform": [charts.run_names(labels)],
        "width": charts.WIDTH,
        "height": CDF_HEIGHT,
        "params": charts.PICK,
        "mark": {"type": "line", "interpolate": "step-after"},
        "encoding": {
            "x": charts.time_axis("x", across, axis),
            "y": charts.share_axis("y", f"share of {counted} at or below"),
            "color": charts.run_colour(labels),
            "strokeDash": charts.run_dash(labels),
            "opacity": {"condition": {"param": "pick", "value": 1}, "value": 0.12},
        },
    }


def itl_over_time(material: Material) -> Figure:
    """The median and the longest gap of each stretch of the run."""
    title = "ITL over the run"
    rows: list[tuple[int, float, float, float]] = []
    numbers, shown = [], []
    for shown_run in material.first_runs:
        t, gaps = _gaps(shown_run)
        if len(t):
            rows += [(len(shown), *row) for row in _by_interval(t, gaps)]
            shown.append(shown_run.label)
            numbers.append(len(t))
    if not rows:
        return Figure("itl-time", title, "Not reported: no recording and no tokens.parquet, or no gap.", None)
    if constant := same([sorted(row[2:]) for row in rows]):
        told = f"All gaps are {constant}: {counts(shown, numbers, 'gap')}."
        return Figure("itl-time", title, join(told, material.which_runs()), None)
    axis = charts.axis_over(value for row in rows for value in row[2:])
    caption = join(
        f"Gaps between the tokens of an answer that ended in each of {ITL_INTERVALS} equal stretches of the run: their "
        "median and their longest. A stretch without a gap has no point.",
        f"{counts(shown, numbers, 'gap')}.",
        material.which_runs(),
    )
    return Figure("itl-time", title, caption, _itl_spec(shown, rows, axis))


def _gaps(shown: Shown) -> tuple[np.ndarray, np.ndarray]:
    """End (ns) and length (ns) of each gap, in order of time."""
    requests = shown.run.requests.select("req_index", "request_id").collect()
    found = emissions(shown.run, dict(requests.iter_rows()))
    ends: list[int] = []
    gaps: list[float] = []
    last: dict[object, int] = {}
    for sequence, _, t_ns, num_tokens in found or ():
        before, last[sequence] = last.get(sequence), t_ns
        if before is not None:
            ends += [t_ns] * num_tokens
            gaps += [(t_ns - before) / num_tokens] * num_tokens
    return np.array(ends, dtype=np.float64), np.array(gaps, dtype=np.float64)


def _by_interval(t: np.ndarray, gaps: np.ndarray) -> Iterator[tuple[float, float, float]]:
    """(middle in s, median, longest) of each stretch that has gaps."""
    width = max(float(t[-1]), 1.0) / ITL_INTERVALS
    place = np.minimum((t / width).astype(np.int64), ITL_INTERVALS - 1)
    starts = np.flatnonzero(np.diff(place, prepend=-1))
    for start, end in zip(starts, [*starts[1:], len(t)], strict=True):
        part = gaps[start:end]
        yield (place[start] + 0.5) * width / 1e9, float(np.median(part)), float(part.max())


def _itl_spec(labels: list[str], rows: list[tuple[int, float, float, float]], axis: Axis) -> Spec:
    """Nothing is joined: between two stretches there may have been no gap at all."""
    colour: Spec = {
        "type": "nominal",
        "scale": {"domain": ["longest", "median"], "range": [charts.WARN, charts.IDLE]},
        "legend": {"title": None, "symbolType": "circle", "symbolSize": 60},
    }
    up = {**charts.time_axis("longest", "ITL", axis), "axis": _few_ticks(axis)}
    tips = [{"field": "t", "type": "quantitative", "title": "s", "format": ".4~g"}]
    tips += [{"field": f"{name}_ms", "type": "quantitative", "format": ".4~g"} for name in ("median", "longest")]

    def dots(name: str, size: int) -> Spec:
        return {
            "mark": {"type": "point", "filled": True, "size": size, "opacity": 1, "strokeWidth": 0},
            "encoding": {"y": {**up, "field": name}, "color": {"datum": name, **colour}, "tooltip": tips},
        }

    bars: Spec = {
        "params": charts.ZOOM,
        "mark": {"type": "rule", "color": charts.WARN, "opacity": 0.4},
        "encoding": {"y": {**up, "field": "median"}, "y2": {"field": "longest"}},
    }
    inner: Spec = {"encoding": {"x": charts.run_time()}, "layer": [bars, dots("longest", 16), dots("median", 22)]}
    in_ms = [{"calculate": f"datum.{name} / 1e6", "as": f"{name}_ms"} for name in ("median", "longest")]
    return {
        "data": charts.table(("c", "t", "median", "longest"), rows),
        "transform": [charts.run_names(labels), *in_ms],
        **charts.per_run(labels, inner),
    }


def _few_ticks(axis: Axis) -> Spec:
    """Of a low plot: at most about six."""
    values = [value for value, _ in axis.ticks()]
    return {"values": values[:: max(1, len(values) // 5)], "labelExpr": charts.TIME_TEXT}
