"""One key away: why a request waits, and all that happened to it."""

from __future__ import annotations

import re

import pytest
from rich.cells import cell_len
from tui_fakes import app_with, go, recorded, screen_lines, settled

from kvtop.engine.api import Engine, EngineConfig, NullExecutor, Recorder, SamplingParams
from kvtop.engine.events import Event, Gap, RunEnded, RunStarted
from kvtop.tui.app import KvtopApp
from kvtop.tui.screens.blocks import BlocksScreen
from kvtop.tui.screens.requests import RequestsScreen
from kvtop.tui.screens.why import WhyScreen
from kvtop.tui.widgets.block_map import BlockMap
from kvtop.tui.widgets.line_table import LineTable
from kvtop.why import explain, facts_of

MANIFEST = {"clock": "virtual", "executor": "null", "max_batched_tokens": 64, "block_size_tokens": 4}
PROMPT_B = [2] * 11


class Crowd:
    """Four blocks of four tokens: a and b hold two each, and in step 2 a takes those of b."""

    def __init__(self, second: str = "b", prompt: list[int] | None = None) -> None:
        config = EngineConfig(num_blocks=4, block_size=4, max_num_seqs=8, max_batched_tokens=64, prefix_caching=False)
        self.engine = Engine(config, NullExecutor(10_000_000), recorder=Recorder())
        self.events: list[Event] = []
        self.first = [RunStarted(run_id="r", manifest=MANIFEST), self.engine.keyframe()]
        self.engine.submit([1] * 7, SamplingParams(max_tokens=6), request_id="a")
        self.engine.submit(prompt or [2] * 7, SamplingParams(max_tokens=4), request_id=second)

    def steps(self, count: int) -> list[Event]:
        for _ in range(count):
            self.engine.step()
        events = self.engine.recorder.drain()
        self.events += events
        return events


def shown(app: KvtopApp) -> str:
    """The text of the dialog, its lines joined."""
    assert isinstance(app.screen, WhyScreen)
    return re.sub(r"\s+", " ", " ".join(line.strip("│╭╰╮╯─ ") for line in screen_lines(app)))


def footer(app: KvtopApp) -> str:
    return screen_lines(app)[-1]


async def select(pilot, row: str) -> None:
    await pilot.press("4")
    await settled(pilot)
    table = pilot.app.screen.query_one(LineTable)
    table.focus()
    table.select(row)
    await settled(pilot)


async def test_a_waiting_request_says_what_it_needs_and_what_there_is():
    crowd = Crowd(prompt=PROMPT_B)
    app = app_with([*crowd.first, *crowd.steps(2)])
    async with app.run_test(size=(80, 24)) as pilot:
        await settled(pilot)
        await select(pilot, "b")
        await pilot.press("w")
        await settled(pilot)
        text = shown(app)
        assert "request b — waiting, step 1 (simulated time)" in text
        assert "waited 20.0 ms (2 steps): no room: 3 blocks needed, 2 were available" in text
        assert "waiting now, after 0 tokens" in text


async def test_a_preempted_request_says_for_whom_and_what_it_lost():
    crowd = Crowd()
    app = app_with([*crowd.first, *crowd.steps(4)])
    async with app.run_test(size=(80, 24)) as pilot:
        await settled(pilot)
        await select(pilot, "b")
        await pilot.press("w")
        await settled(pilot)
        text = shown(app)
        assert "preempted for a, which needed a block when none was left" in text
        assert "8 computed tokens thrown away, 2 blocks given back" in text
        assert "no room: 3 blocks needed, 1 was available; a held most (3 blocks)" in text


async def test_an_open_dialog_follows_the_run_to_the_end_of_the_request():
    crowd = Crowd()
    app = app_with([*crowd.first, *crowd.steps(4)])
    async with app.run_test(size=(80, 32)) as pilot:
        await settled(pilot)
        await select(pilot, "b")
        await pilot.press("w")
        await settled(pilot)
        await settled(pilot, *crowd.steps(20))
        while "ended with all 4 tokens it asked for" not in shown(app):  # no more often than the screen is drawn
            await pilot.pause(0.01)
        facts = facts_of(crowd.events, "b", {**MANIFEST, "status": "running"})
        assert facts is not None
        assert "request b — ended" in shown(app)
        for line in explain(facts):
            assert line.text in shown(app)
        assert cell_len(screen_lines(app)[0]) == 80


async def test_a_request_that_ended_is_told_as_from_its_events():
    app = app_with(recorded())
    async with app.run_test(size=(99, 60)) as pilot:
        await settled(pilot)
        for name in [event.request_id for event in app.state.finished][::6]:
            await select(pilot, f"\x00done:{name}")
            await pilot.press("w")
            await settled(pilot)
            facts = facts_of(recorded(), name)
            assert facts is not None
            text = shown(app)
            for line in explain(facts):
                assert line.text in text, name
            await pilot.press("w")
            assert isinstance(app.screen, RequestsScreen)


