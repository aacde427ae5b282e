"""Progress on a terminal (one line, rewritten) or elsewhere (at most one plain line every five seconds)."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TextIO

from kvtop.cli.text import cut_between

PLAIN_EVERY_S = 5.0
REDRAW_EVERY_S = 0.1


def is_terminal(stream: TextIO) -> bool:
    """A terminal that understands a carriage return and an erased line."""
    return stream.isatty() and os.environ.get("TERM", "") not in ("", "dumb")


def can_open_tui() -> bool:
    """Both ends are a terminal with cursor control, or a page that `kvtop serve` has opened."""
    return "TEXTUAL_DRIVER" in os.environ or (is_terminal(sys.stdout) and sys.stdin is not None and sys.stdin.isatty())


@contextmanager
def interruptible() -> Iterator[None]:
    """SIGTERM and SIGHUP count as Ctrl-C inside: the run is stopped in good order instead of being left behind."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]  # Windows: no SIGHUP
    before = {number: signal.signal(number, _interrupt) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


class ProgressLine:
    """Shows the newest text; on a terminal in place, otherwise a line now and then. Writes to stderr."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._live = is_terminal(self._stream)
        # The first plain line waits too: what ends within five seconds needs no progress.
        self._next_s = 0.0 if self._live else time.monotonic() + PLAIN_EVERY_S
        self._shown = False

    @property
    def due(self) -> bool:
        """Whether ``show`` would draw now; lets callers skip making the text."""
        return time.monotonic() >= self._next_s

    def show(self, text: str) -> None:
        """Draw ``text`` if it is time to."""
        if not self.due:
            return
        if self._live:
            width = shutil.get_terminal_size().columns - 1
            self._stream.write(f"\r\x1b[K{cut_between(text, width)}")
            self._shown = True
        else:
            self._stream.write(f"{text}\n")
        self._stream.flush()
        self._next_s = time.monotonic() + (REDRAW_EVERY_S if self._live else PLAIN_EVERY_S)

    def clear(self) -> None:
        """Erase the line, so that a result can be printed in its place."""
        if self._shown:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
            self._shown = False
