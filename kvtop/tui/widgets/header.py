"""Two lines at the top: what runs, and how far it is."""

from __future__ import annotations

import re

from rich.cells import cell_len

from kvtop.state.model import RunState
from kvtop.state.session_status import CONNECTING, NO_ANSWER, STALE, is_simulated, status_of
from kvtop.state.windows import quiet_ns
from kvtop.tui.attached import badge
from kvtop.tui.frame import Frame, has_ended, is_virtual
from kvtop.tui.text import clean, clock, duration, fit, whole
from kvtop.tui.widgets.lines import Line, Lines, cut, spread, width_of
from kvtop.tui.words import STATUS

_SIZE = re.compile(r"[-_ :]*\d+(?:\.\d+)?(?:x\d+)?[bBmM]")  # 135M, 7B, 0.5B, 8x7B
_MARKS = {
    "starting": ("…", "warn"),
    "running": ("▶", "good"),
    "paused": ("■", "warn"),
    "complete": ("✓", "good"),
    "interrupted": ("■", "warn"),
    "failed": ("×", "bad"),
    CONNECTING: ("…", "warn"),
    NO_ANSWER: ("×", "bad"),
    STALE: ("!", "warn"),
}


def status_span(state: RunState) -> Line:
    """Of attached servers also whether they answer."""
    status = status_of(state)
    mark, style = _MARKS.get(status, ("·", "soft"))
    return [(f"{mark} {STATUS.get(status, clean(status))}", style)]


def progress_bar(share: float, width: int) -> Line:
    full = max(0, min(width, round(share * width)))
    return [("▪" * full, "good"), ("░" * (width - full), "faint"), (f" {share * 100:3.0f} %", "text")]


def _facts(state: RunState, keys: tuple[str, ...]) -> list[str]:
    return [clean(state.manifest[key]) for key in keys if state.manifest.get(key) not in (None, "", "none")]


def model_in(name: str, room: int) -> str:
    """``name`` of a model in ``room`` cells: without whose it is, then without words from its end, the size last.

    What is left out is told by an ellipsis. Where not even a word and the size fit, the size alone; else nothing.
    """
    if cell_len(name) <= room:
        return name
    words = re.findall(r"[-_ :]*[^-_ :]+", name.rpartition("/")[2])
    size = next((i for i, word in enumerate(words) if _SIZE.fullmatch(word)), None)
    if size is None:  # nothing in it can be misread
        return fit(name.rpartition("/")[2], room).rstrip()
    fewer = range(len(words) - 1, 0, -1)  # words; the size stays wherever it stands
    forms = [words, *([*words[:last], *([words[size]] if size >= last else [])] for last in fewer)]
    texts = ["".join(form) + ("" if form is words else "…") for form in forms]
    texts.append("…" + words[size].lstrip("-_ :"))
    return next((text for text in texts if cell_len(text) <= room), "")


class HeaderBar(Lines):
    """Model, device, policy, clock, workload; status, step, elapsed run time; or what is being loaded."""

    def update_frame(self, frame: Frame, place: str) -> None:
        """``place``: key and name of the screen."""
        width = self.size.width
        self.set_lines([self._first(frame, place, width), self._second(frame, width)])

    def _first(self, frame: Frame, place: str, width: int) -> Line:
        state = frame.state
        right = [*_where(frame), *status_span(state)]
        if state.manifest:
            right += [("   step ", "soft"), (whole(state.step), "strong"), ("   ", ""), (clock(state.t_ns), "text")]
        left: Line = [(" kvtop ", "brand"), (place, "title")]
        room = max(0, width - width_of(right) - 3)
        model = _facts(state, ("model",))
        if state.manifest:
            name = model_in(model[0], room - width_of(left) - 2) if model else ""
            left += [("  ", ""), (name, "strong") if model else ("no model", "soft")]
        for fact in _facts(state, ("device", "dtype")):
            more: Line = [(" · ", "faint"), (fact, "text")]
            left += more if width_of(left) + width_of(more) <= room else []
        return spread(cut(left, room), [*right, (" ", "")], width)

    def _second(self, frame: Frame, width: int) -> Line:
        state = frame.state
        if not has_ended(state) and state.progress is not None:
            bar = progress_bar(state.progress, max(8, min(40, width // 4)))
            text = clean(state.notice)
            return [(" ", ""), *bar, ("  ", ""), *cut([(text, "text")], max(0, width - width_of(bar) - 4))]
        badges = _badges(state)
        room = width - width_of(badges) - 1
        facts: Line = [(" ", "")]
        for key in ("policy", "workload", "executor"):
            for fact in _facts(state, (key,)):
                facts += [(f"{key} ", "soft"), (fact, "text"), ("  ", "")]
        message, urgent = self._message(frame)
        if width_of(facts) + width_of(message) <= room or not state.manifest:
            facts += message
        elif urgent:
            facts = [(" ", ""), *message]
        return spread(cut(facts, room), badges, width)

    def _message(self, frame: Frame) -> tuple[Line, bool]:
        """The most pressing line, and whether it may take the place of what runs here."""
        state = frame.state
        if state.status == "failed":
            return [(clean(state.error or "the engine's process failed"), "bad")], True
        if state.stalled:
            return [(clean(state.stalled), "warn")], True
        if quiet := _quiet(state):
            return quiet, True
        if state.events_dropped:
            return [(f"{state.events_dropped:,} events dropped: this screen was too slow", "warn")], True
        if state.paused_by:
            return [(f"stopped at {clean(state.paused_by)}", "warn")], True
        if state.notice:
            style = {"warning": "warn", "error": "bad"}.get(state.notice_level, "soft")
            return [(clean(state.notice), style)], style != "soft"
        return ([(f"stderr: {clean(frame.native)}", "soft")] if frame.native else []), False


def _quiet(state: RunState) -> Line:
    """What the screen shows is as old as that."""
    since_ns = quiet_ns(state)
    if since_ns is None:
        return []
    return [(f"no step for {duration(since_ns)}: the engine computes, or it hangs", "warn")]


def _where(frame: Frame) -> Line:
    """Whether this is now."""
    replay: Line = [(" REPLAY ", "badge"), ("  ", "")] if frame.is_replay else []
    if frame.share_read < 1.0:  # what lies behind that is not on the time line yet
        replay += [(f"reading {int(100 * frame.share_read)} %", "warn"), ("  ", "")]
    if frame.timeline.at_live:
        return replay
    return [*replay, (" PLAYING " if frame.timeline.speed is not None else " FROZEN ", "badge"), ("  ", "")]


def _badges(state: RunState) -> Line:
    """What kind of time this is."""
    if state.attached is not None:
        return badge(state)
    badges: Line = [(" SIMULATED ", "badge"), (" ", "")] if is_simulated(state) else []
    if is_virtual(state):
        return [*badges, (" VIRTUAL TIME ", "badge"), (" ", "")]
    return [*badges, ("real time ", "soft")] if state.manifest.get("clock") == "real" else badges
