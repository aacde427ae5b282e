"""Distribution: how long does it take, not only on average?"""

from __future__ import annotations

from kvtop.analysis.slo import Goodput
from kvtop.state.latency import Bin, Spread, histogram, objectives_met
from kvtop.state.numbers import MIN_P99
from kvtop.state.slow import Analysis
from kvtop.tui.attached import latency_lines
from kvtop.tui.frame import Frame
from kvtop.tui.panels.base import TextPanel
from kvtop.tui.text import clean, duration, percent, short
from kvtop.tui.widgets.lines import Line


class AnalysisPanel(TextPanel):
    """A panel that shows a part of what the screen has worked out."""

    PER_REQUEST = True
    analysis: Analysis | None = None

    def lines(self, frame: Frame, width: int, height: int) -> list[Line]:
        if self.analysis is None:
            return []
        return self.lines_of(self.analysis, frame, width, height)

    def lines_of(self, found: Analysis, frame: Frame, width: int, height: int) -> list[Line]:
        raise NotImplementedError


class DistributionPanel(AnalysisPanel):
    """A histogram with what lies below each edge, and percentiles with n."""

    TITLE = "Distribution"
    QUESTION = "how long does it take?"
    NUMBERS = tuple(
        f"latency.{key}_{part}"
        for key in ("ttft", "itl", "tpot", "queue", "e2e")
        for part in ("p50_ns", "p95_ns", "p99_ns", "n")
    )
    HELP = f"""\
Values of the last 60 s of run time. A row counts those up to its edge and
above the edge before; behind it stands the share of all up to there.
Percentiles interpolate linearly. Below {MIN_P99} values there is no p95 or
p99: it would only be the largest.
TTFT, ITL and queue: all of the window. TPOT and E2E: one value a request
that ended in it with an answer, the newest 500 at most.
v goes to the next metric. Objectives (--slo) are judged over the requests
that ended in the window."""

    def heading(self, frame: Frame) -> tuple[str, str]:
        if frame.state.attached is not None:
            return "Latency", self.QUESTION
        if self.analysis is None:
            return self.TITLE, self.QUESTION
        return self.analysis.metric.title, f"{self.analysis.metric.meaning}?"

    def note(self, frame: Frame) -> Line:
        if self.analysis is None:
            return []
        return [(f"n {short(self.analysis.spread.n)}", "text")]

    def attached_lines(self, frame: Frame, width: int, height: int) -> list[Line]:
        """All metrics: their servers tell only how many values were in which bucket."""
        note: Line = [("the bucket that each percentile is in", "faint")]
        return [*latency_lines(frame, width, max(1, height - 1)), note][:height]

    def lines_of(self, found: Analysis, frame: Frame, width: int, height: int) -> list[Line]:
        if not found.spread.n:
            return [[(f" no {found.metric.title} in the last 60 s", "soft")]]
        below = [_quantiles(found.spread, width)]
        if (met := objectives_met(frame.state)) is not None:
            below.append(_objectives(met, width))
        bins = histogram(found.points, max(2, height - len(below)))
        most = max(one.count for one in bins)
        return [*(_bin(one, most, width) for one in bins), *below][:height]


def _bin(one: Bin, most: int, width: int) -> Line:
    room = max(1, width - 27)
    bar = "▪" * max(1 if one.count else 0, round(one.count / most * room)) if most else ""
    label, number = f" <= {duration(one.high_ns):<8}", f"{short(one.count):>6} "
    return [(label, "soft"), (number, "text"), (bar.ljust(room), "ttft"), (f" {percent(one.below, 1):>7}", "soft")]


def _quantiles(spread: Spread, width: int) -> Line:
    """Those that there is room for."""
    told = {
        name: duration(value) if name in ("p50", "max") or spread.n >= MIN_P99 else "-"
        for name, value in (
            ("p50", spread.p50), ("p90", spread.p90), ("p95", spread.p95), ("p99", spread.p99), ("max", spread.peak),
        )
    }  # fmt: skip
    for name in ("p90", "max", "p95"):
        if sum(len(key) + len(value) + 3 for key, value in told.items()) > width:
            del told[name]
    line: Line = []
    for name, value in told.items():
        line += [(f" {name} ", "soft"), (f"{value} ", "strong" if name == "p50" else "text")]
    return line


def _objectives(met: Goodput, width: int) -> Line:
    """Share of those judged; what was missed where it fits; what was asked for stands last, where it may be cut."""
    style = "good" if met.judged and met.met == met.judged else "warn"
    line: Line = [(" SLO met ", "soft"), (percent(met.met, met.judged), style), (f" of {met.judged:,}", "soft")]
    missed: Line = [("  missed ", "soft"), (", ".join(f"{name} {n:,}" for name, n in met.missed.items()), "warn")]
    if met.missed and sum(len(text) for text, _ in [*line, *missed]) <= width:
        line += missed
    return [*line, (f"  {clean(', '.join(met.slo))}", "soft")]
