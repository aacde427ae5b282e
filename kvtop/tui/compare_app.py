"""The application over several runs side by side: Compare sets them against each other, all else looks at one."""

from __future__ import annotations

from collections.abc import Sequence

from kvtop.engine.errors import UsageError
from kvtop.tui.app import KvtopApp
from kvtop.tui.feed import StartableSession
from kvtop.tui.garbage import rarely_searched
from kvtop.tui.glyphs import locale_is_utf8
from kvtop.tui.lanes import Lanes
from kvtop.tui.launch import stop_session
from kvtop.tui.terminal import captured_stderr, check_terminal


class CompareApp(KvtopApp):
    """Starts on Compare. ``looked_at`` is the run that all other screens show, by its place."""

    def __init__(self, lanes: Lanes, *, replay: bool = False, **options) -> None:
        super().__init__(lanes.lanes[0].session, replay=replay, **options)
        self.timeline.ring.close()
        self._start_speed = None
        self.lanes: Lanes = lanes
        self.looked_at = 0
        self.look_at(0)

    def on_mount(self) -> None:
        super().on_mount()
        self.call_after_refresh(self.go, "Compare")

    def on_unmount(self) -> None:
        super().on_unmount()
        self.lanes.close()

    def look_at(self, place: int) -> None:
        """Have the other screens show this run, at the moment that is looked at."""
        self.lanes.follow(self.timeline)
        lane = self.lanes.lanes[place]
        self.looked_at, self.feed, self.timeline, self.session = place, lane.feed, lane.timeline, lane.session

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """One engine alone is neither paused nor stepped: they stay together."""
        if action in ("pause", "resume", "step", "until", "breakpoint", "change"):
            return False
        return super().check_action(action, parameters)

    def _tell_end(self) -> None:
        """A run that failed is told once, whichever it is."""
        if self._told_end:
            return
        for place, lane in enumerate(self.lanes.lanes):
            end = lane.feed.end
            if end is not None and end.status == "failed" and not self.is_replay:
                self._told_end = True
                self.look_at(place)
                self.action_failure()

    def run_exit_code(self) -> int:
        if self.is_replay:
            return 0
        ends = [lane.feed.end for lane in self.lanes.lanes]
        return next((end.exit_code or 1 for end in ends if end is not None and end.status == "failed"), 0)


def run_side_by_side(
    runs: Sequence[tuple[str, StartableSession]], *, replay: bool = False, pace: float, mouse: bool = True, **options
) -> int:
    """Start all ``runs`` (label and session), show them until the user quits, stop them; returns the exit code.

    Raises:
        UsageError: there is no terminal to draw on, or there are not two runs (nothing has been started then).
    """
    if len(runs) < 2:
        raise UsageError("side by side needs two runs at least")
    check_terminal()
    try:
        for _, session in runs:
            session.start()
        with rarely_searched(), captured_stderr() as native:
            ascii_only = options.pop("ascii", False) or not locale_is_utf8()
            lanes = Lanes(runs, keep_all=replay, pace=pace)
            app = CompareApp(lanes, replay=replay, ascii=ascii_only, native=native, signals=True, **options)
            app.run(mouse=mouse)
    finally:
        for _, session in runs:
            stop_session(session)
    return app.return_code or 0
