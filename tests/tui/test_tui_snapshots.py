"""The screen as a picture, from the recorded run. ``pytest tests/tui/test_tui_snapshots.py --snapshot-update`` accepts
what it looks like now; look at it first."""

from __future__ import annotations

import pytest
from tui_fakes import app_with, go, recorded, settled

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


SIZES = [(80, 24), (120, 40), (200, 50)]


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize("key", ["1", "7", "8"], ids={"1": "overview", "7": "memory", "8": "events"}.get)
def test_screen(snap_compare, key, size):
    async def before(pilot):
        await settled(pilot)
        await go(pilot, key)

    assert snap_compare(app_with(recorded()), terminal_size=size, run_before=before)


def test_frozen_at_a_preemption(snap_compare):
    async def before(pilot):
        await settled(pilot, Paused(t_ns=15_438_000_000))
        await go(pilot, "comma")

    assert snap_compare(app_with(recorded()), terminal_size=(120, 40), run_before=before)


def test_help(snap_compare):
    async def before(pilot):
        await settled(pilot)
        await go(pilot, "question_mark")

    assert snap_compare(app_with(recorded()), terminal_size=(80, 24), run_before=before)


def test_explanation(snap_compare):
    async def before(pilot):
        await settled(pilot)
        await go(pilot, "e")

    assert snap_compare(app_with(recorded()), terminal_size=(80, 24), run_before=before)


def test_failed(snap_compare):
    end = RunEnded(t_ns=15_438_000_000, status="failed", error="RuntimeError: out of memory", traceback=TRACEBACK)
    assert snap_compare(app_with([*recorded(), end]), terminal_size=(80, 24), run_before=settled)


def test_ascii(snap_compare):
    assert snap_compare(app_with(recorded(), ascii=True), terminal_size=(80, 24), run_before=settled)


def test_no_colour(snap_compare, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    assert snap_compare(app_with(recorded()), terminal_size=(80, 24), run_before=settled)


def test_why(snap_compare):
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

    assert snap_compare(app_with(recorded()), terminal_size=(120, 40), run_before=before)
