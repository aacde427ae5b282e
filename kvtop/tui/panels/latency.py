"""Latency: how long until the first token, and between tokens?"""

from __future__ import annotations

from rich.cells import cell_len

from kvtop.analysis.slo import Goodput
from kvtop.state.latency import objectives_met
from kvtop.state.numbers import PARTS
from kvtop.state.samples import Samples
from kvtop.state.windows import Summary, summarise
from kvtop.tui.attached import latency_lines
from kvtop.tui.frame import MIN_P99, Frame
from kvtop.tui.glyphs import bar_chart
from kvtop.tui.panels.base import TextPanel
from kvtop.tui.stats import means
from kvtop.tui.text import clean, duration, join_fitting, percent, short
from kvtop.tui.widgets.lines import Line, width_of


class LatencyPanel(TextPanel):
    """TTFT, ITL and queue time: p50, p95, p99 and n, with the last minute as a chart where there is room."""

    TITLE = "Latency"
    QUESTION = "how long?"
    NUMBERS = (
        *(f"latency.{key}_{part}" for key in ("ttft", "itl", "queue") for part in ("p50_ns", "p95_ns", "p99_ns", "n")),
        "latency.slo_attainment", "latency.slo_judged",
    )  # fmt: skip
    LEADS_TO = "Latency"
    HELP = f"""\
TTFT   time to first token: from the moment a request was due (its time in
       the queue counts) to its first token
ITL    inter-token latency: the gap between two tokens of a sequence
queue  from submission to the first step that computed a token of it
p50, p95, p99 over the last 60 s of run time, interpolated linearly; n
samples. Below {MIN_P99} samples there is no p95 or p99: it would only be the
maximum. A bar is the mean of one second, newest right; the highest fills
the height. Under VIRTUAL TIME all times are the simulated clock's.
SLO    share of the requests ended in that window that met the objectives
       given with --slo, of how many; the Latency screen says which missed"""

    def note(self, frame: Frame) -> Line:
        return [("last 60 s", "soft")]

    def attached_lines(self, frame: Frame, width: int, height: int) -> list[Line]:
        return latency_lines(frame, width, height)

    def lines(self, frame: Frame, width: int, height: int) -> list[Line]:
        state = frame.state
        rows = (("TTFT", state.ttft), ("ITL", state.itl), ("queue", state.queue))
        parts = [part for part in PARTS if part != "p95" or width >= 36]
        head = "".join(f"{part:>8}" for part in parts)
        out: list[Line] = [[(f"{'':<6}{head}{'n':>6}", "faint")]]
        out += [_row(name, summarise(samples), parts) for name, samples in rows]
        met = objectives_met(state)
        if met is not None:
            out.append(_objectives(met, width))
        elif (height - len(out)) % 2 and not frame.is_replay:  # in a row that no chart has
            out.append([("no objectives set (--slo ttft<2s)", "faint")])
        chart_rows = (height - len(out)) // 2
        if chart_rows >= 1:
            for name, samples in rows[:2]:
                out += _chart(name, samples, frame, width, chart_rows)
        return out[:height]


def _row(name: str, summary: Summary, parts: list[str]) -> Line:
    if not summary.n:
        return [(f"{name:<6}", "title"), (f"{'-':>8}", "text"), ("  no samples yet", "soft")]
    values = [getattr(summary, part) for part in parts]
    shown = [duration(values[0]), *(_high(summary, value) for value in values[1:])]
    numbers = "".join(f"{value:>8}" for value in shown)
    return [(f"{name:<6}", "title"), (f"{numbers}{short(summary.n):>6}", "text")]


def _objectives(met: Goodput, width: int) -> Line:
    """Objectives that do not fit are counted: no one is cut in two."""
    each = [clean(one.strip()) for slo in met.slo for one in slo.split(",")]
    if not met.judged:
        return [
            (f"{'SLO':<6}", "title"),
            ("nothing to judge yet  ", "soft"),
            (join_fitting(each, width - 28, ","), "soft"),
        ]
    style = "good" if met.met == met.judged else "warn"
    share: Line = [(percent(met.met, met.judged), style), (f" of {met.judged:,}  ", "text")]
    room = width - 6 - width_of(share)
    is_roomy = room >= 4 + cell_len(",".join(each))
    met_word: Line = [("met ", "soft")] if is_roomy else []
    return [(f"{'SLO':<6}", "title"), *met_word, *share, (join_fitting(each, room - 4 * is_roomy, ","), "soft")]


def _high(summary: Summary, value: float | None) -> str:
    return duration(value) if summary.n >= MIN_P99 else "-"


def _chart(name: str, samples: Samples, frame: Frame, width: int, height: int) -> list[Line]:
    label = f"{name:<5}"
    rows = bar_chart(means(samples.points, frame.state.t_ns, width - 5), width - 5, height)
    return [[(label if i == 0 else "     ", "faint"), (row, name.lower())] for i, row in enumerate(rows)]
