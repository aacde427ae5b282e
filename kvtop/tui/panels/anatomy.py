"""Anatomy: where did the time of the slow ones go?"""

from __future__ import annotations

from kvtop.state.slow import MIN_SLOW, PARTS, SLOW, Analysis, Anatomy
from kvtop.tui.frame import Frame
from kvtop.tui.panels.distribution import AnalysisPanel
from kvtop.tui.text import duration, percent, short
from kvtop.tui.widgets.lines import Line

WORDS = {
    "late": "handed over late",
    "capacity": "queue: blocks",
    "seats": "queue: seats",
    "budget": "queue: budget",
    "unsaid": "queue: unsaid",
    "prefill": "prefill",
    "preempted": "preempted",
    "beside": "with prefill",
    "decode": "decode",
}
_STYLES = {
    "capacity": "warn",
    "seats": "warn",
    "budget": "warn",
    "preempted": "bad",
    "beside": "prefill",
    "decode": "decode",
}


class AnatomyPanel(AnalysisPanel):
    """Mean time by part over those at or above p95."""

    TITLE = "The slow ones"
    QUESTION = "where did their time go?"
    HELP = f"""\
The slow set: values at or above p{SLOW} of the window; a part's time is its
mean over that set, so that the parts add up to the mean of the set.
handed over late  due while a step ran: submitted when that had ended
queue: blocks     the head of the queue was refused for want of blocks
                  (no_blocks, pinned, no_hole), or nobody was admitted as
                  somebody had just been preempted: capacity
queue: seats      all seats were taken
queue: budget     the step's tokens were spent
queue: unsaid     no reason is on record for that time
prefill           its first step until its first token
preempted         without blocks, until it was admitted again
with prefill      decoding, in steps that also computed prompt tokens:
                  interference. All of that time, not only what it added
decode            decoding, in all other steps
A refusal lasts until the next step is planned; those behind the head wait
for its reason. ITL: a gap has one cause: preempted when it holds a
preemption, with prefill when the step that ended it computed prompt tokens
too. Below {MIN_SLOW} values there is no slow set."""

    def note(self, frame: Frame) -> Line:
        found = self.analysis.anatomy if self.analysis is not None else None
        if found is None:
            return []
        return [(f"p{SLOW} {duration(found.limit_ns)}  n {short(found.n)}", "text")]

    def lines_of(self, found: Analysis, frame: Frame, width: int, height: int) -> list[Line]:
        anatomy = found.anatomy
        if anatomy is None:
            return [[(f" fewer than {MIN_SLOW} values: no slow set", "soft")]]
        parts = [part for part in PARTS if anatomy.parts.get(part)]
        out = [_part(part, anatomy, width) for part in parts]
        if anatomy.n:
            mean: Line = [(f" {'mean':<17}", "soft"), (f"{duration(anatomy.mean_ns):>8}", "strong")]
            out.append(mean)
        if anatomy.untold:
            out.append([(f" {anatomy.untold:,} more began before the steps that are kept", "soft")])
        return out[:height]


def _part(part: str, anatomy: Anatomy, width: int) -> Line:
    ns = anatomy.parts[part]
    share = ns / anatomy.mean_ns if anatomy.mean_ns else 0.0
    told = percent(share, 1)
    if anatomy.counts:
        told = f"{short(anatomy.counts[part])} gap{'s' * (anatomy.counts[part] != 1)}"
    room = width - 39
    style = _STYLES.get(part, "text")
    bar = "▪" * max(1, round(share * room)) if room >= 6 else ""
    return [
        (f" {WORDS[part]:<17}", "soft"), (f"{duration(ns):>8} ", "text"), (f"{told:>10} ", "soft"), (bar, style),
    ]  # fmt: skip
