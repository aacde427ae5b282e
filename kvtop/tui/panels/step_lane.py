"""Steps: what did each step of the engine do?"""

from __future__ import annotations

from kvtop.state.windows import step_columns
from kvtop.tui.attached import look_lanes
from kvtop.tui.frame import Frame
from kvtop.tui.glyphs import bar_chart
from kvtop.tui.panels.base import TextPanel
from kvtop.tui.text import duration
from kvtop.tui.widgets.lines import Line

_LEGEND = "d decodes  p prompts  b both  E evictions  X preemption   "
_WIDE = len(_LEGEND) + 60  # cells: what the letters mean stands in the title, beside its question


class StepLanePanel(TextPanel):
    """A column a step, newest right: tokens, what they were, evictions and preemptions, used blocks."""

    TITLE = "Steps"
    QUESTION = "what did each one do?"
    NUMBERS = ("throughput.step_ns", "pool.used_blocks")
    HELP = """\
A column is one step of the engine, the newest at the right.
tok   tokens computed; the highest fills the row
kind  d decodes only   p prompt tokens only   b both   . nothing
what  X somebody was preempted   E blocks were evicted
time  how long the step took; used  blocks in use after it"""

    def note(self, frame: Frame) -> Line:
        taken = frame.state.history.step_ns
        if not taken:
            return []
        legend = _LEGEND if self.size.width >= _WIDE else ""
        return [(f"{legend}last step ", "soft"), (duration(taken[-1]), "text")]

    def attached_lines(self, frame: Frame, width: int, height: int) -> list[Line]:
        return look_lanes(frame, width, height)

    def lines(self, frame: Frame, width: int, height: int) -> list[Line]:
        room = max(1, width - 5)
        rows = list(step_columns(frame.state.history, room))
        pool = frame.state.pool
        if not rows or pool is None:
            return [[("no step yet", "soft")]]
        tokens = bar_chart([float(row[0] + row[1]) for row in rows], room)[0]
        kinds = "".join(_kind(row[0], row[1]) for row in rows).rjust(room)
        what = "".join("X" if row[3] else "E" if row[2] else " " for row in rows).rjust(room)
        taken = bar_chart([float(row[5]) for row in rows], room)[0]
        used = bar_chart([float(row[4]) for row in rows], room, top=pool.num_blocks)[0]
        lanes: list[Line] = [
            [("tok  ", "soft"), (tokens, "prefill")],
            [("kind ", "soft"), (kinds, "soft")],
            [("what ", "soft"), (what, "warn")],
            [("used ", "soft"), (used, "usedchart")],
            [("time ", "soft"), (taken, "itl")],
        ]
        return lanes[:height]


def _kind(prefill: int, decode: int) -> str:
    return "b" if prefill and decode else "p" if prefill else "d" if decode else "."
