"""Latency: how long until the first token, and between tokens?"""

from __future__ import annotations

from kvtop.state.model import Samples
from kvtop.tui.frame import MIN_P99, Frame
from kvtop.tui.glyphs import bar_chart
from kvtop.tui.panels.base import TextPanel
from kvtop.tui.stats import Summary, means, summarise
from kvtop.tui.text import duration, short
from kvtop.tui.widgets.lines import Line


class LatencyPanel(TextPanel):
    """TTFT and ITL: p50, p99, n and a sparkline of the last minute."""

    TITLE = "Latency"
    QUESTION = "how long?"
    HELP = f"""\
TTFT  time to first token: from the moment a request was due (its time in
      the queue counts) to its first token
ITL   inter-token latency: the gap between two tokens of a sequence
p50, p99 over the last 60 s of run time, interpolated linearly; n samples.
Below {MIN_P99} samples there is no p99: it would only be the maximum.
A bar is the mean of one second, newest right; the highest fills the
height. Under VIRTUAL TIME all times are the simulated clock's."""

    def note(self, frame: Frame) -> Line:
        if self.size.height > 4:
            return [("last 60 s", "soft")]
        return [("p50", "soft"), (" ──── ", "rule"), ("p99", "soft"), (" ─── ", "rule"), ("n", "soft")]

    def lines(self, frame: Frame, width: int, height: int) -> list[Line]:
        draw = self._tall if height >= 4 else self._flat
        out: list[Line] = []
        for name, samples in (("TTFT", frame.state.ttft), ("ITL", frame.state.itl)):
            summary = summarise(samples)
            chart_rows = (height - 2) // 2
            if summary.n:
                out += draw(name, summary, samples, frame, width, chart_rows)
            else:
                out += [[(f"{name:<5}", "title"), ("-  ", "text"), ("no samples yet", "soft")], *([[]] * chart_rows)]
        return out

    def _flat(self, name: str, summary: Summary, samples: Samples, frame: Frame, width: int, _: int) -> list[Line]:
        """One row: chart, then p50, p99 and n under their names in the title."""
        spark = max(0, width - 5 - 8 - 8 - 6 - 3)
        line: Line = [(f"{name:<5}", "title"), *_chart(name, samples, frame, spark, 1)[0]]
        numbers = f"{duration(summary.p50):>9}{_p99(summary):>9}{short(summary.n):>6}"
        return [[*line, (numbers, "text")]]

    def _tall(
        self, name: str, summary: Summary, samples: Samples, frame: Frame, width: int, chart_rows: int
    ) -> list[Line]:
        """Numbers with their names, the chart below."""
        line: Line = [(f"{name:<5}", "title")]
        for label, value in (("p50", duration(summary.p50)), ("p99", _p99(summary))):
            line += [(f"{label} ", "soft"), (f"{value:<9}", "text")]
        line += [("n ", "soft"), (short(summary.n), "text")]
        if width >= 56:
            line += [("   max ", "soft"), (duration(summary.peak), "text")]
        return [line, *_chart(name, samples, frame, width, chart_rows)]


def _p99(summary: Summary) -> str:
    return duration(summary.p99) if summary.n >= MIN_P99 else "-"


def _chart(name: str, samples: Samples, frame: Frame, width: int, height: int) -> list[Line]:
    rows = bar_chart(means(samples.points, frame.state.t_ns, width), width, height)
    return [[(row, name.lower())] for row in rows]
