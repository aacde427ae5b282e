"""Versus: did it help?"""

from __future__ import annotations

import math

from textual import on
from textual.message import Message

from kvtop.analysis.side_by_side import BETTER, COSTS, SAME, UNCLEAR, WORSE, conflicts, counts, settings
from kvtop.analysis.side_by_side import Line as Row
from kvtop.tui.frame import Frame, has_ended
from kvtop.tui.intervals import PairedLatencies
from kvtop.tui.lanes import Lane, Lanes
from kvtop.tui.panels.base import TextPanel
from kvtop.tui.text import clean, duration, fit, plural
from kvtop.tui.widgets.lines import Line

_STYLES = {BETTER: "good", WORSE: "bad", COSTS: "warn", UNCLEAR: "soft", SAME: "soft"}
NAMES = "ABCDEFGH"
_VERDICT = 2 + max(map(len, _STYLES))  # cells of the last column


class ComparePanel(TextPanel):
    """A panel that looks at the first run and at the one that is set against it."""

    other = 1  # place of the run compared with the first

    def pair(self) -> tuple[Lane, Lane] | None:
        lanes = self.kvtop.lanes
        return None if lanes is None else (lanes.lanes[0], lanes.lanes[self.other])


class VersusPanel(ComparePanel):
    """Not comparable first; then the settings that differ, latencies with paired intervals, and what is counted."""

    TITLE = "Compare"
    QUESTION = "did it help?"
    HELP = """\
Two runs of one workload at the same moment of their clock.
Latencies: percentiles over the requests that have ended in both, and
the relative change, with a 95 % interval from a moving-block bootstrap of
the same requests in pairs. It is about this pair of runs only; replicates
(kvtop bench --replicates) say more.
better, worse   the interval leaves out 0 (times), or the counts differ
unclear         the interval holds 0: no difference is shown
same            the counts are equal
too few         fewer pairs than a percentile needs (10; p99: 100)
costs           the setting takes more memory
Counts are of all that happened so far: no chance in them on this workload.
v  another run against the first   b  which run the other screens show
+ -  pace of virtual time   p  hold all runs, or let them go on"""

    class WorkedOut(Message):
        """New intervals are there."""

    def __init__(self) -> None:
        super().__init__()
        self.latencies = PairedLatencies(lambda: self.post_message(self.WorkedOut()))
        self._rows_ns = 0  # the moment last looked at

    @on(WorkedOut)
    def _on_worked_out(self) -> None:
        self.redraw()

    def note(self, frame: Frame) -> Line:
        lanes = self.kvtop.lanes
        if lanes is None:
            return []
        if frame.is_replay:
            return [("two recordings", "text")]
        pace = "as fast as it goes" if lanes.pace == math.inf else f"{lanes.pace:g} s a second"
        return [(" HELD ", "badge")] if lanes.is_held else [(pace, "text")]

    def lines(self, frame: Frame, width: int, height: int) -> list[Line]:
        pair = self.pair()
        lanes = self.kvtop.lanes
        if pair is None or lanes is None:
            return _how_to(frame, width)[:height]
        first, other = pair
        out = _who(lanes, self.other, width)
        a, b = first.timeline.view, other.timeline.view
        if a.manifest and b.manifest:
            out += [[(f" not comparable: {clean(text)}", "bad")] for text in conflicts(a.manifest, b.manifest)]
        out.append(_title(self.other, width))
        rows = [*settings(a.manifest, b.manifest), *self._latencies(pair), *counts(a, b)]
        return [*out, *(_row(row, width) for row in rows)][:height]

    def _latencies(self, pair: tuple[Lane, Lane]) -> list[Row]:
        """Those last worked out, all of one moment that is not to come; newer ones are asked for."""
        a, b = (lane.timeline.view for lane in pair)
        now_ns = max(a.t_ns, b.t_ns)
        if now_ns < self._rows_ns:
            self.latencies.forget()
        self._rows_ns = now_ns
        at_rest = not all(lane.timeline.at_live for lane in pair) or all(has_ended(state) for state in (a, b))
        wait_s = self.latencies.ask(
            (self.other, a.t_ns, b.t_ns),
            lambda: (pair[0].journal.until(a.t_ns), pair[1].journal.until(b.t_ns)),
            at_once=at_rest,
        )
        if wait_s is not None:  # there may be no further frame to do it with
            self.set_timer(wait_s + 0.01, self.redraw)
        return self.latencies.rows

    def set_against(self, other: int) -> None:
        """Compare another run with the first."""
        self.other = other
        self.latencies.forget()


