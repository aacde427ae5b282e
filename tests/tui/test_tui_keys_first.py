"""A run that is always ahead of what has been folded: keys are answered first, and folding goes on."""

from __future__ import annotations

import asyncio
import math
import time
from types import SimpleNamespace

from tui_fakes import FakeSession, recorded, screen_text

from kvtop.engine.events import Event, Notice
from kvtop.tui import app as app_module
from kvtop.tui import feed as feed_module
from kvtop.tui.app import KvtopApp
from kvtop.tui.screens.base import PanelScreen

EVENT_S = 0.002  # what folding one event takes, by the clock that folding looks at
LIMIT_S = 60.0


class Endless(FakeSession):
    """There are always more events than will be folded."""

    def poll(self, timeout_s: float = 0.0) -> list[Event]:
        return super().poll() or [Notice(t_ns=0, text="")] * 1_000_000


class Busy:
    """An application that never catches up. ``folds``: how long each took; ``rests``: how long it was to rest then."""

    def __init__(self, monkeypatch) -> None:
        self.app = app = KvtopApp(Endless(recorded()), hz=4.0)
        self.folds: list[float] = []
        self.rests: list[float] = []
        self._now_s = 0.0
        self._fold, self._fold_pending, self._set_timer = app.timeline.fold, app.feed.fold_pending, app.set_timer
        clock = SimpleNamespace(monotonic=lambda: self._now_s, thread_time=time.thread_time)
        monkeypatch.setattr(feed_module, "time", clock)
        monkeypatch.setattr(app.timeline, "fold", self._slow_fold)
        monkeypatch.setattr(app.feed, "fold_pending", self._timed)
        monkeypatch.setattr(app, "set_timer", self._timer)

    def _slow_fold(self, event: Event) -> None:
        self._fold(event)
        self._now_s += EVENT_S

    def _timed(self, *args) -> None:
        began_s = self._now_s
        self._fold_pending(*args)
        self.folds.append(self._now_s - began_s)

    def _timer(self, delay, callback=None, **kwargs):
        if callback == self.app._catch_up:
            self.rests.append(delay)
        return self._set_timer(delay, callback, **kwargs)

    async def begun(self, pilot) -> None:
        while self.app.feed.num_events < len(recorded()) + 20:
            await pilot.pause(0.02)


async def test_a_key_waits_for_a_few_short_folds_and_no_long_one(monkeypatch):
    monkeypatch.setattr(app_module, "KEY_WINDOW_S", math.inf)  # of a machine on which a screen takes long to draw
    busy = Busy(monkeypatch)
    async with asyncio.timeout(LIMIT_S), busy.app.run_test(size=(120, 40)) as pilot:
        await busy.begun(pilot)
        for key, title in (("2", "Block"), ("4", "Requests"), ("8", "Source"), ("1", "Findings")):
            busy.folds.clear()
            busy.rests.clear()
            await pilot.press(key)
            while title not in screen_text(busy.app) or len(busy.folds) < 2:
                await pilot.pause(0.005)
            # A long one may be under way when the key comes; those after it are short, and rest longer than they take.
            assert max(busy.folds[1:]) < 1.5 * app_module.KEY_SLICE_S < min(busy.rests[1:], default=math.inf), key


async def test_a_key_that_changes_no_screen_is_waited_for_too(monkeypatch):
    monkeypatch.setattr(app_module, "KEY_WINDOW_S", math.inf)
    busy = Busy(monkeypatch)
    async with asyncio.timeout(LIMIT_S), busy.app.run_test(size=(120, 40)) as pilot:
        await busy.begun(pilot)
        busy.app._input_s = -math.inf  # as if nobody had pressed anything: the first frame was a while ago
        busy.folds.clear()
        while not busy.folds or busy.folds[-1] < 1.5 * app_module.KEY_SLICE_S:
            await pilot.pause(0.005)
        await pilot.press("down")
        busy.folds.clear()
        while len(busy.folds) < 3:
            await pilot.pause(0.005)
        assert max(busy.folds[1:]) < 1.5 * app_module.KEY_SLICE_S


async def test_folding_goes_on_under_a_key_that_is_held_down(monkeypatch):
    monkeypatch.setattr(app_module, "KEY_WINDOW_S", math.inf)  # of a machine on which keys come slowly
    busy = Busy(monkeypatch)
    async with asyncio.timeout(LIMIT_S), busy.app.run_test(size=(120, 40)) as pilot:
        await busy.begun(pilot)
        await pilot.press("down")
        before = busy.app.feed.num_events
        while busy.app.feed.num_events <= before + 50:
            await pilot.press("down")


async def test_while_it_catches_up_one_timer_runs_and_the_screen_is_drawn_at_its_pace(monkeypatch):
    busy = Busy(monkeypatch)
    timers, ticks, frames = [0], [0], [0]
    timer, caught_up, tick, show_frame = busy._timer, busy.app._catch_up, KvtopApp.tick, PanelScreen.show_frame

    def counted(delay, callback=None, **kwargs):
        timers[0] += callback == busy.app._catch_up
        return timer(delay, callback, **kwargs)

    def done() -> None:
        timers[0] -= 1
        caught_up()

    def ticked(self) -> None:
        ticks[0] += 1
        tick(self)

    def shown(self, frame) -> None:
        frames[0] += 1
        show_frame(self, frame)

    monkeypatch.setattr(busy.app, "_catch_up", done)
    monkeypatch.setattr(busy.app, "set_timer", counted)
    monkeypatch.setattr(KvtopApp, "tick", ticked)
    monkeypatch.setattr(PanelScreen, "show_frame", shown)
    async with asyncio.timeout(LIMIT_S), busy.app.run_test(size=(120, 40)) as pilot:
        await busy.begun(pilot)
        frames[0] = ticks[0] = 0
        busy.folds.clear()
        while frames[0] < 3 or len(busy.folds) < 4 * ticks[0]:
            await pilot.pause(0.02)
            assert timers[0] <= 1
        assert frames[0] <= ticks[0]
