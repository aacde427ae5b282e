"""Parting: where did they first decide differently?"""

from __future__ import annotations

from kvtop.tui.frame import Frame
from kvtop.tui.panels.versus import NAMES, ComparePanel
from kvtop.tui.text import clean, clock, plural, whole
from kvtop.tui.widgets.lines import Line


class PartingPanel(ComparePanel):
    """The first decision that differs, in both runs' words; Enter takes all screens to that step."""

    TITLE = "First divergence"
    QUESTION = "where did they first decide differently?"
    HELP = """\
The decision logs of both are held against each other step by step. Until
the first difference they are one run: the same requests, blocks and times.
What differs later may be a consequence of it.
Enter takes both runs, and every screen, to that step (Esc leads back)."""

    def lines(self, frame: Frame, width: int, height: int) -> list[Line]:
        lanes = self.kvtop.lanes
        if lanes is None:
            return []
        partings = lanes.partings[self.other - 1]
        found = partings.found
        if found is None:
            return [[(f" the same so far: {plural(partings.num_same, 'step')}", "soft")]]
        first, other = found.told()
        where: Line = [(" step ", "soft"), (whole(found.step), "strong"), (f"  {clock(found.t_ns)}", "text")]
        where += [("  until then they are one run; Enter goes there", "soft")]
        return [
            where,
            [(f" {NAMES[0]} ", "key"), (clean(first), "text")],
            [(f" {NAMES[self.other]} ", "key"), (clean(other), "text")],
        ][:height]
