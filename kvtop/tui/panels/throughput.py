"""Throughput: how fast?"""

from __future__ import annotations

from kvtop.state.windows import RATE_WINDOW_NS, recent_rate
from kvtop.tui.frame import Frame
from kvtop.tui.glyphs import bar_chart
from kvtop.tui.panels.base import TextPanel
from kvtop.tui.stats import rates
from kvtop.tui.text import duration, plural, short
from kvtop.tui.widgets.lines import Line, width_of


class ThroughputPanel(TextPanel):
    """Tokens and requests a second over the recent window, with the last seconds as bars; the last step."""

    TITLE = "Throughput"
    QUESTION = "how fast?"
    NUMBERS = (
        "throughput.prefill_tokens_s", "throughput.decode_tokens_s", "throughput.requests_s", "throughput.step_ns",
        "run.finished",
    )  # fmt: skip
    HELP = f"""\
prefill   tokens computed a second below the last known position of their
          sequence: prompts, and what preemptions made it compute again
decode    tokens computed a second at the last position: each is a token
requests  sequences that ended, a second
Means over the last {RATE_WINDOW_NS // 1_000_000_000} s of run time (the whole run while it is younger).
Tokens taken from the prefix cache are not computed and do not count.
A bar is one second, newest right. step: how long the last one took, and
the tokens it computed of the step's budget."""

    def note(self, frame: Frame) -> Line:
        return [(f"last {RATE_WINDOW_NS // 1_000_000_000} s", "soft")]

    def lines(self, frame: Frame, width: int, height: int) -> list[Line]:
        history = frame.state.history
        lanes = (
            ("prefill", history.prefill_tokens, "tok/s", "prefill"),
            ("decode", history.decode_tokens, "tok/s", "decode"),
            ("requests", history.finished, "/s", "usedchart"),
        )
        tall = max(1, (height - 1) // 3)
        out: list[Line] = []
        for name, column, unit, style in lanes:
            rate = recent_rate(history, column, frame.state.t_ns)
            figure = "-" if rate is None else short(rate) if rate >= 10 or not rate else f"{rate:.1f}"
            head: Line = [(f"{name:<9}", "title"), (f"{figure:>5} ", "text"), (f"{unit:<6}", "soft")]
            room = max(0, width - 21)
            rows = bar_chart(rates(history, column, frame.state.t_ns, room), room, tall)
            out += [[*(head if i == 0 else [(" " * 21, "")]), (row, style)] for i, row in enumerate(rows)]
        return [*out, self._step(frame, width)][:height]

    def _step(self, frame: Frame, width: int) -> Line:
        step, budget = frame.state.last_step, frame.state.manifest.get("max_batched_tokens")
        if step is None:
            return []
        of = f"/{budget:,}" if isinstance(budget, int) else ""
        line: Line = [("step     ", "title"), (f"{duration(step.t_done_ns - step.t_start_ns):>7}", "text")]
        line.append((f"  {step.prefill_tokens + step.decode_tokens:,}{of} tok", "soft"))
        sequences = f", {plural(step.num_running, 'seq')}"
        return [*line, (sequences, "soft")] if width_of(line) + len(sequences) <= width else line
