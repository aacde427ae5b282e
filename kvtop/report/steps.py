"""Figures of steps: where their time went, and how long they took."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from kvtop.plots.axes import Axis
from kvtop.report import charts
from kvtop.report.figure import Figure, Material, Shown, counts, join, same
from kvtop.report.thin import ecdf
from kvtop.report.vega import Spec

PARTS = (
    ("device", "device", charts.USED),
    ("schedule", "schedule", charts.IDLE),
    ("rest", "rest of the step", charts.TRANSFER),
    ("between", "between steps, work waiting", charts.WARN),
    ("empty", "between steps, nothing to do", charts.FRESH),
)
KINDS = ("with prompt tokens", "decode only")


def step_figures(material: Material) -> Iterator[Figure]:
    """The breakdown, then ECDFs of the length of steps."""
    yield breakdown(material)
    yield lengths(material)


def _columns(shown: Shown) -> dict[str, np.ndarray]:
    return shown.steps(
        "t_start_ns", "t_planned_ns", "t_done_ns", "device_ns", "num_running", "num_waiting", "prefill_tokens"
    )


def breakdown(material: Material) -> Figure:
    """Time from the start of the first step to the end of the last, in parts that add up to it."""
    title = "Where the time went"
    rows: list[dict[str, Any]] = []
    runs, numbers = material.first_runs, []
    for shown, label in zip(runs, charts.names([shown.label for shown in runs]), strict=True):
        steps = _columns(shown)
        numbers.append(len(steps["t_start_ns"]))
        if not numbers[-1]:
            continue
        parts = split(steps)
        total = sum(parts.values())
        rows += [
            {"run": label, "part": words, "place": place, "s": parts[name] / 1e9, "share": parts[name] / (total or 1)}
            for place, (name, words, _) in enumerate(PARTS)
        ]
    if not rows:
        return Figure("steps", title, "No step was recorded.", None)
    virtual = "Under a virtual clock a step takes what its cost model says and scheduling takes nothing."
    caption = join(
        "From the start of the first step to the end of the last: planning (start to planned), device (what the "
        "executor reports), the rest of each step (accounting, sampling, transfers), and the time between steps, with "
        "and without sequences that run or wait.",
        f"{counts([shown.label for shown in runs], numbers, 'step')}.",
        virtual if material.simulated else "",
        material.which_runs(),
    )
    across: Spec = {"field": "s", "title": "time of the run, s", "axis": {"labelExpr": charts.NUMBER_TEXT}}
    labels = list(dict.fromkeys(row["run"] for row in rows))
    return Figure("steps", title, caption, charts.stacked_bars(labels, PARTS, rows, across))


def split(steps: dict[str, np.ndarray]) -> dict[str, float]:
    """ns by part; the device's share of a step is at most what follows planning."""
    start, planned, done = (steps[name].astype(np.float64) for name in ("t_start_ns", "t_planned_ns", "t_done_ns"))
    after = done - planned
    device = np.clip(steps["device_ns"], 0, after)
    gaps = np.maximum(start[1:] - done[:-1], 0)
    busy = (steps["num_running"][:-1] + steps["num_waiting"][:-1]) > 0
    return {
        "device": float(device.sum()),
        "schedule": float((planned - start).sum()),
        "rest": float((after - device).sum()),
        "between": float(gaps[busy].sum()),
        "empty": float(gaps[~busy].sum()),
    }


def lengths(material: Material) -> Figure:
    """How long steps took, those that compute prompt tokens apart from those that only decode."""
    title = "Length of steps"
    runs = material.first_runs
    labels = [shown.label for shown in runs]
    values: list[tuple[int, int, list[float]]] = []
    for index, shown in enumerate(runs):
        steps = _columns(shown)
        took, prompt = steps["t_done_ns"] - steps["t_start_ns"], steps["prefill_tokens"] > 0
        values += [(index, 0, sorted(took[prompt].tolist())), (index, 1, sorted(took[~prompt].tolist()))]
    if not any(each for *_, each in values):
        return Figure("step-lengths", title, "No step was recorded.", None)
    if constant := same([each for *_, each in values]):
        return Figure("step-lengths", title, join(f"All took {constant}.", material.which_runs()), None)
    axis = charts.axis_over(value for *_, each in values for value in each)
    rows = [(index, kind, t, share) for index, kind, each in values for t, share in ecdf(each, axis)]
    numbers = [
        f"{KINDS[kind]}: {counts(labels, [len(each) for _, k, each in values if k == kind], 'step')}" for kind in (0, 1)
    ]
    caption = join(
        "Share of steps that took at most each time, from the start of planning to the end of accounting; above, steps "
        "that compute prompt tokens (also after a preemption), below, steps that only decode.",
        f"{'; '.join(numbers)}.",
        material.which_runs(),
    )
    return Figure("step-lengths", title, caption, _lengths_spec(labels, rows, axis))


def _lengths_spec(labels: list[str], rows: list[tuple[int, int, float, float]], axis: Axis) -> Spec:
    return {
        "data": charts.table(("c", "kind", "x", "y"), [(c, k, max(x, axis.low), y) for c, k, x, y in rows]),
        "transform": [charts.run_names(labels), {"calculate": f"{list(KINDS)!r}[datum.kind]", "as": "what"}],
        "facet": {"field": "what", "type": "nominal", "title": None, "sort": list(KINDS)},
        "columns": 1,
        "spec": {
            "width": charts.WIDTH,
            "height": charts.ROW_HEIGHT,
            "mark": {"type": "line", "interpolate": "step-after"},
            "encoding": {
                "x": charts.time_axis("x", "length of a step", axis),
                "y": charts.share_axis("y", "share of steps"),
                "color": charts.run_colour(labels),
                "strokeDash": charts.run_dash(labels),
            },
        },
    }
