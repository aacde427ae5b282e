"""The terminal before and after the application: checked, borrowed, given back."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING

from kvtop.engine.errors import UsageError

if TYPE_CHECKING:
    from textual.app import App

NATIVE_LINES = 200  # of file descriptor 2, the last ones kept
LOOK_EVERY_S = 2.0  # whether the terminal is still there
SIGHUP = 1  # which Windows has no name for
EXIT_GONE = 128 + SIGHUP


def check_terminal() -> None:
    """Whether a full screen can be shown here: on a terminal, or in a page that `kvtop serve` has opened.

    Raises:
        UsageError: standard input or error is no terminal (the screen is drawn on standard error), or TERM is dumb.
    """
    if "TEXTUAL_DRIVER" in os.environ:
        return
    for name, stream in (("standard input", sys.__stdin__), ("standard error", sys.__stderr__)):
        if stream is None or not stream.isatty():
            raise UsageError(f"{name} is not a terminal: the live TUI needs one (kvtop bench runs without)")
    if os.environ.get("TERM", "") in ("", "dumb"):
        found = os.environ.get("TERM") or "not set"
        raise UsageError(f"TERM is {found}: the live TUI needs a terminal that can move its cursor")


@contextlib.contextmanager
def captured_stderr() -> Iterator[deque[str]]:
    """Give the terminal to the driver alone: what native code writes to file descriptor 2 becomes lines of a deque.

    CUDA, glibc and the like write there behind Python's back, across the screen. ``sys.__stderr__`` is on the
    terminal meanwhile; both are put back at the end.
    """
    lines: deque[str] = deque(maxlen=NATIVE_LINES)
    before, terminal = sys.__stderr__, os.dup(2)
    read_end, write_end = os.pipe()
    screen = os.fdopen(os.dup(terminal), "w", encoding="utf-8", errors="replace")
    sys.__stderr__ = screen  # type: ignore[misc]
    os.dup2(write_end, 2)
    os.close(write_end)
    reader = threading.Thread(target=_collect, args=(read_end, lines), name="stderr", daemon=True)
    reader.start()
    try:
        yield lines
    finally:
        os.dup2(terminal, 2)  # the pipe's last writer of ours is gone: the reader sees its end
        os.close(terminal)
        sys.__stderr__ = before  # type: ignore[misc]
        with contextlib.suppress(OSError):  # what is left to write, to a terminal that is gone
            screen.close()
        reader.join(0.1)  # a child that inherited the pipe may keep it open: the thread is a daemon


def _collect(read_end: int, lines: deque[str]) -> None:
    with os.fdopen(read_end, "r", encoding="utf-8", errors="replace") as pipe:
        for line in pipe:
            if line.strip():
                lines.append(line.rstrip())


def exit_on_signals(app: App) -> None:
    """Let the application end in order, terminal restored, when it is told to go. Call with its loop running.

    A terminal that is gone tells it, too: not every one that is closed sends SIGHUP, and not every process gets it.
    """
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, SIGHUP, signal.SIGINT):
        with contextlib.suppress(NotImplementedError):  # Windows: its loop knows no signals
            loop.add_signal_handler(number, lambda code=128 + number: app.exit(return_code=code))
    if "TEXTUAL_DRIVER" not in os.environ:
        app.set_interval(LOOK_EVERY_S, lambda: None if has_terminal() else app.exit(return_code=EXIT_GONE))


def has_terminal() -> bool:
    """Whether it is still there. Asks the terminal itself: of one that was closed nothing can be asked any more."""
    return sys.__stdin__ is not None and sys.__stdin__.isatty()


def toggle_mouse(app: App) -> bool | None:
    """Give the mouse to the terminal, which selects and copies with it then, or take it back.

    Whether it is the application's now; None: the driver has no way to do it, and nothing has changed.
    """
    driver = app._driver  # no public way leads to it
    enable, disable = (getattr(driver, f"_{what}_mouse_support", None) for what in ("enable", "disable"))
    if driver is None or enable is None or disable is None:
        return None
    if driver._mouse:
        disable()
        driver._mouse = False  # after a suspension, too
    else:
        driver._mouse = True
        enable()
    return driver._mouse
