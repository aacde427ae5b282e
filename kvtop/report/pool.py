"""Figures of the pool and the queue over the run."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from kvtop.report import charts
from kvtop.report.figure import Figure, Material, Shown, counts, join
from kvtop.report.thin import Thinned, keep_extremes
from kvtop.report.vega import Spec

INTERVALS = 240
BARS = 120
KINDS = ("evictions", "preemptions")
ORDER = ("used", "in transfer", "idle", "fresh")
COLOURS = (charts.USED, charts.TRANSFER, charts.IDLE, charts.FRESH)


def pool_figures(material: Material) -> Iterator[Figure]:
    """Occupancy, sequences, evictions and preemptions."""
    yield occupancy(material)
    yield sequences(material)
    yield evictions(material)


def occupancy(material: Material) -> Figure:
    """The four states of blocks stacked up to all there are, and how many the filled slots would take."""
    title = "Occupancy of the pool"
    rows: list[list[float]] = []
    thinned: list[Thinned] = []
    for index, shown in enumerate(material.first_runs):
        steps = shown.steps(
            "t_done_ns", "used_blocks", "idle_blocks", "fresh_blocks", "in_transfer_blocks", "filled_slots"
        )
        t, kept = _kept(steps, steps["used_blocks"], steps["idle_blocks"])
        thinned.append(kept)
        size = shown.summary.manifest.get("block_size_tokens") or 1
        names = ("used_blocks", "in_transfer_blocks", "idle_blocks", "fresh_blocks")
        columns = [steps[name][kept.rows] for name in names]
        rows += [
            [index, *row] for row in zip(t, *columns, steps["filled_slots"][kept.rows] / size, strict=True)
        ]  # fmt: skip
    if not rows:
        return Figure("occupancy", title, "No step was recorded.", None)
    caption = join(
        "Blocks after each step: used (held by a block table), in transfer, idle (held by nobody, published in the "
        "prefix cache), fresh (neither); together all blocks. The line is token fill: filled slots of used blocks, a "
        "shared block once, divided by the block size: from it to the top of what is used, slots hold nothing.",
        _thinned(material, thinned, "fewest and most used and idle blocks"),
        material.which_runs(),
    )
    return Figure("occupancy", title, caption, _occupancy_spec([shown.label for shown in material.first_runs], rows))


def _kept(steps: dict[str, np.ndarray], *columns: np.ndarray) -> tuple[np.ndarray, Thinned]:
    """Times (s) of the steps that are drawn, and which these are."""
    t = steps["t_done_ns"] / 1e9
    kept = keep_extremes(t, columns, INTERVALS) if len(t) else Thinned(np.arange(0), None)
    return t[kept.rows], kept


def _thinned(material: Material, thinned: list[Thinned], which: str) -> str:
    labels = [shown.label for shown in material.first_runs]
    if all(each.interval is None for each in thinned):
        return f"{counts(labels, [len(each.rows) for each in thinned], 'step')}, all drawn."
    return f"Thinned: of each of {INTERVALS} equal stretches of a run the steps with the {which}."


def _occupancy_spec(labels: list[str], rows: list[list[float]]) -> Spec:
    areas: Spec = {
        "transform": [
            {"fold": list(ORDER), "as": ["state", "blocks"]},
            {"calculate": f"indexof({list(ORDER)!r}, datum.state)", "as": "place"},
        ],
        "mark": {"type": "area", "interpolate": "step-after", "opacity": 0.85},
        "encoding": {
            "y": {
                "field": "blocks", "type": "quantitative", "title": "blocks", "stack": "zero",
                "axis": {"tickCount": 4, "labelExpr": charts.NUMBER_TEXT},
            },
            "order": {"field": "place"},
            "color": {
                "field": "state", "type": "nominal",
                "scale": {"domain": [*ORDER, "token fill"], "range": [*COLOURS, charts.TEXT]},
                "legend": {"title": None, "symbolType": "square", "symbolStrokeWidth": 0},
            },
        },
    }  # fmt: skip
    line: Spec = {
        "transform": [{"calculate": "'token fill'", "as": "state"}],
        "mark": {"type": "line", "interpolate": "step-after", "strokeWidth": 0.8},
        "encoding": {"y": {"field": "fill", "type": "quantitative"}, "color": {"field": "state", "type": "nominal"}},
    }
    return {
        "data": charts.table(("c", "t", *ORDER, "fill"), rows),
        "transform": [charts.run_names(labels)],
        **charts.per_run(
            labels, {"encoding": {"x": charts.run_time()}, "layer": [{**areas, "params": charts.ZOOM}, line]}
        ),
    }


def sequences(material: Material) -> Figure:
    """Running and waiting sequences."""
    title = "Running and waiting"
    rows: list[tuple[float, ...]] = []
    thinned: list[Thinned] = []
    for index, shown in enumerate(material.first_runs):
        steps = shown.steps("t_done_ns", "num_running", "num_waiting")
        t, kept = _kept(steps, steps["num_running"], steps["num_waiting"])
        thinned.append(kept)
        columns = (steps[name][kept.rows] for name in ("num_running", "num_waiting"))
        rows += [(index, *row) for row in zip(t, *columns, strict=True)]
    if not rows:
        return Figure("sequences", title, "No step was recorded.", None)
    caption = join(
        "Sequences after each step: running (scheduled, they hold blocks) and waiting (in the queue, preempted ones "
        "included).",
        _thinned(material, thinned, "fewest and most running and waiting sequences"),
        material.which_runs(),
    )
    labels = [shown.label for shown in material.first_runs]
    inner: Spec = {
        "params": charts.ZOOM,
        "mark": {"type": "line", "interpolate": "step-after", "strokeWidth": 1.4},
        "encoding": {
            "x": charts.run_time(),
            "y": {
                "field": "num", "type": "quantitative", "title": "sequences",
                "axis": {"tickCount": 4, "labelExpr": charts.NUMBER_TEXT, "tickMinStep": 1},
            },
            "color": {
                "field": "state", "type": "nominal",
                "scale": {"domain": ["running", "waiting"], "range": [charts.USED, charts.WARN]},
                "legend": {"title": None, "symbolType": "stroke"},
            },
        },
    }  # fmt: skip
    spec = {
        "data": charts.table(("c", "t", "running", "waiting"), rows),
        "transform": [charts.run_names(labels), {"fold": ["running", "waiting"], "as": ["state", "num"]}],
        **charts.per_run(labels, inner),
    }
    return Figure("sequences", title, caption, spec)


def evictions(material: Material) -> Figure:
    """How many there were in each stretch of the run; exact sums, nothing is thinned."""
    title = "Evictions and preemptions"
    labels: list[str] = []
    rows: list[tuple[int, int, float, float, int]] = []
    totals = []
    for shown in material.first_runs:
        sums = _summed(shown)
        totals.append(f"{shown.label}: {', '.join(f'{total:,} {kind}' for kind, (total, _) in sums.items())}")
        for kind, (total, parts) in sums.items():
            if total:
                rows += [(len(labels), KINDS.index(kind), *part) for part in parts if part[2]]
                labels.append(f"{shown.label}: {kind}")
    if not rows:
        return Figure("evictions", title, join("There were none.", material.which_runs()), None)
    caption = join(
        f"Blocks evicted from the prefix cache, and sequences preempted, in {BARS} equal stretches of each run. "
        "Each part has a scale of its own, and none is drawn for what never happened.",
        f"{'; '.join(totals)}.",
        material.which_runs(),
    )
    return Figure("evictions", title, caption, _bars(labels, rows))


def _summed(shown: Shown) -> dict[str, tuple[int, list[tuple[float, float, int]]]]:
    """By kind: the total, and (start s, end s, number) of each stretch."""
    steps = shown.steps("t_done_ns", *KINDS)
    t = steps["t_done_ns"] / 1e9
    edges = np.linspace(0, float(t[-1]) if len(t) else 1.0, BARS + 1)
    found = {}
    for kind in KINDS:
        sums = np.histogram(t, edges, weights=steps[kind])[0].astype(int)
        parts = [(float(edges[i]), float(edges[i + 1]), int(sums[i])) for i in range(BARS)]
        found[kind] = (int(steps[kind].sum()), parts)
    return found


def _bars(labels: list[str], rows: list[tuple[int, int, float, float, int]]) -> Spec:
    inner: Spec = {
        "mark": {"type": "rect"},
        "encoding": {
            "x": {**charts.run_time(), "field": "start"},
            "x2": {"field": "end"},
            "y": {
                "field": "num", "type": "quantitative", "title": None, "stack": None, "scale": {"zero": True},
                "axis": {"tickCount": 3, "labelExpr": charts.NUMBER_TEXT, "tickMinStep": 1},
            },
            "y2": {"datum": 0},
            "color": {
                "field": "kind", "type": "nominal", "legend": None,
                "scale": {"domain": [0, 1], "range": [charts.IDLE, charts.BAD]},
            },
            "tooltip": [
                {"field": "run", "type": "nominal"}, {"field": "num", "type": "quantitative", "format": ","},
                {"field": "start", "type": "quantitative", "title": "from, s", "format": ".4~g"},
                {"field": "end", "type": "quantitative", "title": "to, s", "format": ".4~g"},
            ],
        },
    }  # fmt: skip
    return {
        "data": charts.table(("c", "kind", "start", "end", "num"), rows),
        "transform": [charts.run_names(labels)],
        "resolve": {"scale": {"y": "independent"}},
        **charts.per_run(labels, inner, height=64),
    }
