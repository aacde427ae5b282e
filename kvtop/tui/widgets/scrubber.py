"""The time line of the run: from the oldest moment that is kept to the live end, with what happened and the cursor."""

from __future__ import annotations

from textual import events
from textual.message import Message

from kvtop.state.timeline import Timeline
from kvtop.tui.frame import has_ended
from kvtop.tui.text import clean, duration, fit
from kvtop.tui.widgets.lines import Line, Lines, width_of

LETTERS = {
    "gap": ("G", "bad"),
    "server": ("S", "bad"),
    "stalled": ("S", "bad"),
    "preempt": ("P", "warn"),
    "mark": ("m", "focus"),
    "break": ("b", "focus"),
    "config": ("c", "good"),
    "miss": ("x", "soft"),
    "evict": ("e", "soft"),
    "end": ("E", "soft"),
}
"""In order of importance: of several in one cell the first is drawn."""
_RANK = {kind: rank for rank, kind in enumerate(LETTERS)}


class Scrubber(Lines):
    """One row. A click goes there."""

    class Clicked(Message):
        def __init__(self, t_ns: int) -> None:
            self.t_ns = t_ns
            super().__init__()

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._track = (0, 1)  # column where it begins, and its length
        self._span = (0, 1)  # ns at its two ends

    def show(self, timeline: Timeline) -> None:
        first, last = timeline.first_ns, max(timeline.live.t_ns, timeline.first_ns + 1)
        reach_ns = timeline.live.t_ns - first
        left: Line = [(f" -{duration(reach_ns)} " if reach_ns > 0 else " ", "faint")]
        right = self._right(timeline)
        length = self.size.width - width_of(left) - width_of(right)
        if length < 8:
            self.set_lines([right])
            return
        self._track, self._span = (width_of(left), length), (first, last)
        self.set_lines([[*left, *self._cells(timeline, length), *right]])

    def _right(self, timeline: Timeline) -> Line:
        live = timeline.live
        if timeline.at_live:
            return [(" end " if has_ended(live) else " live ", "good")]
        step, width = timeline.view.step, max(12, self.size.width // 2 - 16)
        here = [moment for moment in timeline.moments.all if moment.step == step and moment.kind != "mark"]
        what: Line = [(fit(f" {here[0].kind} {clean(here[0].text)}", width).rstrip(), "text")] if here else []
        ago: Line = [(f" {duration(live.t_ns - timeline.view.t_ns)} ago ", "badge")]
        pace = "" if timeline.speed is None else f" ▶ {timeline.speed:g}× "
        return [*what, *([(pace, "focus")] if pace else []), (" ", ""), *ago]

    def _cells(self, timeline: Timeline, length: int) -> Line:
        first, last = self._span
        found: dict[int, int] = {}  # cell -> rank of what is drawn there
        for moment in timeline.moments.all:
            if moment.t_ns >= first:
                cell = (moment.t_ns - first) * (length - 1) // (last - first)
                found[cell] = min(found.get(cell, 99), _RANK[moment.kind])
        cursor = max(0, timeline.view.t_ns - first) * (length - 1) // (last - first)
        looks = list(LETTERS.values())
        line: Line = []
        at = 0
        for cell in sorted({*found, min(cursor, length - 1)}):
            if not 0 <= cell < length:
                continue
            line.append(("─" * (cell - at), "rule"))
            line.append(("●", "focus") if cell == cursor else looks[found[cell]])
            at = cell + 1
        return [*line, ("─" * (length - at), "rule")]

    def on_click(self, event: events.Click) -> None:
        start, length = self._track
        first, last = self._span
        if start <= event.x < start + length:
            self.post_message(self.Clicked(first + (event.x - start) * (last - first) // max(1, length - 1)))
