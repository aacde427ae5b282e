"""Figures of the prefix cache: where hits went, and what caches of other sizes would have served."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvtop.engine.errors import KvtopError, UnknownName
from kvtop.report import charts
from kvtop.report.figure import Figure, Material, join
from kvtop.report.vega import Spec
from kvtop.workloads.words import counted

if TYPE_CHECKING:
    from kvtop.plots.curves import CurvePlot
    from kvtop.workloads.load import Workload

PARTS = (
    ("found", "found", charts.USED),
    ("capacity", "lost: evicted", charts.BAD),
    ("concurrency", "lost: not computed yet", charts.WARN),
    ("block_rounding", "lost: block rounding", charts.LIGHT[4]),
    ("other", "lost: other", charts.LIGHT[5]),
)
ALWAYS = ("lru", "opt")
"""Policies with a curve besides the run's own: the usual one and the bound. The others take most of the time."""

HEIGHT = 240
MAX_CURVE_REQUESTS = 20_000
"""Of a longer trace the curves take minutes; `kvtop trace hit-rate` draws them."""


def cache_figures(material: Material) -> Iterator[Figure]:
    """The decomposition of hits, then the curves."""
    yield decomposition(material)
    yield hit_curves(material)


def decomposition(material: Material) -> Figure:
    """Found and lost tokens of each column as shares of the prompt tokens."""
    title = "Prefix hits: found and lost"
    rows: list[dict[str, Any]] = []
    told: list[str] = []
    for column, label in zip(material.comparison.columns, charts.names(material.labels), strict=True):
        known = [run.hits for run in column.runs if run.hits is not None]
        prompt = sum(hits.prompt_tokens for hits in known)
        if not prompt:
            continue
        for place, (name, part, _) in enumerate(PARTS):
            tokens = sum(getattr(hits, name) for hits in known)
            rows.append({"run": label, "part": part, "place": place, "share": tokens / prompt})
        requests = counted(sum(hits.num_requests for hits in known), "request")
        told.append(f"{label} {counted(prompt, 'prompt token')} of {requests}")
    if rows and not any(row["share"] for row in rows):
        none = f"No prompt had a prefix in common with an earlier one: {'; '.join(told)}."
        return Figure("hits", title, none, None)
    if not rows:
        return Figure(
            "hits", title, "Not reported: caching was off, or the bound of an infinite cache is missing.", None
        )
    caption = join(
        "Shares of the prompt tokens of all requests that were looked up. Found, plus what was lost to evictions, to "
        "earlier prompts that were not computed yet, to whole blocks and to other reasons, is what an infinite cache "
        "with blocks of one token would have served, and answers that came back as prompts. The rest of a bar was new.",
        f"n: {'; '.join(told)}.",
    )
    across: Spec = {
        "field": "share", "title": "share of prompt tokens", "scale": {"domain": [0, 1]}, "axis": {"format": ".0%"},
    }  # fmt: skip
    return Figure("hits", title, caption, charts.stacked_bars(material.labels, PARTS, rows, across))


def hit_curves(material: Material) -> Figure:
    """Hit rate over the size of the cache, computed from the workload when it is at hand."""
    title = "Hit rate by the size of the cache"
    manifest = material.comparison.columns[0].runs[0].manifest
    try:
        workload = _workload(manifest, material.trace)
        plot = _curves(workload, manifest)
    except KvtopError as error:
        return Figure("hit-curves", title, f"Not drawn: {error}.", None)
    pools = sorted({run.num_blocks for column in material.comparison.columns for run in column.runs if run.num_blocks})
    words = ", ".join(f"{number:,}" for number in pools)
    caption = join(
        f"What a prefix cache of each size could serve of this workload, without an engine: {plot.subtitle}.",
        "; ".join(f"{curve.label}: {curve.meaning}" for curve in (*plot.curves, plot.limit)) + ".",
        f"Vertical: the pool of these runs, {words} blocks, of which running sequences held a part." if pools else "",
    )
    return Figure("hit-curves", title, caption, _curve_spec(plot, pools))


