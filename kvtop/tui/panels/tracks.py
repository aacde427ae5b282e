"""Tracks: when did they differ?"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvtop.state.model import History, RunState
from kvtop.state.samples import Points
from kvtop.tui.frame import Frame
from kvtop.tui.glyphs import bar_chart
from kvtop.tui.panels.versus import NAMES, ComparePanel
from kvtop.tui.stats import levels, means, rates
from kvtop.tui.text import duration, fit, short
from kvtop.tui.widgets.lines import Line

_LABEL = 12


Values = Callable[[RunState, int, int, int], list[float]]
"""Of a state until now, so many, each of so many ns."""

_SLOTS_NS = tuple(
    int(seconds * 1e9) for seconds in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600)
)


@dataclass(frozen=True, slots=True)
class Track:
    """One quantity, a value a column. ``is_count``: of every step, so that 0 is a count and no lack of values."""

    name: str
    style: str
    values: Values
    top: Callable[[float], str] = short
    is_count: bool = False


def _level(column: Callable[[History], array[int]]) -> Values:
    return lambda state, now_ns, count, slot_ns: levels(state.history, column(state.history), now_ns, count, slot_ns)


def _hits(state: RunState, now_ns: int, count: int, slot_ns: int) -> list[float]:
    """Percentage of the prompt tokens looked up in each column that were found."""
    points = state.lookups.points
    asked = means(Points((t, prompt, 1) for t, prompt, *_ in points), now_ns, count, slot_ns)
    found = means(Points((t, hit, 1) for t, _, hit, *_ in points), now_ns, count, slot_ns)
    return [100 * f / a if a else 0.0 for a, f in zip(asked, found, strict=True)]


TRACKS: tuple[Track, ...] = (
    Track("used blocks", "usedchart", _level(lambda h: h.used), is_count=True),
    Track("waiting", "warn", _level(lambda h: h.waiting), is_count=True),
    Track("TTFT", "ttft", lambda s, *columns: means(s.ttft.points, *columns), duration),
    Track("hit %", "idle", _hits),
    Track("evictions", "soft", lambda s, *columns: rates(s.history, s.history.evictions, *columns), is_count=True),
    Track("ITL", "itl", lambda s, *columns: means(s.itl.points, *columns), duration),
)


class TracksPanel(ComparePanel):
    """Pool, queue, latency and hits of the two runs under each other, on one axis and one scale."""

    TITLE = "On one clock"
    QUESTION = "when did they differ?"
    HELP = """\
A column is the same stretch of time in both runs, newest right; the title
says how long. Both runs of a row have one scale: its largest value stands
at the left.
used blocks, waiting   at the end of the column
TTFT, ITL              mean of it; of the last 60 s
hit %                  prompt tokens found / looked up; of the last 60 s
evictions              in it"""

    def note(self, frame: Frame) -> Line:
        pair = self.pair()
        if pair is None:
            return []
        now_ns = max(lane.timeline.view.t_ns for lane in pair)
        return [(f"a column is {_slot(now_ns, _columns(self.size.width)) / 1e9:g} s", "text")]

    def lines(self, frame: Frame, width: int, height: int) -> list[Line]:
        pair = self.pair()
        if pair is None:
            return []
        states = [lane.timeline.view for lane in pair]
        now_ns = max(state.t_ns for state in states)
        out: list[Line] = []
        rows = 2 if height >= 4 * len(TRACKS) else 1
        for track in TRACKS[: max(1, height // (2 * rows))]:
            out += _track(track, states, (NAMES[0], NAMES[self.other]), now_ns, width, rows)
        return out[:height]


def _columns(width: int) -> int:
    return max(1, width - _LABEL - 11)


def _slot(now_ns: int, columns: int) -> int:
    """The whole run so far in the columns, as far as that goes."""
    return next((slot for slot in _SLOTS_NS if slot * columns >= now_ns), _SLOTS_NS[-1])


def _track(
    track: Track, states: Sequence[RunState], names: Sequence[str], now_ns: int, width: int, rows: int
) -> list[Line]:
    columns = _columns(width)
    values = [track.values(state, now_ns, columns, _slot(now_ns, columns)) for state in states]
    top = max(max(own) for own in values)
    told = track.top(top) if top or (track.is_count and any(state.history.t_ns for state in states)) else ""
    out: list[Line] = []
    for place, (name, own) in enumerate(zip(names, values, strict=True)):
        drawn = bar_chart(own, columns, rows, top or None)
        for row, cells in enumerate(drawn):
            label = fit(f" {track.name}", _LABEL) if place == row == 0 else " " * _LABEL
            scale = fit(told if place == row == 0 else "", 7, "right")
            mark = f" {name} " if row == 0 else "   "
            out.append([(f"{label}{scale}", "soft"), (mark, "key"), (cells, track.style)])
    return out
