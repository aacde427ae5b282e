"""Life of a request: where did its time go?"""

from __future__ import annotations

import time
from itertools import zip_longest

from kvtop.state.model import RunState
from kvtop.state.request_logs import RequestLog
from kvtop.tui.frame import Frame
from kvtop.tui.glyphs import bar_chart
from kvtop.tui.panels.base import TextPanel
from kvtop.tui.text import clean, duration, fit, percent
from kvtop.tui.widgets.lines import Line, width_of
from kvtop.why.live import facts_now
from kvtop.why.strip import Phase, Strip, strip_of

_SHARE = 10  # drawing a life takes at most one part in so many of the time
_LABEL = 12
_STYLES = {"late": "soft", "queue": "warn", "prefill": "prefill", "decode": "good", "preempted": "bad", "redo": "many"}
_BAR = "▪"


class LifePanel(TextPanel):
    """The selected request as a strip: what it did when, the blocks it held and its gaps underneath."""

    TITLE = "Life of a request"
    QUESTION = "where did its time go?"
    PER_REQUEST = True
    HELP = """\
late      it was due while a step ran, and handed over when that had ended
queue     it waited: behind whom, or for what
prefill   its prompt was computed, chunk by chunk, as far as not cached
decode    a token a step
preempted it lost its blocks: for whom, and what was thrown away
redo      positions are computed that had been computed before
blocks    that hold what it has computed, and gaps between its tokens, as
          they were at that moment; the highest fills the height
The strip is drawn from the very lines that w tells."""

    def __init__(self) -> None:
        super().__init__()
        self._strip: Strip | None = None
        self._told: tuple[object, ...] = ()
        self._next_s = 0.0

    def note(self, frame: Frame) -> Line:
        strip = self._strip
        if strip is None or strip.end_ns <= strip.start_ns:
            return []
        total = strip.end_ns - strip.start_ns
        line: Line = [(f"{duration(total)}", "text")]
        if strip.lost_ns:
            line += [(f"  {percent(strip.lost_ns, total)} lost to preemption", "warn")]
        return line

    def show_frame(self, frame: Frame) -> None:
        super().show_frame(frame)
        self._show_title()  # how long it is, is known now

    def lines(self, frame: Frame, width: int, height: int) -> list[Line]:
        name = self._update(frame.state)
        strip = self._strip
        if not name or strip is None:
            return [[(" select a request", "soft")]]
        if not strip.phases:
            return [[(f" {clean(name)}: nothing of it is known", "soft")]]
        return _draw(strip, frame.state, name, width, height)

    def _update(self, state: RunState) -> str:
        """Work the strip out anew if something has changed; the name of its request."""
        from kvtop.tui.screens.base import PanelScreen

        told = self.screen.told() if isinstance(self.screen, PanelScreen) else None
        log = state.logs.find(told[0], ended=told[1]) if told is not None else None
        if told is None or log is None:
            self._strip, self._told = None, ()
            return ""
        now = (told, id(state), *_age(state, log))
        late = bool(self._told) and self._told[0] == told and time.monotonic() < self._next_s
        if now != self._told and not late:
            began_s = time.monotonic()
            self._strip, self._told = strip_of(facts_now(state, log, told[0])), now
            ended_s = time.monotonic()
            self._next_s = ended_s + _SHARE * (ended_s - began_s)
        if self._strip is not None and not told[1] and told[0] in state.sequences:  # until now, without a step, too
            self._strip.end_ns = max(self._strip.end_ns, state.t_ns)
        return told[0]


def _age(state: RunState, log: RequestLog) -> tuple[object, ...]:
    return (log.request_id, log.num_changes, None if log.end is not None else state.step)


