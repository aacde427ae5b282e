"""Queue: who waits, and for what?"""

from __future__ import annotations

from kvtop.state.model import RunState
from kvtop.state.windows import Waiting, running_and_waiting, waiting_by_reason
from kvtop.tui.frame import Frame
from kvtop.tui.glyphs import USED
from kvtop.tui.panels.base import TextPanel
from kvtop.tui.text import clean, fit, plural, seconds, short
from kvtop.tui.widgets.lines import Line, Span, width_of
from kvtop.tui.words import wait_reason

REASONS = {
    "no_blocks": "no blocks",
    "pinned": "blocks pinned",
    "no_hole": "no hole",
    "seats": "no seat",
    "budget": "token budget",
    "preempting": "preempting",
    "head_of_line": "behind head",
    "fault": "fault",
    "beams": "beams",
    "": "not considered",
}
"""Reasons to wait, short."""
_NAMED = 32  # cells from which the oldest of a reason has its name there


class QueuePanel(TextPanel):
    """How many wait for what, the oldest of each reason, what would help."""

    TITLE = "Queue"
    QUESTION = "why waiting?"
    NUMBERS = (
        "queue.running", "queue.waiting", "queue.oldest_ns", "latency.queue_p50_ns", "latency.queue_p95_ns",
        "latency.queue_p99_ns", "latency.queue_n", "run.preemptions", "run.recomputed_tokens",
    )  # fmt: skip
    LEADS_TO = "Requests"
    HELP = """\
Sequences that wait, by reason, with the oldest of each and its age.
no blocks    the head of the queue needs more blocks than there are: a
             larger pool, or shorter prompts, would let it in
no seat      max_num_seqs sequences run already: more seats would help
token budget the step's tokens were spent on others
behind head  the one at the head cannot be admitted, and nobody overtakes
preempting   a preemption happened in this step: nobody is admitted
Enter leads to the requests, where each says what it needs."""

    def lines(self, frame: Frame, width: int, height: int) -> list[Line]:
        state, rows = frame.state, waiting_by_reason(frame.state)
        out = [_counts(state, width)]
        room = max(1, height - 3)
        out += [_row(row, sum(r.count for r in rows), width) for row in rows[:room]]
        head = state.sequences.get(state.head_of_line)
        if head is not None:
            why: Line = [(wait_reason(head, state), "warn")]
            named: Line = [(fit(clean(head.seq_id), 12).rstrip(), "text"), (" ", ""), *why]
            out.append(named if width_of(named) <= width else why)
        return [*out[: height - 1], _preempted(state, width)]


def _counts(state: RunState, width: int) -> Line:
    (running, waiting), seats = running_and_waiting(state), state.manifest.get("max_num_seqs")
    of = f"/{seats:,}" if isinstance(seats, int) else ""
    line: Line = [("running ", "soft"), (f"{running:,}{of}", "good" if running else "text")]
    return [
        *line,
        ("  waiting ", "soft"),
        (f"{waiting:,}" if waiting or width < _NAMED else "nobody", "warn" if waiting else "text"),
    ]


def _row(row: Waiting, total: int, width: int) -> Line:
    name = REASONS.get(row.reason, clean(row.reason).replace("_", " "))
    left, right, age = (14, 5, 6) if width >= 36 else (13, 4, 5)
    line: Line = [(f"{name:<{left}}", "soft"), (f"{short(row.count):>{right}} ", "text")]
    tail: Line = [(f" {seconds(row.oldest_ns):>{age}} ", "text")]
    if width >= _NAMED:
        tail.append((fit(clean(row.oldest), 10), "soft"))
    room = max(0, width - width_of(line) - width_of(tail))
    length = max(1, row.count * room // total) if room else 0
    return [*line, (USED * length, "warn"), (" " * (room - length), ""), *tail]


def _preempted(state: RunState, width: int) -> Line:
    count, again = state.totals.get("preemptions", 0), state.totals.get("recomputed_tokens", 0)
    line: Line = [("preempted ", "soft"), (short(count), "warn" if count else "text")]
    if count:
        line += [("  recomputed ", "soft"), _tokens(again, width - width_of(line) - 13)]
    if state.num_rejected:
        line += [("  rejected ", "soft"), (short(state.num_rejected), "bad")]
    return line


def _tokens(count: int, room: int) -> Span:
    """The unit as long as there is room for it."""
    forms = (plural(count, "token"), f"{short(count)} tok", short(count))
    return next((form for form in forms if len(form) <= room), forms[-1]), "text"
