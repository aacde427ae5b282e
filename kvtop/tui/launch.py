"""The TUI on a real terminal: started, shown, and everything given back afterwards."""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING

from kvtop.tui.garbage import rarely_searched
from kvtop.tui.glyphs import locale_is_utf8
from kvtop.tui.terminal import EXIT_GONE, captured_stderr, check_terminal, has_terminal

if TYPE_CHECKING:
    from kvtop.tui.feed import Session, StartableSession

STOP_TIMEOUT_S = 5.0


def run_app(
    session: StartableSession,
    *,
    ascii: bool = False,
    mouse: bool = True,
    hz: float = 4.0,
    replay: bool = False,
    speed: float = 1.0,
    theme: str = "dark",
) -> int:
    """Start ``session``, show it until the user quits or a signal ends it, stop it; returns the exit code.

    0; 1 (or what the run says) when the run failed; 130 after Ctrl+C twice; 128 + number after a signal (that of
    SIGHUP when the terminal is gone). Glyphs are ASCII when asked for or when the locale is not UTF-8. Whatever
    happens, the terminal is restored and the session stopped.

    Raises:
        UsageError: there is no terminal to draw on (nothing has been started then).
    """
    check_terminal()
    try:
        session.start()
        with rarely_searched(), captured_stderr() as native:
            from kvtop.tui.app import KvtopApp  # half the way to the screen: the model loads meanwhile

            plain = ascii or not locale_is_utf8()
            app = KvtopApp(
                session, ascii=plain, hz=hz, native=native, signals=True, replay=replay, speed=speed, theme=theme
            )
            if follow := getattr(session, "follow", None):  # its metrics are read from the state that is on screen
                follow(lambda: app.state)
            app.run(mouse=mouse)
    except OSError:
        if has_terminal():
            raise
        return EXIT_GONE  # it could not even be told good-bye
    finally:
        stop_session(session)
    return app.return_code or 0


def stop_session(session: Session) -> None:
    """End the session; say so when it takes a while (the engine ends the step it is in; a recording is written)."""
    what = "stopping the engine ..." if getattr(session, "has_engine", True) else "stopping ..."
    notice = threading.Timer(0.5, lambda: print(f"kvtop: {what}", file=sys.stderr))
    notice.daemon = True
    notice.start()
    try:
        session.stop(STOP_TIMEOUT_S)
    finally:
        notice.cancel()
