"""Textual's pilot waits until nothing is left to do, in place of until the processor looks idle.

Textual takes a process for idle that has used little CPU time in 20 ms. On a busy machine that may be one whose turn
has not come, and a test looks at half of what its keys do. Here everything that is under way is waited for, and what is
to be drawn is drawn: no time is, so that a test takes no longer than its application. Work of other threads, and what
a timer does later, a test waits for by itself.
"""

from __future__ import annotations

import asyncio
import time

import textual.app
import textual.pilot
from textual._context import active_app
from textual.app import App

TURNS = 3  # of the event loop in which nothing happens
LIMIT_S = 10.0  # an application may have something to do all the time


async def until_idle(min_sleep: float = 0.0, max_sleep: float = LIMIT_S) -> None:
    """Until no callback is ready, no worker runs and the screen is drawn. Takes the place of ``wait_for_idle``."""
    loop, app = asyncio.get_running_loop(), active_app.get()
    began_s, turns = time.monotonic(), 0
    while turns < TURNS and time.monotonic() - began_s < max_sleep:
        await asyncio.sleep(0)
        turns += 1
        if loop._ready:  # type: ignore[attr-defined]  # messages on their way, and timers whose time has come
            turns = 0
        elif not app.is_running or app._exit:
            continue
        elif app._batch_count or any(not worker.is_finished for worker in app.workers):
            turns = 0
            await asyncio.sleep(0.001)
        elif _draw(app):
            turns = 0


def _draw(app: App) -> bool:
    """Draw what waits for the next sixtieth of a second, at the size that waits for as long; whether anything did."""
    if app._resize_event is not None:
        app._check_resize()
        return True
    stack = app.screen_stack
    if not stack or not stack[-1].is_running:
        return False
    screen = stack[-1]
    waits = (
        screen._layout_required, screen._scroll_required, screen._repaint_required, screen._recompose_required,
        screen._dirty_widgets, screen._callbacks,
    )  # fmt: skip
    if any(waits):
        screen._on_timer_update()
    return any(waits)


def install() -> None:
    """Have every pilot of this process wait so."""
    textual.app.wait_for_idle = until_idle  # type: ignore[attr-defined]
    textual.pilot.wait_for_idle = until_idle  # type: ignore[attr-defined]
