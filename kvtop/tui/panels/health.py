"""Source health: can what is on the screen be trusted?"""

from __future__ import annotations

from kvtop.tui.attached import source_lines
from kvtop.tui.frame import Frame
from kvtop.tui.panels.base import TextPanel
from kvtop.tui.text import clean, duration, plural, whole
from kvtop.tui.widgets.lines import Line


class HealthPanel(TextPanel):
    """Events taken, dropped and still to be folded; what kvtop itself costs; how far back the past goes."""

    TITLE = "Source health"
    QUESTION = "is this complete?"
    HELP = """\
events   taken from the engine; dropped: this screen was too slow for them,
         and everything is exact again from the next keyframe on
lag      events that have arrived and are not on the screen yet
folding  CPU time of this process for each event, and kvtop's own load
past     how far back the time line goes, and its size on disk
stderr   the last line that native code wrote"""

    def attached_lines(self, frame: Frame, width: int, height: int) -> list[Line]:
        return [*source_lines(frame, max(1, height - 1)), *self.lines(frame, width, height)[1:3]][:height]

    def lines(self, frame: Frame, width: int, height: int) -> list[Line]:
        app, line = self.kvtop, frame.timeline
        feed, dropped = app.feed, line.live.events_dropped
        source = "recording" if frame.is_replay else "embedded engine"
        state = "ended" if feed.end is not None else line.live.status
        events: Line = [("events   ", "soft"), (whole(feed.num_events), "text"), ("  dropped ", "soft")]
        events += [(whole(dropped), "bad" if dropped else "good")]
        events += [("  lag ", "soft"), (plural(feed.lag, "event"), "text")]
        each = feed.fold_s / feed.num_events * 1e9 if feed.num_events else None
        device = app.devices.latest()
        own = "not reported" if device is None or device.own_busy is None else f"{device.own_busy:.0f} % busy"
        kept: Line = [("past     ", "soft"), ("no step yet", "soft")]
        if (past_ns := line.live.t_ns - line.first_ns) > 0:
            size = f"{line.ring.num_bytes / 1e6:.1f} MB"
            kept[1:] = [(duration(past_ns), "text"), (f"  {'<0.1 MB' if size == '0.0 MB' else size} on disk", "soft")]
        if line.ring.error:
            kept = [("past     ", "soft"), (clean(line.ring.error), "bad")]
        out: list[Line] = [
            [("source   ", "soft"), (f"{source}, exact, {state}", "text")],
            events,
            [("folding  ", "soft"), (duration(each), "text"), (" an event  kvtop ", "soft"), (own, "text")],
            kept,
        ]
        if frame.native:
            out.append([("stderr   ", "soft"), (clean(frame.native), "warn")])
        return out[:height]