async def test_on_the_map_the_key_is_for_the_owner_of_the_block_under_the_cursor():
    crowd = Crowd()
    app = app_with([*crowd.first, *crowd.steps(1)])
    async with app.run_test(size=(80, 24)) as pilot:
        await settled(pilot)
        await go(pilot, "2")
        block_map = app.screen.query_one(BlockMap)
        pool = app.state.pool
        assert pool is not None
        for name in ("a", "b"):
            block_map.move_to(next(block for block, owners in enumerate(pool.owners) if owners == [name]))
            await pilot.press("w")
            await settled(pilot)
            assert f"request {name} — running" in shown(app)
            await pilot.press("escape")


async def test_of_several_owners_the_selected_one_is_told():
    app = app_with(recorded())
    async with app.run_test(size=(200, 50)) as pilot:
        await settled(pilot)
        pool = app.state.pool
        assert pool is not None
        block = next(block for block, owners in enumerate(pool.owners) if len(owners) > 2)
        for _ in range(2):
            await go(pilot, "2")
            app.screen.query_one(BlockMap).move_to(block)
            await go(pilot, "enter")
        await go(pilot, "escape", "w")
        assert f"request {pool.owners[block][1]} — " in shown(app)


async def test_the_footer_has_the_key_only_where_there_is_somebody_to_tell_of():
    crowd = Crowd()
    app = app_with(crowd.first)
    async with app.run_test(size=(80, 24)) as pilot:
        await settled(pilot)
        await go(pilot, "2")
        assert "w why" not in footer(app)
        await pilot.press("w")
        assert isinstance(app.screen, BlocksScreen)
        await settled(pilot, *crowd.steps(1))
        assert "w why" in footer(app)
        await settled(pilot, *crowd.steps(40))
        assert "w why" not in footer(app)  # nobody holds the block any more
        await go(pilot, "4", "down")
        assert "w why" in footer(app)  # both have ended, and can be told of
        assert cell_len(footer(app)) == 80


async def test_every_key_of_the_footer_fits_80_columns():
    crowd = Crowd()
    app = app_with([*crowd.first, *crowd.steps(1)])
    async with app.run_test(size=(80, 24)) as pilot:
        await settled(pilot)
        await go(pilot, "2")
        for word in ("enter owner", "w why", "space freeze", "p pause", "? help", "q quit"):
            assert word in footer(app)


async def test_a_long_life_scrolls_and_the_newest_line_stays_in_sight():
    crowd = Crowd()
    app = app_with([*crowd.first, *crowd.steps(4)])
    async with app.run_test(size=(60, 16)) as pilot:
        await settled(pilot)
        await select(pilot, "b")
        await pilot.press("w")
        await settled(pilot)
        assert "waiting now" in shown(app)
        assert "arrived" not in shown(app)
        await pilot.press("home")
        await settled(pilot)
        assert "arrived" in shown(app)
        await settled(pilot, *crowd.steps(1))
        assert "arrived" in shown(app)  # who reads is not torn away
        await pilot.press("end")
        await settled(pilot)
        assert "waiting now" in shown(app)
        await pilot.press("q")
        assert app.is_running


async def test_a_run_that_ended_cuts_it_off():
    crowd = Crowd(prompt=PROMPT_B)
    app = app_with([*crowd.first, *crowd.steps(2), RunEnded(t_ns=9, status="interrupted")])
    async with app.run_test(size=(80, 24)) as pilot:
        await settled(pilot)
        await select(pilot, "b")
        await pilot.press("w")
        await settled(pilot)
        assert "cut off by the end of the run while waiting, after 0 tokens" in shown(app)


async def test_dropped_events_are_admitted():
    crowd = Crowd(prompt=PROMPT_B)
    app = app_with([*crowd.first, *crowd.steps(2)])
    async with app.run_test(size=(80, 24)) as pilot:
        await settled(pilot)
        await select(pilot, "b")
        crowd.steps(1)
        await settled(pilot, Gap(t_ns=0, dropped=2), crowd.engine.keyframe(), *crowd.steps(1))
        await pilot.press("w")
        await settled(pilot)
        assert "the log begins here: what came before is not in it; waiting, after 0 tokens" in shown(app)


HOSTILE = ["[/]", "[red]x", "\x1b]0;x\x07", "a\x9bb\rc\nd", "\u202eabc\u200b", "模型名字", "x" * 300]


@pytest.mark.parametrize("ascii", [False, True])
@pytest.mark.parametrize("name", HOSTILE)
async def test_hostile_names_are_harmless(name, ascii):
    crowd = Crowd(name)
    app = app_with([*crowd.first, *crowd.steps(4)], ascii=ascii)
    async with app.run_test(size=(80, 24)) as pilot:
        await settled(pilot)
        for row in ("a", name):
            await select(pilot, row)
            await pilot.press("w")
            await settled(pilot)
            lines = screen_lines(app)
            assert isinstance(app.screen, WhyScreen)
            assert all(cell_len(line) == 80 for line in lines)
            assert not {c for line in lines for c in line} & set("\x1b\x07\x9b\r\n\u202e\u200b")
            assert "running now" in shown(app) or "waiting now" in shown(app)
            await pilot.press("w")
