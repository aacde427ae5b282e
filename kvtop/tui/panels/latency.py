"""Latency: how long until the first token, and between tokens?"""

from __future__ import annotations

from kvtop.state.model import Samples
from kvtop.tui.frame import MIN_P99, Frame
from kvtop.tui.glyphs import bar_chart
from kvtop.tui.panels.base import TextPanel
from kvtop.tui.stats import CachedSummary, Summary, slots
from kvtop.tui.text import duration, short
from kvtop.tui.widgets.lines import Line


class LatencyPanel(TextPanel):
    """TTFT and ITL: p50, p99, n and a sparkline of the last minute."""

    TITLE = "Latency"
    QUESTION = "how long do they wait?"
    HELP = f"""\
TTFT  time to first token: from the moment a request was due to its first token, queueing included.
ITL   inter-token latency: the gap between two tokens of a sequence.
p50 and p99 are over the last 60 s of run time, by linear interpolation between samples; n is how many there are.
With fewer than {MIN_P99} samples no p99 is shown: it would be the maximum. Each bar of the chart is the mean of its slot of
time, newest right; the highest fills the height. Times are the run's clock: with VIRTUAL TIME they are simulated."""

    def __init__(self) -> None:
        super().__init__()
        self._summaries = {"TTFT": CachedSummary(), "ITL": CachedSummary()}

    def note(self, frame: Frame) -> Line:
        return [("last 60 s", "soft")]

    def lines(self, frame: Frame, width: int, height: int) -> list[Line]:
        rows = ((("TTFT", frame.state.ttft), ("ITL", frame.state.itl)))
        chart_rows = max(0, (height - 2) // 2)
        out: list[Line] = []
        for name, samples in rows:
            summary = self._summaries[name].update(samples)
            head = self._numbers(name, summary)
            if not summary.n:
                out += [head, *([[]] * chart_rows)]
            elif chart_rows:
                out += [[*head, ("  max ", "soft"), (duration(summary.peak), "text")]]
                out += self._chart(name, samples, frame, width, chart_rows)
            else:
                spark = width - sum(len(text) for text, _ in head) - 1
                out += [[*head, (" ", ""), *self._chart(name, samples, frame, spark, 1)[0]]]
        return out

    def _numbers(self, name: str, summary: Summary) -> Line:
        if not summary.n:
            return [(f"{name:<5}", "title"), ("-", "text"), ("  no samples yet", "soft")]
        p99 = duration(summary.p99) if summary.n >= MIN_P99 else "-"
        return [
            (f"{name:<5}", "title"),
            ("p50", "soft"),
            (f"{duration(summary.p50):>8}", "text"),
            (" p99", "soft"),
            (f"{p99:>8}", "text"),
            (" n", "soft"),
            (f"{short(summary.n):>5}", "text"),
        ]

    def _chart(self, name: str, samples: Samples, frame: Frame, width: int, height: int) -> list[Line]:
        if width < 3:
            return [[]] * height
        rows = bar_chart(slots(samples.points, frame.state.t_ns, width), width, height)
        return [[(row, name.lower())] for row in rows]
