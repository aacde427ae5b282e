"""How often the screen is drawn anew: less often after a frame that was large for the line, or slow to draw."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from textual.app import App
    from textual.driver import Driver
    from textual.screen import Screen

    from kvtop.state.model import RunState
    from kvtop.tui.feed import Session

MOST_BYTES_S = 250_000  # what a slow line carries, over ssh for instance
LONGEST_REST_S = 1.0  # a machine that was held up once is not held up twice
LOST_S = 1.0  # a frame that nothing is heard of for so long is waited for no more
# An engine that computes on the cores that draw: every second frame of ``--hz 4`` is left to it, as over a slow line.
YIELD_S = 0.4
ATTENDED_S = 5.0  # whoever has pressed something follows what it does for so long


class Pace:
    """A frame waits until the line has carried the one before, and rests as long as that took to draw.

    ``yields``: frames are at least ``YIELD_S`` apart, because others want the cores that draw. Keys and the mouse do
    not ask: what they change is shown at once. ``written``: bytes given to the terminal so far.
    """

    def __init__(self) -> None:
        self.clock: Callable[[], float] = time.monotonic
        self.written = 0
        self.yields = False
        self._driver: Driver | None = None  # whose bytes are counted
        self._began: tuple[float, int] | None = None  # of a frame that is not painted yet: when, and ``written`` then
        self._next_s = 0.0
        self._last_s = -YIELD_S  # when the last frame began

    def _watch(self, app: App) -> None:
        """Count what ``app`` writes, from now on."""
        driver = app._driver  # no public way leads to what is written
        if driver is None or driver is self._driver:
            return
        self._driver = driver
        write = driver.write

        def counted(data: str) -> None:
            self.written += len(data)
            write(data)

        driver.write = counted  # type: ignore[method-assign]

    @property
    def _is_queued(self) -> bool:
        """The terminal has not taken all of it yet."""
        writer = getattr(self._driver, "_writer_thread", None)  # after a suspension it is another
        return writer is not None and not writer._queue.empty()

    @property
    def is_due(self) -> bool:
        """The next frame may be drawn."""
        now_s = self.clock()
        if self._began is not None and now_s - self._began[0] < LOST_S:
            return False
        next_s = max(self._next_s, self._last_s + YIELD_S) if self.yields else self._next_s
        return now_s >= next_s and not self._is_queued

    def begin(self, screen: Screen) -> None:
        """A frame is given to ``screen``."""
        self._watch(screen.app)
        self._last_s = self.clock()
        self._began = (self._last_s, self.written)
        screen.call_after_refresh(self.painted)

    def painted(self) -> None:
        """What it changed has been written."""
        if self._began is None:
            return
        (began_s, before), now_s = self._began, self.clock()
        self._began = None
        rest_s = min(now_s - began_s, LONGEST_REST_S)
        self._next_s = max(now_s + rest_s, began_s + (self.written - before) / MOST_BYTES_S)


def shares_cores(session: Session, state: RunState) -> bool:
    """The engine of ``state`` is ``session``'s own, and computes on the cores that draw."""
    is_own = getattr(session, "pid", None) is not None
    return is_own and (state.manifest.get("executor"), state.manifest.get("device")) == ("torch", "cpu")