def _workload(manifest: dict[str, Any], trace: Path | None) -> Workload:
    """The requests that were served, proved by their hash: of the trace that the user names, or of the built-in.

    Raises:
        KvtopError: they cannot be made again, or are not the same.
    """
    blocks, size = manifest.get("num_blocks"), manifest.get("block_size_tokens")
    if not blocks or not size or not manifest.get("vocab_size") or not manifest.get("workload_hash"):
        raise KvtopError("run.json does not say what its workload was made from")
    if (manifest.get("num_requests") or 0) > MAX_CURVE_REQUESTS:
        raise KvtopError(f"more than {MAX_CURVE_REQUESTS:,} requests (`kvtop trace hit-rate` draws the curves)")
    longest = min(manifest.get("max_model_len") or blocks * size + 1, blocks * size + 1)
    reasons = []
    for name in (*([str(trace)] if trace is not None else []), str(manifest["workload"])):
        found = _loaded(name, manifest, longest)
        if isinstance(found, str):
            reasons.append(found)
        elif found.hash == manifest["workload_hash"]:
            return found
        else:
            reasons.append(f"{name} is not what was served: the workload's hash differs")
    raise KvtopError("; ".join(reasons))


def _loaded(name: str, manifest: dict[str, Any], longest: int) -> Workload | str:
    """The workload as the run cut and scaled it, or why there is none."""
    from kvtop.workloads.load import load_workload
    from kvtop.workloads.spec import WorkloadSpec

    spec = WorkloadSpec(
        name=name,
        limit=manifest.get("limit"),
        time_scale=_or(manifest.get("time_scale"), 1.0),
        length_scale=_or(manifest.get("length_scale"), 1.0),
        too_long=manifest.get("too_long") or "reject",
        seed=manifest.get("seed") or 0,
        replay=manifest.get("replay"),
        arrival_rate=manifest.get("arrival_rate"),
    )
    try:
        return load_workload(spec, vocab_size=manifest["vocab_size"], max_model_len=longest)
    except UnknownName:
        return f"{name} is no built-in workload (--trace FILE names the trace that was served)"
    except KvtopError as error:
        return f"{name} is not at hand ({error})"


def _or(value: float | None, default: float) -> float:
    return default if value is None else value


def _curves(workload: Workload, manifest: dict[str, Any]) -> CurvePlot:
    from kvtop.cli.hit_rate_report import curve_plot
    from kvtop.workloads.oracle.curves import POLICIES
    from kvtop.workloads.oracle.hit_rate import hit_rates

    asked = dict.fromkeys((*ALWAYS, manifest.get("eviction")))
    policies = tuple(name for name in POLICIES if name in asked)
    found = hit_rates(
        workload.rows,
        block_size=manifest["block_size_tokens"],
        full_blocks=True,
        with_answers=True,
        policies=policies,
    )
    return curve_plot(found, workload.name)


def _curve_spec(plot: CurvePlot, pools: list[int]) -> Spec:
    labels = [curve.label for curve in (*plot.curves, plot.limit)]
    rows = [
        (index, place, share)
        for index, curve in enumerate(plot.curves)
        for place, share in zip(plot.places, curve.shares, strict=True)
    ]
    limit, last = plot.limit.shares[0], len(plot.curves)
    rows += [(last, plot.places[0], limit), (last, plot.places[-1], limit)]
    x, y = plot.axes()
    across: Spec = {
        "field": "blocks", "type": "quantitative", "title": f"{plot.across}{' (log axis)' if x.log else ''}",
        "scale": {"type": "log" if x.log else "linear", "domain": [x.low, x.high], "nice": False},
        "axis": {"values": [value for value, _ in x.ticks()], "format": "~s", "labelOverlap": "greedy"},
    }  # fmt: skip
    lines: Spec = {
        "data": charts.table(("c", "blocks", "share"), rows),
        "transform": [charts.run_names(labels)],
        "mark": {"type": "line", "point": {"size": 14}},
        "encoding": {
            "x": across,
            "y": {
                "field": "share", "type": "quantitative", "title": plot.up,
                "scale": {"domain": [0, y.high / 100]}, "axis": {"tickCount": 6, "labelExpr": charts.PERCENT_TEXT},
            },
            "color": charts.run_colour(labels),
            "strokeDash": charts.run_dash(labels),
        },
    }  # fmt: skip
    inside = [{"blocks": pool} for pool in pools if x.low <= pool <= x.high]
    rule: Spec = {
        "data": {"values": inside},
        "encoding": {"x": {"field": "blocks", "type": "quantitative"}},
        "layer": [
            {"mark": {"type": "rule", "strokeDash": [3, 3], "color": charts.TEXT}},
            {
                "mark": {"type": "text", "text": "pool", "align": "left", "dx": 5, "dy": -6, "color": charts.TEXT},
                "encoding": {"y": {"value": HEIGHT}},
            },
        ],
    }
    return {"width": charts.WIDTH, "height": HEIGHT, "layer": [lines, rule] if inside else [lines]}
