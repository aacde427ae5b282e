"""Screens made ready before their key: nothing of them is drawn, and shown they are what they would be otherwise."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest
from textual.geometry import Region
from textual.pilot import Pilot
from textual.screen import Screen
from textual.widget import Widget
from tui_fakes import app_with, go, recorded, screen_text, settled

from kvtop.tui import ahead as ahead_module
from kvtop.tui.app import KvtopApp
from kvtop.tui.panels.base import Panel
from kvtop.tui.screens import SCREENS
from kvtop.tui.widgets.lines import DrawnWidget

LATER = [entry for entry in SCREENS if entry.key != "1"]
LIMIT_S = 60.0


@pytest.fixture(autouse=True)
def in_no_time(monkeypatch):
    monkeypatch.setattr(ahead_module, "PIECE_EVERY_S", 0.005)
    monkeypatch.setattr(KvtopApp, "is_at_rest", True)


async def made(pilot: Pilot, app: KvtopApp) -> None:
    await settled(pilot)
    await until(pilot, lambda: app.ahead.is_done)
    await settled(pilot)


async def until(pilot: Pilot, is_so: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + LIMIT_S
    while not is_so():
        assert time.monotonic() < deadline_s
        await pilot.pause(0.01)


async def test_screens_are_laid_out_and_not_drawn_before_they_are_shown(monkeypatch):
    drawn: list[DrawnWidget] = []
    original = DrawnWidget.strip_of

    def noted(self, *args, **kwargs):
        drawn.append(self)
        return original(self, *args, **kwargs)

    monkeypatch.setattr(DrawnWidget, "strip_of", noted)
    app = app_with(recorded())
    async with app.run_test(size=(120, 40)) as pilot:
        await made(pilot, app)
        for entry in LATER:
            screen = app.screen_of(entry)
            assert screen.query_one("#body").size == app.screen.query_one("#body").size, entry.name
            assert screen.has_class("-mid", "-tall")
        assert {widget.screen for widget in drawn} == {app.screen}


def regions_of(screen: Screen) -> dict[Widget, Region]:
    return {w: place.region for w, place in screen._compositor.full_map.items() if isinstance(w, Panel)}


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 50)])
async def test_panels_are_ahead_where_they_are_once_shown(size):
    app = app_with(recorded())
    async with app.run_test(size=size) as pilot:
        await made(pilot, app)
        for entry in LATER:
            if entry.name == "Compare":  # what it shows is decided by its first frame
                continue
            screen = app.screen_of(entry)
            ahead = regions_of(screen)
            await go(pilot, entry.key)
            shown = regions_of(screen)
            assert ahead == shown, entry.name


async def test_a_key_to_a_screen_that_is_ready_parses_and_composes_nothing(monkeypatch):
    app = app_with(recorded())
    async with app.run_test(size=(120, 40)) as pilot:
        await made(pilot, app)
        before = {entry.name: list(app.screen_of(entry).walk_children()) for entry in LATER}
        parsed: list[None] = []
        reparse = app.stylesheet.reparse
        monkeypatch.setattr(app.stylesheet, "reparse", lambda: (parsed.append(None), reparse()))
        for entry in LATER:
            await go(pilot, entry.key)
            assert list(app.screen.walk_children()) == before[entry.name]
        assert not parsed


@pytest.mark.parametrize("entry", LATER, ids=lambda entry: entry.name)
async def test_made_at_one_size_and_shown_at_another_it_looks_as_if_made_there(entry, monkeypatch):
    app = app_with(recorded())
    async with app.run_test(size=(200, 50)) as pilot:
        await made(pilot, app)
        await pilot.resize_terminal(90, 30)
        await go(pilot, entry.key)
        text = screen_text(app)
    monkeypatch.setattr(KvtopApp, "is_at_rest", False)  # nothing is made ahead
    app = app_with(recorded())
    async with app.run_test(size=(90, 30)) as pilot:
        await settled(pilot)
        await go(pilot, entry.key)
        assert text == screen_text(app)
        assert len(app.ahead._pieces) > len(LATER)
        assert "q quit" in text.splitlines()[-1]


async def test_the_screen_is_drawn_on_while_a_module_is_imported(monkeypatch):
    """Imports that never end by themselves: only another thread leaves the application at work."""
    end, imported = threading.Event(), []

    def never_done(module: str) -> None:
        imported.append(module)
        assert threading.current_thread() is not threading.main_thread()
        assert end.wait(LIMIT_S)

    monkeypatch.setattr(ahead_module, "import_module", never_done)
    monkeypatch.setattr(ahead_module, "is_imported", lambda module: False)
    app = app_with(recorded())
    async with app.run_test(size=(120, 40)) as pilot:
        await settled(pilot)
        await until(pilot, lambda: bool(imported))
        await go(pilot, "4")
        assert "4 Requests" in screen_text(app)
        assert not app.ahead.is_done
        assert len(imported) == 1
        end.set()
        await made(pilot, app)
        assert imported == [*(entry.module for entry in LATER), "numpy"]


@pytest.mark.parametrize("is_made", [True, False])
async def test_what_a_screen_shows_comes_with_it_and_not_with_the_next_tick(is_made, monkeypatch):
    monkeypatch.setattr(KvtopApp, "is_at_rest", is_made)
    app = app_with(recorded())
    async with app.run_test(size=(120, 40)) as pilot:
        await (made(pilot, app) if is_made else settled(pilot))
        app.tick = lambda: None  # type: ignore[method-assign]
        monkeypatch.setattr(KvtopApp, "tick", lambda self: None)
        for timer in list(app._timers):
            timer.stop()
        shown: list[str] = []
        display = app._display

        def noted(screen, update) -> None:
            display(screen, update)
            if screen is app.screen and update is not None:
                shown.append(screen_text(app))

        monkeypatch.setattr(app, "_display", noted)
        for entry in LATER:
            shown.clear()
            title = f"kvtop {entry.key} {entry.name[:3]}"
            await pilot.press(entry.key)
            await until(pilot, lambda title=title: any(title in text for text in shown))
            assert title in shown[-1], entry.name
            if is_made:  # nothing of it is seen without its figures
                assert title in shown[0], (entry.name, shown[0])
                assert "q quit" in shown[0].splitlines()[-1]
