"""Two lines at the top: what runs, and how far it is."""

from __future__ import annotations

from kvtop.state.model import RunState
from kvtop.tui.frame import Frame, has_ended, is_simulated, is_virtual
from kvtop.tui.text import clean, clock, whole
from kvtop.tui.widgets.lines import Line, Lines, cut, spread, width_of
from kvtop.tui.words import STATUS

_MARKS = {
    "starting": ("…", "warn"),
    "running": ("▶", "good"),
    "paused": ("■", "warn"),
    "complete": ("✓", "good"),
    "interrupted": ("■", "warn"),
    "failed": ("×", "bad"),
}


def status_span(state: RunState) -> Line:
    mark, style = _MARKS.get(state.status, ("·", "soft"))
    return [(f"{mark} {STATUS.get(state.status, clean(state.status))}", style)]


def progress_bar(share: float, width: int) -> Line:
    full = max(0, min(width, round(share * width)))
    return [("▪" * full, "good"), ("░" * (width - full), "faint"), (f" {share * 100:3.0f} %", "text")]


def _facts(state: RunState, keys: tuple[str, ...]) -> list[str]:
    return [clean(state.manifest[key]) for key in keys if state.manifest.get(key) not in (None, "")]


class HeaderBar(Lines):
    """Model, device, policy, clock, workload; status, step, elapsed run time; or what is being loaded."""

    def update_frame(self, frame: Frame) -> None:
        state, width = frame.state, self.size.width
        self.set_lines([self._first(state, width), self._second(frame, width)])

    def _first(self, state: RunState, width: int) -> Line:
        right = status_span(state)
        if state.manifest:
            right += [("   step ", "soft"), (whole(state.step), "strong"), ("   ", ""), (clock(state.t_ns), "text")]
        left: Line = [(" kvtop", "brand")]
        model = _facts(state, ("model",))
        if model:
            left += [("  ", ""), (model[0], "strong")]
        room = max(0, width - width_of(right) - 3)
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
        left: Line = [(" ", "")]
        for key, label in (("policy", "policy "), ("workload", "workload ")):
            for fact in _facts(state, (key,)):
                left += [(label, "soft"), (fact, "text"), ("  ", "")]
        for fact in _facts(state, ("executor",)):
            left += [("executor ", "soft"), (fact, "text"), ("  ", "")]
        badges: Line = []
        if is_simulated(state):
            badges += [(" SIMULATED ", "badge"), (" ", "")]
        if is_virtual(state):
            badges += [(" VIRTUAL TIME ", "badge"), (" ", "")]
        elif state.manifest.get("clock") == "real":
            badges += [("real time ", "soft")]
        message = self._message(frame)
        room = width - width_of(badges) - 1
        if message:
            kept = cut(message, max(0, room - 12))
            left = [(" ", ""), *kept] if width_of(left) + width_of(message) > room else [*left, *message]
        return spread(cut(left, room), badges, width)

    def _message(self, frame: Frame) -> Line:
        """The most pressing line: failure, stall, dropped frames, then the last notice."""
        state = frame.state
        if state.status == "failed":
            return [(clean(state.error or "the engine's process failed"), "bad")]
        if state.stalled:
            return [(clean(state.stalled), "warn")]
        if state.events_dropped:
            return [(f"{state.events_dropped:,} events dropped: this screen was too slow", "warn")]
        if state.notice:
            style = {"warning": "warn", "error": "bad"}.get(state.notice_level, "soft")
            return [(clean(state.notice), style)]
        return [(f"stderr: {clean(frame.native)}", "soft")] if frame.native else []
