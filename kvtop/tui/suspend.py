"""Ctrl+Z: the terminal is given back to the shell, the engine waits, and `fg` goes on where it was."""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING

from textual.driver import Driver

from kvtop.engine.events import Pause, Resume
from kvtop.tui.terminal import EXIT_GONE, has_terminal

if TYPE_CHECKING:
    from kvtop.tui.app import KvtopApp


def suspend_on_signals(app: KvtopApp) -> None:
    """Answer SIGTSTP and SIGCONT. Call with the loop running; does nothing where no terminal can be given back."""
    driver = app._driver
    if driver is not None and driver.can_suspend and hasattr(signal, "SIGTSTP"):
        Suspension(app, driver)


class Suspension:
    """What Textual leaves out around its own handlers of the two signals.

    An engine that nobody sees is paused: its clock stops with it, so the gap is in no rate. And a terminal that has
    not been given back (SIGSTOP cannot be caught) must not be taken a second time: two threads would read the keys
    then, and the modes of a full screen would be kept as those to restore.
    """

    def __init__(self, app: KvtopApp, driver: Driver) -> None:
        self._app, self._driver = app, driver
        self._stop, self._go_on = signal.getsignal(signal.SIGTSTP), signal.getsignal(signal.SIGCONT)
        self._is_given_back = self._holds_engine = False
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTSTP, self._on_stop)
        loop.add_signal_handler(signal.SIGCONT, self._on_continue)
        app.app_resume_signal.subscribe(app, self._on_resumed)

    def _on_stop(self) -> None:
        if self._app.check_action("pause", ()):
            self._app.session.send(Pause())
            self._holds_engine = True
        self._is_given_back = True
        assert callable(self._stop)
        self._stop(signal.SIGTSTP, None)

    def _on_continue(self) -> None:
        # A terminal that is closed sends SIGHUP and then this: whoever reads keys from then on is never told to stop.
        if self._app._exit:
            return
        if not has_terminal():
            self._app.exit(return_code=EXIT_GONE)
            return
        if not self._is_given_back:
            self._driver.suspend_application_mode()
        assert callable(self._go_on)
        self._go_on(signal.SIGCONT, None)  # in the background it stops again, and there will be another SIGCONT
        self._app.refresh(layout=True)

    def _on_resumed(self, _: object) -> None:
        self._is_given_back = False
        if self._holds_engine:
            self._app.session.send(Resume())
            self._holds_engine = False
