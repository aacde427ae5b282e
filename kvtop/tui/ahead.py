"""Screens that were not shown yet are made ready behind the one that is, a piece at a time: their keys only switch."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable
from functools import partial
from importlib import import_module
from threading import Thread
from typing import TYPE_CHECKING

from kvtop.tui.screens import SCREENS, ScreenEntry

if TYPE_CHECKING:
    from kvtop.tui.app import KvtopApp

PIECE_EVERY_S = 0.05


def is_imported(module: str) -> bool:
    return module in sys.modules


class Ahead:
    """Imports the modules of all screens, then mounts each screen and lays it out. None of it draws.

    Modules are imported by a thread, which leaves the interpreter to others every few milliseconds; any other piece
    takes no longer than drawing a frame. A piece is left for later while somebody presses keys or events wait to be
    folded. A screen whose key comes first is made in the usual way; what is already there is used.
    """

    def __init__(self, app: KvtopApp) -> None:
        self._app = app
        self._thread: Thread | None = None  # imports the module of the first piece
        later = SCREENS[1:]
        modules = [*(entry.module for entry in later), "numpy"]  # which sorts the block map
        self._pieces: deque[Callable[[], bool]] = deque(
            [
                *(partial(self._import, module) for module in modules),
                *(partial(piece, entry) for entry in later for piece in (self._mount, self._fit, self._lay_out)),
            ]
        )
        self._timer = app.set_interval(PIECE_EVERY_S, self._next)

    @property
    def is_done(self) -> bool:
        return not self._pieces

    def _next(self) -> None:
        """Do the next piece. One that is not done yet (False) is called again."""
        if not self._pieces:
            self._timer.stop()
        elif self._app.is_running and self._app.is_at_rest and self._pieces[0]():
            self._pieces.popleft()

    def _import(self, module: str) -> bool:
        if self._thread is None:
            if is_imported(module):
                return True
            self._thread = Thread(target=import_module, args=(module,), name=f"import {module}", daemon=True)
            self._thread.start()
        if self._thread.is_alive():
            return False
        self._thread = None
        return True

    def _mount(self, entry: ScreenEntry) -> bool:
        screen = self._app.screen_of(entry)
        if not screen.is_running:
            self._app._get_screen(screen)  # what ``switch_screen`` begins with; there is no public way to it
        return True

    def _fit(self, entry: ScreenEntry) -> bool:
        """Give it the classes that Textual gives a screen of this size once it is shown. Styles follow when the
        application is idle, which it is before the next piece. False: its widgets are not all there yet."""
        screen, size = self._app.screen_of(entry), self._app.size
        if screen.is_mounted and not screen.is_current:
            sides = ((size.width, self._app.HORIZONTAL_BREAKPOINTS), (size.height, self._app.VERTICAL_BREAKPOINTS))
            for length, breakpoints in ((length, found or []) for length, found in sides):
                fitting = screen._get_breakpoint_classes(length, breakpoints)
                screen.update_classes({name: name in fitting for _, name in breakpoints}, animate=False)
        return screen.is_mounted

    def _lay_out(self, entry: ScreenEntry) -> bool:
        """For the size that the terminal has now; Textual does it again if that has changed when the screen is shown.

        False: its widgets are not all there yet.
        """
        screen = self._app.screen_of(entry)
        if screen.is_mounted and not screen.is_current:
            screen._refresh_layout(self._app.size)
        return screen.is_mounted
