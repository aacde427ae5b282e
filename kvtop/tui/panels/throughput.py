"""Throughput: how fast?"""

from __future__ import annotations

from kvtop.tui.frame import Frame
from kvtop.tui.glyphs import bar_chart
from kvtop.tui.panels.base import TextPanel
from kvtop.tui.stats import RATE_WINDOW_NS, rates, recent_rate
from kvtop.tui.text import short
from kvtop.tui.widgets.lines import Line


class ThroughputPanel(TextPanel):
    """Prefill and decode tokens a second over the recent window, with a sparkline of the last seconds."""

    TITLE = "Throughput"
    QUESTION = "how fast?"
    HELP = f"""\
prefill  tokens computed a second below the last known position of their
         sequence: prompts, and what preemptions made it compute again
decode   tokens computed a second at the last position: each yields a token
Means over the last {RATE_WINDOW_NS // 1_000_000_000} s of run time (the whole run while it is younger).
Tokens taken from the prefix cache are not computed and do not count.
A bar is one second, newest right."""

    def note(self, frame: Frame) -> Line:
        return [(f"last {RATE_WINDOW_NS // 1_000_000_000} s", "soft")]

    def lines(self, frame: Frame, width: int, height: int) -> list[Line]:
        history, now = frame.state.history, frame.state.t_ns
        columns = (("prefill", history.prefill_tokens), ("decode", history.decode_tokens))
        chart_rows = max(0, (height - 2) // 2)
        out: list[Line] = []
        for name, column in columns:
            rate = recent_rate(history, column, now)
            head: Line = [(f"{name:<8}", "title"), (f"{'-' if rate is None else short(rate):>5}", "text")]
            head += [(" tok/s", "soft")]
            spark = width if chart_rows else width - 20
            rows = bar_chart(rates(history, column, now, max(0, spark)), max(0, spark), max(1, chart_rows))
            if chart_rows:
                out += [head, *([(row, name)] for row in rows)]
            else:
                out += [[*head, (" ", ""), (rows[0], name)]]
        return out
