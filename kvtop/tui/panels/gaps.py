"""Gaps: what does the time between tokens depend on?"""

from __future__ import annotations

from kvtop.state.numbers import MIN_P99
from kvtop.state.slow import Analysis, BySize
from kvtop.tui.frame import Frame
from kvtop.tui.panels.distribution import AnalysisPanel
from kvtop.tui.text import duration, fit, short
from kvtop.tui.widgets.lines import Line

_LABEL = 23


class GapsPanel(AnalysisPanel):
    """ITL by the number of sequences that decoded in the step, and by prompt tokens in it."""

    TITLE = "ITL by batch"
    QUESTION = "what does a gap depend on?"
    HELP = """\
Gaps of the last 60 s, by the step that ended them: how many sequences
decoded in it (in powers of two), and whether it computed prompts too.
Gaps that hold a preemption are among them: they end in a step like others.
The bar is p50."""

    def lines_of(self, found: Analysis, frame: Frame, width: int, height: int) -> list[Line]:
        rows = [row for row in found.by_size if row.spread.n]
        if not rows:
            return [[(" no gaps in the last 60 s", "soft")]]
        most = max(row.spread.p50 or 0.0 for row in rows)
        out: list[Line] = [
            [(fit(" decoding in the step", _LABEL), "faint"), (f"{'p50':>8}{'p99':>9}{'n':>7}", "faint")]
        ]
        kept = rows if len(rows) < height else rows[-(height - 1) :]
        out += [_row(row, most, width) for row in kept]
        if found.untold_gaps and len(out) < height:
            out.append([(f" {short(found.untold_gaps)} gaps ended in steps that are no longer kept", "soft")])
        return out[:height]


def _row(row: BySize, most: float, width: int) -> Line:
    spread = row.spread
    p99 = duration(spread.p99) if spread.n >= MIN_P99 else "-"
    room = width - _LABEL - 26
    bar = "▪" * max(1, round((spread.p50 or 0) / most * room)) if room > 0 and most else ""
    numbers = f"{duration(spread.p50):>8}{p99:>9}{short(spread.n):>7}"
    style = "prefill" if row.label == "prefill in the step" else "itl"
    return [(fit(f" {row.label}", _LABEL), "soft"), (numbers, "text"), ("  ", ""), (bar, style)]
