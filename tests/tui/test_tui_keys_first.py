"""A run that is always ahead of what has been folded: keys are answered first, and folding goes on."""

from __future__ import annotations

import time

from tui_fakes import FakeSession, recorded, screen_text

from kvtop.engine.events import Event, Notice
from kvtop.tui import app as app_module
from kvtop.tui.app import KvtopApp
from kvtop.tui.screens.base import PanelScreen

EVENT_S = 0.002  # what folding one event takes here


class Endless(FakeSession):
    """There are always more events."""

    def poll(self, timeout_s: float = 0.0) -> list[Event]:
        return super().poll() or [Notice(t_ns=0, text="") for _ in range(100)]


def busy_app(monkeypatch) -> tuple[KvtopApp, list[float]]:
    """An application that never catches up, and how long each of its folds took."""
    app = KvtopApp(Endless(recorded()), hz=4.0)
    took: list[float] = []
    fold, fold_pending = app.timeline.fold, app.feed.fold_pending

    def slow(event: Event) -> None:
        fold(event)
        if isinstance(event, Notice) and not event.text:
            time.sleep(EVENT_S)

    def timed(*args) -> None:
        begin = time.monotonic()
        fold_pending(*args)
        took.append(time.monotonic() - begin)

    monkeypatch.setattr(app.timeline, "fold", slow)
    monkeypatch.setattr(app.feed, "fold_pending", timed)
    return app, took


async def begun(pilot, app: KvtopApp) -> None:
    while app.feed.num_events < len(recorded()) + 20:
        await pilot.pause(0.02)


async def test_a_key_waits_for_a_few_short_folds_and_no_long_one(monkeypatch):
    monkeypatch.setattr(app_module, "KEY_WINDOW_S", 10.0)  # of a machine on which a screen takes long to draw
    app, took = busy_app(monkeypatch)
    async with app.run_test(size=(120, 40)) as pilot:
        await begun(pilot, app)
        for key, title in (("2", "Block"), ("4", "Requests"), ("8", "Source"), ("1", "Findings")):
            took.clear()
            await pilot.press(key)
            while title not in screen_text(app):
                await pilot.pause(0.005)
            # A long one may be under way when the key comes; those after it are short, and rest longer than they take.
            assert sum(one > app_module.SLICE_S * 0.8 for one in took) <= 1, (key, took)
            assert len(took) < 60, (key, len(took))


async def test_folding_goes_on_under_a_key_that_is_held_down(monkeypatch):
    app, _ = busy_app(monkeypatch)
    async with app.run_test(size=(120, 40)) as pilot:
        await begun(pilot, app)
        before, end_s = app.feed.num_events, time.monotonic() + 0.5
        while time.monotonic() < end_s:
            await pilot.press("down")
        assert app.feed.num_events > before + 10


async def test_while_it_catches_up_one_timer_runs_and_the_screen_is_drawn_at_its_pace(monkeypatch):
    app, _ = busy_app(monkeypatch)
    timers, frames = [0], [0]
    set_timer, show_frame = app.set_timer, PanelScreen.show_frame

    def counted(delay, callback=None, **kwargs):
        timers[0] += callback == app._catch_up
        return set_timer(delay, callback, **kwargs)

    caught_up = app._catch_up

    def done() -> None:
        timers[0] -= 1
        caught_up()

    def shown(self, frame) -> None:
        frames[0] += 1
        show_frame(self, frame)

    monkeypatch.setattr(app, "_catch_up", done)
    monkeypatch.setattr(app, "set_timer", counted)
    monkeypatch.setattr(PanelScreen, "show_frame", shown)
    async with app.run_test(size=(120, 40)) as pilot:
        await begun(pilot, app)
        frames[0], end_s = 0, time.monotonic() + 1.0
        while time.monotonic() < end_s:
            await pilot.pause(0.02)
            assert timers[0] <= 1
        assert 1 <= frames[0] <= 6  # at 4 Hz