def _how_to(frame: Frame, width: int) -> list[Line]:
    """What to do with a single run."""
    manifest = frame.state.manifest
    if frame.state.attached is not None:
        return [
            [(" This is a server that is looked at: there is nothing to compare it with.", "text")],
            [],
            [(" What it was asked, recorded with its KV events, under two policies:", "soft")],
            [("   kvtop attach URL --kv-events TCP --record DIR", "strong")],
            [("   kvtop trace convert DIR -o W.jsonl", "strong")],
            [("   kvtop compare -w W.jsonl -p fcfs -p lpm --executor sim --tui", "strong")],
        ]
    workload, policy = clean(manifest.get("workload") or "W"), clean(manifest.get("policy") or "fcfs")
    other = "lpm" if policy != "lpm" else "fcfs"
    return [
        [(" This is one run: there is nothing to compare it with.", "text")],
        [],
        [(" Two policies on one workload, side by side, in simulated time:", "soft")],
        [(f"   kvtop compare -w {workload} -p {policy} -p {other} --executor sim --tui", "strong")],
        [],
        [(" Two recorded runs (kvtop live --record DIR, kvtop bench -o DIR):", "soft")],
        [("   kvtop compare RUN RUN --tui", "strong")],
        [],
        [(" The same as tables, with replicates and intervals: without --tui.", "soft")],
    ]


def _who(lanes: Lanes, other: int, width: int) -> list[Line]:
    """Which letter is which run; the two compared stand out."""
    line: Line = []
    for place, lane in enumerate(lanes.lanes):
        style = "strong" if place in (0, other) else "soft"
        state = lane.timeline.view
        line += [(f" {NAMES[place]} ", "key"), (clean(lane.label), style)]
        line += [(f" {clean(state.status)}, step {state.step:,} ", "soft")]
    return [line]


def _columns(width: int) -> tuple[int, int, int, int]:
    """Widths of label, value, change and interval. Without room for the interval it is left out, not cut."""
    if width >= 100:
        return 22, 14, 10, 24
    return (16, 10, 9, 18) if width >= 1 + 16 + 2 * 10 + 9 + 18 + _VERDICT else (15, 10, 9, 0)


def _title(other: int, width: int) -> Line:
    label, value, change, interval = _columns(width)
    b = NAMES[other]
    heads = f" {'':<{label}}{'A':>{value}}{b:>{value}}{f'{b} - A':>{change}}"
    return [(fit(f"{heads}{'95 % interval' if interval else '':>{interval}}  verdict", width), "faint")]


def _row(row: Row, width: int) -> Line:
    label, value, change, interval = _columns(width)
    name = row.label if row.n is None or width < 100 else f"{row.label}  n {row.n:,}"
    line: Line = [(f" {fit(name, label)}", "soft")]
    line += [(fit(_value(v, row.unit), value, "right"), "text") for v in (row.first, row.other)]
    line.append((fit(_change(row), change, "right"), "text"))
    if interval:
        line.append((fit(_interval(row), interval, "right"), "soft"))
    return [*line, ("  ", ""), (row.verdict, _STYLES.get(row.verdict, "soft"))]


def _value(value: object, unit: str) -> str:
    if value is None:
        return "-"
    if isinstance(value, int | float) and not isinstance(value, bool):
        match unit:
            case "ns":
                return duration(value)
            case "ratio":
                return f"{100 * value:.1f} %"
            case "/s":
                return f"{value:,.0f}"
            case "count":
                return f"{value:,.0f}"
    return clean({True: "on", False: "off"}.get(value, value) if isinstance(value, bool) else value)


def _change(row: Row) -> str:
    if row.change is None:
        return ""
    if row.unit == "ratio":
        return f"{100 * row.change:+z.1f} pt"
    return f"{row.change:+z,.0f}" if row.unit == "count" else _percent(row.change)


def _percent(change: float) -> str:
    return f"{100 * change:+z.1f} %" if abs(change) < 9.995 else f"{change + 1:,.1f}×"


def _interval(row: Row) -> str:
    if row.interval is None:
        return "" if row.n is None else plural(row.n, "pair") if row.change is None else ""
    return f"{_percent(row.interval.low)} .. {_percent(row.interval.high)}".replace(" % ..", " ..")
