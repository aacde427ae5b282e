"""Tracks: when did they differ?"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvtop.state.model import History, RunState
from kvtop.tui.frame import Frame
from kvtop.tui.glyphs import bar_chart
from kvtop.tui.panels.versus import NAMES, ComparePanel
from kvtop.tui.stats import levels, means, rates
from kvtop.tui.text import duration, fit, short
from kvtop.tui.widgets.lines import Line

_LABEL = 11


@dataclass(frozen=True, slots=True)
class Track:
    """One quantity, a value a second."""

    name: str
    style: str
    values: Callable[[RunState, int, int], list[float]]  # state, now, how many
    top: Callable[[float], str] = short


def _level(column: Callable[[History], deque[int]]) -> Callable[[RunState, int, int], list[float]]:
    return lambda state, now_ns, count: levels(state.history, column(state.history), now_ns, count)


def _hits(state: RunState, now_ns: int, count: int) -> list[float]:
    """Share of the prompt tokens looked up in each second that were found."""
    points = state.lookups.points
    asked = means(deque((t, prompt, 1) for t, prompt, *_ in points), now_ns, count)
    found = means(deque((t, hit, 1) for t, _, hit, *_ in points), now_ns, count)
    return [100 * f / a if a else 0.0 for a, f in zip(asked, found, strict=True)]


TRACKS: tuple[Track, ...] = (
    Track("used blocks", "usedchart", _level(lambda h: h.used)),
    Track("waiting", "warn", _level(lambda h: h.waiting)),
    Track("TTFT", "ttft", lambda s, now, n: means(s.ttft.points, now, n), duration),
    Track("hit %", "idle", _hits),
    Track("evictions", "soft", lambda s, now, n: rates(s.history, s.history.evictions, now, n)),
    Track("ITL", "itl", lambda s, now, n: means(s.itl.points, now, n), duration),
)


class TracksPanel(ComparePanel):
    """Pool, queue, latency and hits of the two runs under each other, on one axis and one scale."""

    TITLE = "On one clock"
    QUESTION = "when did they differ?"
    HELP = """\
A column is a second of virtual time, newest right, the same second in both.
Both runs of a row have one scale: its largest value stands at the left.
used blocks, waiting   at the end of the second
TTFT, ITL              mean of the second (of the last 60)
hit %                  prompt tokens found / looked up in it (of the last 60)
evictions              in that second"""

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


def _track(
    track: Track, states: Sequence[RunState], names: Sequence[str], now_ns: int, width: int, rows: int
) -> list[Line]:
    columns = max(1, width - _LABEL - 11)
    values = [track.values(state, now_ns, columns) for state in states]
    top = max(max(own) for own in values)
    out: list[Line] = []
    for place, (name, own) in enumerate(zip(names, values, strict=True)):
        drawn = bar_chart(own, columns, rows, top or None)
        for row, cells in enumerate(drawn):
            label = fit(track.name, _LABEL) if place == row == 0 else " " * _LABEL
            scale = fit(track.top(top), 7, "right") if place == row == 0 and top else " " * 7
            mark = f" {name} " if row == 0 else "   "
            out.append([(f"{label}{scale}", "soft"), (mark, "key"), (cells, track.style)])
    return out
