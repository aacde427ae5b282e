"""Figures of a recording of attached servers: gauges, rates and ranges over time, with breaks where nobody answered."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from kvtop.plots.axes import Axis
from kvtop.report import charts
from kvtop.report.figure import Figure, join
from kvtop.report.observed import KV_EVENTS, LOSSES, Observed
from kvtop.report.vega import Spec
from kvtop.state.attached_reading import Reading, no_events
from kvtop.workloads.words import counted

MAX_DRAWN = 800  # looks; of more, the last one of each of so many stretches is drawn
BARS = 120
BREAKS = "A line breaks where no answer was there that could be trusted."
CACHED = {"cached": ("pool.cached_blocks", "pool.num_blocks")}  # a share of two numbers
EVENTS_LOST = "not all KV events were heard"
WHOLE_TEXT = f"datum.value % 1 ? '' : {charts.NUMBER_TEXT}"  # there is no half of a block
Line = tuple[str, str, str]
"""Name of the number, words, colour."""


def observed_figures(found: Observed) -> Iterator[Figure]:
    """All of them; without data a sentence says what is missing."""
    yield _lines(
        found, "pool", "Blocks in use", "share of the pool",
        (("pool.used_share", "in use", charts.USED), ("cached", "cached, by KV events", charts.IDLE)),
        "Blocks in use by the servers' gauges, at each look, and the blocks that are cached (in use or not) by their "
        "KV events, of all blocks. A cached block may be in use: the two are no parts of one whole.",
        is_share=True,
    )  # fmt: skip
    yield _lines(
        found, "queue", "Running and waiting", "requests",
        (("queue.running", "running", charts.USED), ("queue.waiting", "waiting", charts.WARN)),
        "Gauges of the servers, as they were at each look.",
    )  # fmt: skip
    yield _lines(
        found, "tokens", "Tokens a second", "tokens/s",
        (
            ("throughput.decode_tokens_s", "generated", charts.USED),
            ("throughput.prefill_tokens_s", "prompt, computed (estimate)", charts.WARN),
        ),
        "Of the last five seconds at each look, from the difference of two looks at the servers' counters. Computed "
        "prompt tokens are an estimate: prompts less hits, which servers count at different moments.",
    )  # fmt: skip
    yield _lines(
        found, "hits", "Prefix cache hit rate", "found / looked up",
        (("cache.recent_hit_rate", "hit rate", charts.IDLE),),
        "Prompt tokens found in the prefix cache / looked up, of the last 60 s at each look.", is_share=True,
    )  # fmt: skip
    for key, words in (("ttft", "TTFT"), ("itl", "ITL"), ("queue", "Queue time")):
        yield _ranges(found, key, words)
    yield _bars(found)


def _drawn(found: Observed) -> tuple[list[int], str]:
    """Which looks are drawn, and what to say of the others."""
    times = found.times_s
    if len(times) <= MAX_DRAWN:
        return list(range(len(times))), f"n = {counted(len(times), 'look')}."
    place = np.minimum((np.array(times) - times[0]) / (times[-1] - times[0]) * MAX_DRAWN, MAX_DRAWN - 1).astype(int)
    last = np.flatnonzero(np.diff(place, append=-1))
    step = (times[-1] - times[0]) / MAX_DRAWN
    return last.tolist(), f"Of {len(times):,} looks the last one of each {step:.3g} s is drawn."


def _plain(reading: Reading) -> float | None:
    """None: not reported then, or not to be trusted."""
    known = isinstance(reading.value, int | float) and not reading.truth.startswith(("stale", "still"))
    return float(reading.value) if known and isinstance(reading.value, int | float) else None


def _values(found: Observed, name: str) -> list[float | None]:
    if name not in CACHED:
        return [_plain(reading) for reading in found.series[name]]
    cached, sizes = (found.series[own] for own in CACHED[name])
    pairs = [(_plain(one), _plain(size)) for one, size in zip(cached, sizes, strict=True)]
    return [None if one is None or not size else one / size for one, size in pairs]


def _lines(
    found: Observed, key: str, title: str, unit: str, lines: Sequence[Line], words: str, *, is_share: bool = False
) -> Figure:
    looks, thinned = _drawn(found)
    known = [(*line, _values(found, line[0])) for line in lines]
    known = [line for line in known if any(value is not None for value in line[3])]
    if not known:
        return Figure(key, title, f"Not reported: {_why(found, lines[0][0])}.", None)
    gone = [
        f"{said}: not reported ({_why(found, name)})" for name, said, _ in lines if name not in {k[0] for k in known}
    ]
    part = _partial(found, *(name for name, *_ in known))
    rows = [(found.times_s[i], *(values[i] for *_, values in known)) for i in looks]
    names = [said for _, said, _, _ in known]
    y: Spec = {"field": "num", "type": "quantitative", "title": unit}
    most = max(value for *_, values in known for value in values if value is not None)
    plain: Spec = {
        "axis": {"tickCount": 4, "labelExpr": charts.NUMBER_TEXT}, "scale": {"domain": [0, 1.08 * most or 1]},
    }  # fmt: skip
    y |= charts.share_axis("num", unit) if is_share else plain
    columns = [f"v{place}" for place in range(len(known))]
    labels: Spec = {
        "lookup": "column", "from": {
            "data": {"values": [{"column": c, "what": said} for c, said in zip(columns, names, strict=True)]},
            "key": "column", "fields": ["what"],
        },
    }  # fmt: skip
    spec: Spec = {
        "data": charts.table(("t", *columns), rows),
        "transform": [{"fold": columns, "as": ["column", "num"]}, labels],
        "width": charts.WIDTH,
        "height": charts.ROW_HEIGHT,
        "params": charts.ZOOM,
        "mark": {"type": "line", "interpolate": "step-after", "invalid": "break-paths-show-path-domains"},
        "encoding": {
            "x": charts.run_time("time of the recording, s", found.end_s or None),
            "y": y,
            "color": {
                "field": "what", "type": "nominal",
                "scale": {"domain": names, "range": [colour for _, _, colour, _ in known]},
                "legend": {"title": None, "symbolType": "stroke"},
            },
        },
    }  # fmt: skip
    caption = join(words, BREAKS, f"{'; '.join(gone)}." if gone else "", part.words, thinned)
    return Figure(key, part.title(title), caption, part.shaded(spec))


class Partial(NamedTuple):
    """When a figure was of some engines, servers or events only: from look to look (s), and of which. "": never."""

    stretches: list[tuple[float, float]]
    words: str

    def title(self, title: str) -> str:
        return f"{title} (partial)" if self.words else title

    def shaded(self, spec: Spec) -> Spec:
        """A plot over time of one unit, with these stretches behind it."""
        if not self.stretches:
            return spec
        own = {key: value for key, value in spec.items() if key in ("params", "mark", "transform", "encoding")}
        band: Spec = {
            "data": charts.table(("t", "t2"), self.stretches),
            "mark": {"type": "rect", "color": charts.FRESH, "opacity": 0.35},
            "encoding": {"x": spec["encoding"]["x"], "x2": {"field": "t2"}},
        }
        return {**{key: value for key, value in spec.items() if key not in own}, "layer": [band, own]}


def _partial(found: Observed, *names: str) -> Partial:
    series = [found.series[own] for name in names for own in CACHED.get(name, (name,))]
    stretches: list[tuple[float, float]] = []
    parts: list[str] = []
    times = [*found.times_s, found.end_s]
    for i, start in enumerate(found.times_s):
        said = [known[i].truth for known in series if _plain(known[i]) is not None]
        said = [truth.partition(": ")[2] or EVENTS_LOST for truth in said if truth.startswith("partial")]
        if said:
            parts += said
            begun = stretches.pop()[0] if stretches and stretches[-1][1] == start else start
            stretches.append((begun, max(start, times[i + 1])))
    return Partial(stretches, f"Shaded: partial, {'; '.join(dict.fromkeys(parts))}." if parts else "")


def _why(found: Observed, name: str) -> str:
    """Why a number was never there."""
    if name == "cached":
        return no_events(found.state) or "the servers do not tell how many blocks they have"
    if not found.attached.servers:
        return "kvtop was given no server's URL"
    return next((r.missing for r in reversed(found.series[name]) if r.missing), "nobody ever answered")


def _ranges(found: Observed, key: str, words: str) -> Figure:
    """Boxes from the lower to the upper end of the bucket that p50 and p95 are in."""
    title = f"{words}: p50 and p95"
    looks, thinned = _drawn(found)
    boxes: list[tuple[float, float, int, float, float | None]] = []
    times = [*found.times_s, found.end_s]
    ends = [*looks[1:], len(found.times_s)] if looks else []
    for quantile, percentile in enumerate(("p50", "p95")):
        readings = found.series[f"latency.{key}_{percentile}_ns"]
        for i, after in zip(looks, ends, strict=True):
            if _plain(readings[i]) is not None and (low := readings[i].lo) is not None:
                box = (times[i], max(times[i], times[after]), quantile, low, readings[i].hi)
                if boxes and boxes[-1][1:] == (times[i], *box[2:]):  # the same range goes on
                    box = (boxes.pop()[0], *box[1:])
                boxes.append(box)
    if not boxes:
        return Figure(f"latency-{key}", title, f"Not reported: {_why(found, f'latency.{key}_p50_ns')}.", None)
    part = _partial(found, *(f"latency.{key}_{quantile}_ns" for quantile in ("p50", "p95")))
    most = max(max(low, high or 0.0) for *_, low, high in boxes)
    axis, is_open = Axis(0.0, 1.05 * most, False), any(high is None for *_, high in boxes)
    rows = [(t, t2, q, low, axis.high if high is None else high) for t, t2, q, low, high in boxes]
    colour: Spec = {
        "field": "part", "type": "nominal", "scale": {"domain": ["p50", "p95"], "range": [charts.USED, charts.WARN]},
    }  # fmt: skip
    spec: Spec = {
        "data": charts.table(("t", "t2", "q", "low", "high"), rows),
        "transform": [{"calculate": "datum.q == 0 ? 'p50' : 'p95'", "as": "part"}],
        "width": charts.WIDTH,
        "height": charts.ROW_HEIGHT,
        "mark": {"type": "rect", "strokeWidth": 1.5},
        "encoding": {
            "x": charts.run_time("time of the recording, s", found.end_s or None),
            "x2": {"field": "t2"},
            "y": charts.time_axis("low", words, axis),
            "y2": {"field": "high"},
            # One full, one an outline: both are seen where they lie on each other.
            "fill": {**colour, "legend": {"title": None, "symbolType": "square", "symbolStrokeWidth": 0}},
            "stroke": {**colour, "legend": None},
            "fillOpacity": {"condition": {"test": "datum.q == 0", "value": 0.5}, "value": 0.1},
            "strokeOpacity": {"condition": {"test": "datum.q == 0", "value": 0}, "value": 1},
        },
    }  # fmt: skip
    caption = join(
        "Of the last 60 s at each look. Servers count in buckets, so a percentile lies somewhere between the two "
        "bounds that its box shows; below 20 samples there is no p95.",
        "A box up to the top edge has no upper bound." if is_open else "",
        part.words,
        thinned,
    )
    return Figure(f"latency-{key}", part.title(title), caption, part.shaded(spec))


def _bars(found: Observed) -> Figure:
    title = "Evictions, and tokens wanted again"
    is_counted = found.totals.sums("evictions") is not None
    if (why := no_events(found.state)) and not is_counted:
        return Figure("evictions", title, f"Not reported: {why}.", None)
    evicted, regretted = found.evicted, found.regretted
    if is_counted:  # engines whose blocks KV events tell of are not in it: nothing is added up of both
        evicted, regretted = (found.counted[name] for name in LOSSES)
    lost = _not_in_bars(found, is_counted)
    partial = f"Partial: {lost}." if lost else ""
    title = f"{title} (partial)" if lost else title
    if not evicted and not regretted:
        nothing = f"No block was removed from the cache while kvtop {'looked' if is_counted else 'listened'}."
        return Figure("evictions", title, join(nothing, partial), None)
    kinds = [("blocks removed", evicted, charts.IDLE), ("tokens wanted again", regretted, charts.BAD)]
    kinds = [kind for kind in kinds if kind[1]]
    edges = np.linspace(0, max(found.end_s, 1e-9), BARS + 1)
    rows = []
    for place, (_, moments, _) in enumerate(kinds):
        sums = np.histogram([t for t, _ in moments], edges, weights=[n for _, n in moments])[0]
        rows += [(place, edges[i], edges[i + 1], sums[i]) for i in range(BARS) if sums[i]]
    names = [name for name, *_ in kinds]
    inner: Spec = {
        "mark": {"type": "rect"},
        "encoding": {
            "x": {**charts.run_time("time of the recording, s", found.end_s), "field": "start"},
            "x2": {"field": "end"},
            "y": {
                "field": "num", "type": "quantitative", "title": None, "stack": None, "scale": {"zero": True},
                "axis": {"tickCount": 3, "labelExpr": WHOLE_TEXT},
            },
            "y2": {"datum": 0},
            "color": {
                "field": "run", "type": "nominal", "legend": None,
                "scale": {"domain": names, "range": [colour for *_, colour in kinds]},
            },
        },
    }  # fmt: skip
    spec: Spec = {
        "data": charts.table(("c", "start", "end", "num"), rows),
        "transform": [charts.run_names(names)],
        "resolve": {"scale": {"y": "independent"}},
        **charts.per_run(names, inner, height=64),
    }
    total, again = sum(n for _, n in evicted), sum(n for _, n in regretted)
    causes = ", ".join(f"{cause} {count:,.0f}" for cause, count in found.totals.by_label("evictions/").items())
    causes = f", by what the room was for: {causes}" if causes else ""
    caption = join(
        f"From the servers' counters, in {BARS} equal stretches: blocks evicted ({total:,} in all{causes}), and tokens "
        f"computed again because of it ({again:,})."
        if is_counted
        else f"From KV events, in {BARS} equal stretches: blocks that left the cache while kvtop listened "
        f"({total:,} in all), and tokens of blocks that the rank which had evicted them stored again ({again:,}).",
        "" if is_counted else "For whom, servers do not report.",
        partial,
    )
    return Figure("evictions", title, caption, spec)


def _not_in_bars(found: Observed, is_counted: bool) -> str:
    """What evictions are not in the figure; "": all are."""
    if not is_counted:
        return "; ".join(dict.fromkeys(each.why for each in found.stretches if each.who.startswith(KV_EVENTS)))
    told = [name for name in LOSSES if found.totals.sums(name) is not None]
    return found.totals.truth("", found.attached, *told).removeprefix("partial: ")
