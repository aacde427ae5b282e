"""Dialogs, and screens that no state of the matrix shows, as pictures (``tui_pictures``)."""

from __future__ import annotations

import pytest
from tui_fakes import app_with, go, recorded, settled
from tui_pictures import shot

from kvtop.engine.events import Paused, RunEnded
from kvtop.tui.widgets.line_table import LineTable

TRACEBACK = """\
Traceback (most recent call last):
  File "engine/engine.py", line 131, in step
    result = self.executor.execute(plan)
RuntimeError: out of memory: tried to allocate 512 MiB"""


@pytest.fixture(autouse=True)
def _no_colour_variables(monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)


async def test_frozen_at_a_preemption(check_picture):
    async def before(pilot):
        await settled(pilot, Paused(t_ns=15_438_000_000))
        await go(pilot, "comma")

    check_picture(await shot(app_with(recorded()), (120, 40), before), "more/frozen-at-a-preemption")


async def test_help(check_picture):
    async def before(pilot):
        await settled(pilot)
        await go(pilot, "question_mark")

    check_picture(await shot(app_with(recorded()), (80, 24), before), "more/help")


async def test_explanation(check_picture):
    async def before(pilot):
        await settled(pilot)
        await go(pilot, "e")

    check_picture(await shot(app_with(recorded()), (80, 24), before), "more/explanation")


async def test_failed(check_picture):
    end = RunEnded(t_ns=15_438_000_000, status="failed", error="RuntimeError: out of memory", traceback=TRACEBACK)
    check_picture(await shot(app_with([*recorded(), end]), (80, 24), settled), "more/failed")


async def test_ascii(check_picture):
    check_picture(await shot(app_with(recorded(), ascii=True), (80, 24), settled), "more/ascii")


async def test_no_colour(check_picture, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    check_picture(await shot(app_with(recorded()), (80, 24), settled), "more/no-colour")


async def test_why(check_picture):
    """A request that was preempted and waits again."""

    async def before(pilot):
        await settled(pilot)
        waiting = [i for i, seq in pilot.app.state.sequences.items() if seq.state != "running"]
        await go(pilot, "4")
        table = pilot.app.screen.query_one(LineTable)
        table.focus()
        table.select(waiting[0])
        await settled(pilot)
        await pilot.press("w")
        await settled(pilot)

    check_picture(await shot(app_with(recorded()), (120, 40), before), "more/why")