def _draw(strip: Strip, state: RunState, name: str, width: int, height: int) -> list[Line]:
    """Phases from the top (the last ones, where there is no room for all), blocks and ITL below."""
    track = width - _LABEL - 2
    phases = strip.phases
    below = _underneath(strip, state, track, max(1, (height - 1 - len(phases)) // 2)) if height >= 5 else []
    room = max(1, height - len(below) - 1)
    out: list[Line] = [_axis(strip, name, width)]
    if len(phases) > room:
        hidden = len(phases) - room + 1
        out.append([(f" {hidden:,} earlier stretches (w tells them all)", "faint")])
        phases = phases[-(room - 1) :] if room > 1 else []
    out += [_row(phase, strip, track, width) for phase in phases]
    return [*out, *below][:height]


def _axis(strip: Strip, name: str, width: int) -> Line:
    total = strip.end_ns - strip.start_ns
    left = f" {fit(clean(name), _LABEL - 1)}"
    right = duration(total)
    middle = max(0, width - len(left) - 2 - len(right) - 2)
    return [(left, "strong"), (" 0", "faint"), ("─" * middle, "rule"), (f" {right}", "faint")]


def _row(phase: Phase, strip: Strip, track: int, width: int) -> Line:
    """A bar where it was, its length and a few words behind it, or before it where there is no room behind."""
    total = max(1, strip.end_ns - strip.start_ns)
    start = min(track - 1, (phase.start_ns - strip.start_ns) * track // total)
    length = max(1, min(track - start, round(phase.ns * track / total)))
    glyph = "X" if phase.kind == "preempted" else _BAR
    said = clean(phase.text)
    if phase.kind == "preempted":
        words = f"step {phase.step:,}: {said}" if phase.step is not None else said
    else:
        words = f"{duration(phase.ns)}  {said}" if said else duration(phase.ns)
    style = _STYLES.get(phase.kind, "text")
    label: Line = [(f" {phase.kind:<{_LABEL}}", style if phase.kind == "preempted" else "soft")]
    room_after, room_before = track - start - length - 1, start - 1
    bar = (glyph * length, style)
    if room_after >= len(words) or (room_after >= room_before and room_after >= 12 and length <= len(words) + 8):
        return [*label, (" " * start, ""), bar, (" ", ""), (fit(words, max(0, room_after)).rstrip(), "soft")]
    if max(room_after, room_before) < len(words) and length > len(words) + 8:  # in the bar
        before = (length - len(words)) // 2 - 1
        after = length - before - len(words) - 2
        return [*label, (" " * start, ""), (glyph * before, style), (f" {words} ", "soft"), (glyph * after, style)]
    told = fit(words, room_before).rstrip()
    line: Line = [*label, (" " * (start - len(told) - 1), ""), (told, "soft"), (" ", ""), bar]
    return line if width_of(line) <= width else [*label, (" " * start, ""), bar]


def _underneath(strip: Strip, state: RunState, track: int, rows: int) -> list[Line]:
    size = state.pool.block_size if state.pool is not None else 0
    levels = _levels(strip, track)
    out: list[Line] = []
    if size and any(levels):
        blocks = [-(-level // size) if level else 0 for level in levels]
        out += _chart("blocks", blocks, f"{max(blocks):,}", track, rows, "usedchart")
    gaps = _gaps(strip, track)
    if any(gaps):
        out += _chart("ITL", gaps, duration(max(gaps)), track, rows, "itl")
    return out


def _chart(name: str, values: list[int], top: str, track: int, rows: int, style: str) -> list[Line]:
    """``top``: the largest value; what it is stands beside it where there is a row for that."""
    labels = [f" {name} {top}"] if rows == 1 else [f" {name}", f" top {top}"]
    drawn = bar_chart([float(value) for value in values], track, rows)
    return [[(fit(label, _LABEL + 1), "soft"), (row, style)] for label, row in zip_longest(labels, drawn, fillvalue="")]


def _levels(strip: Strip, track: int) -> list[int]:
    """Positions held at the end of each of ``track`` parts of its life."""
    total, out, place, level = max(1, strip.end_ns - strip.start_ns), [], 0, 0
    for i in range(track):
        until = strip.start_ns + (i + 1) * total // track
        while place < len(strip.tokens) and strip.tokens[place][0] <= until:
            level = strip.tokens[place][1]
            place += 1
        out.append(level)
    return out


def _gaps(strip: Strip, track: int) -> list[int]:
    """The longest gap that ended in each part."""
    total, out = max(1, strip.end_ns - strip.start_ns), [0] * track
    for t_ns, gap in strip.gaps:
        place = min(track - 1, (t_ns - strip.start_ns) * track // total)
        if place >= 0:
            out[place] = max(out[place], gap)
    return out
