"""Over time: when was it slow, and what happened then?"""

from __future__ import annotations

from itertools import groupby

from kvtop.state.samples import LATENCY_WINDOW_NS, Counted, Point
from kvtop.state.slow import Analysis
from kvtop.tui.frame import Frame
from kvtop.tui.glyphs import BARS
from kvtop.tui.panels.distribution import AnalysisPanel
from kvtop.tui.text import duration
from kvtop.tui.widgets.lines import Line
from kvtop.tui.widgets.scrubber import LETTERS

_LABEL = 9
_RANK = {kind: rank for rank, kind in enumerate(LETTERS)}


class OverTimePanel(AnalysisPanel):
    """p50 and p95 of each column's values over the last minute, with preemptions, bursts of evictions and marks."""

    TITLE = "Over time"
    QUESTION = "when, and what happened then?"
    HELP = """\
A column is its share of the last 60 s (or of the run), newest right: full
up to the p50 of its values, shaded to their p95 (of few: the largest).
P preemption  e burst of evictions  x burst of misses of evicted blocks
m mark        , and . lead from one to the next"""

    def note(self, frame: Frame) -> Line:
        found = self.analysis
        return [] if found is None else [(f"{found.metric.title}  ", "text"), ("█ p50", "itl"), ("  ░ p95", "ttft")]

    def lines_of(self, found: Analysis, frame: Frame, width: int, height: int) -> list[Line]:
        if not found.spread.n:
            return [[(f" no {found.metric.title} in the last 60 s", "soft")]]
        columns = max(1, width - _LABEL - 1)
        now_ns = frame.state.t_ns
        span = max(1, min(LATENCY_WINDOW_NS, now_ns))
        p50, p95 = _percentiles(found, now_ns - span, span, columns)
        top = max(p95, default=0.0)
        rows = max(1, height - 2)
        out: list[Line] = [[(" " * _LABEL, ""), *_marks(frame, now_ns - span, span, columns)]]
        for row in range(rows - 1, -1, -1):
            label = duration(top) if row == rows - 1 and top else "0" if row == 0 else ""
            out.append([(f"{label:>{_LABEL - 1}} ", "faint"), *_cells(p50, p95, top, row, rows)])
        left = f"-{duration(span)}" if now_ns > 0 else ""
        middle = max(0, columns - len(left) - len("cursor"))
        out.append([(" " * _LABEL, ""), (left, "faint"), (" " * middle, ""), ("cursor", "faint")])
        return out[:height]


def _percentiles(found: Analysis, start_ns: int, span_ns: int, columns: int) -> tuple[list[float], list[float]]:
    places: list[list[Point]] = [[] for _ in range(columns)]
    for point in found.points:
        places[min(columns - 1, max(0, (point[0] - start_ns) * columns // span_ns))].append(point)
    counted = [Counted(points) for points in places]
    p50, p95 = ([column.percentile(q) or 0.0 for column in counted] for q in (50, 95))
    return p50, p95


def _cells(p50: list[float], p95: list[float], top: float, row: int, rows: int) -> Line:
    """One row of the chart, runs of one style together: full up to p50, shaded from there to p95."""

    def cell(low: float, high: float) -> tuple[str, str]:
        inner, outer = (max(1, round(value / top * rows * 8)) if value and top else 0 for value in (low, high))
        inner, outer = inner - 8 * row, outer - 8 * row
        if inner > 0:
            return "itl", BARS[min(8, inner)]
        return "ttft", "░" if outer >= 4 or (outer > 0 and inner == 0) else " "

    cells = [cell(low, high) for low, high in zip(p50, p95, strict=True)]
    return [("".join(glyph for _, glyph in run), style) for style, run in groupby(cells, key=lambda pair: pair[0])]


def _marks(frame: Frame, start_ns: int, span_ns: int, columns: int) -> Line:
    """The most important moment of each column."""
    found: dict[int, str] = {}
    for moment in reversed(frame.timeline.moments.all):
        if moment.t_ns <= start_ns:
            break
        place = (moment.t_ns - start_ns) * columns // span_ns
        known = found.get(place)
        if place < columns and moment.kind in _RANK and (known is None or _RANK[moment.kind] < _RANK[known]):
            found[place] = moment.kind
    return [LETTERS[found[i]] if i in found else (" ", "") for i in range(columns)]
