"""Themes, exports, and changes to the engine while it runs."""

from __future__ import annotations

import csv
import json

import pytest
from rich.color import Color
from textual.widgets import Input, Static
from tui_fakes import (
    FakeSession,
    app_with,
    find_by_name,
    go,
    recorded,
    run_by_name,
    screen_lines,
    screen_text,
    settled,
)

from kvtop.engine.events import SetConfig
from kvtop.state.numbers import read_all
from kvtop.tui.screens import SCREENS
from kvtop.tui.screens.ask import AskScreen
from kvtop.tui.theme import PALETTES, styles_of
from kvtop.tui.widgets.line_table import LineTable


async def test_t_goes_through_the_themes_and_every_screen_is_drawn_anew():
    app = app_with(recorded())
    async with app.run_test(size=(100, 32)) as pilot:
        await settled(pilot)
        words = screen_text(app)
        colours = set()
        for name in [*list(PALETTES)[1:], "dark"]:
            await go(pilot, "t")
            assert app.theme == name
            brand = next(s for strip in app.screen._compositor.render_strips() for s in strip if "kvtop" in s.text)
            colours.add(brand.style.color if brand.style else None)
            assert screen_lines(app)[0] == words.splitlines()[0]
        assert len(colours) >= 4


def test_mono_has_no_colour_and_ansi_only_the_terminals_own():
    for style in styles_of("mono").values():
        assert style.color is None
        assert style.bgcolor is None
    for style in styles_of("ansi").values():
        for color in (style.color, style.bgcolor):
            assert color is None or color.number is None or color.number < 16
    assert {frozenset(styles_of(name)) for name in PALETTES} == {frozenset(styles_of("dark"))}


def luminance(color: Color) -> float:
    def linear(part: int) -> float:
        share = part / 255
        return share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4

    red, green, blue = color.get_truecolor()
    return 0.2126 * linear(red) + 0.7152 * linear(green) + 0.0722 * linear(blue)


@pytest.mark.parametrize("name", ["dark", "light", "okabe-ito"])
def test_text_stands_out_from_its_ground(name):
    """WCAG's contrast: 4.5 for text, 3 for what is faint on purpose or carries a glyph."""
    ground = luminance(Color.parse(PALETTES[name].ground))
    for key, least in {"text": 7, "strong": 7, "soft": 4.5, "warn": 4.5, "bad": 4.5, "good": 4.5, "faint": 3}.items():
        color = styles_of(name)[key].color
        assert color is not None
        lighter, darker = sorted((luminance(color), ground), reverse=True)
        assert (lighter + 0.05) / (darker + 0.05) >= least, key


async def export_as(pilot, name: str) -> None:
    await go(pilot, "x")
    screen = pilot.app.screen
    assert isinstance(screen, AskScreen)
    screen.query_one(Input).value = name
    await go(pilot, "enter")


async def test_what_is_shown_is_written_as_picture_text_numbers_and_table(tmp_path):
    app = app_with(recorded())
    async with app.run_test(size=(120, 40)) as pilot:
        await settled(pilot)
        await go(pilot, "4", "left_curly_bracket")
        shown = screen_lines(app)
        for suffix in ("svg", "txt", "json", "csv"):
            await export_as(pilot, str(tmp_path / f"out.{suffix}"))
        assert (tmp_path / "out.svg").read_text().startswith("<svg")
        assert (tmp_path / "out.txt").read_text().splitlines()[:10] == [line.rstrip() for line in shown[:10]]
        found = json.loads((tmp_path / "out.json").read_text())
        assert found["step"] == app.timeline.view.step
        assert found["numbers"] == json.loads(json.dumps(read_all(app.timeline.view)))
        table = app.screen.query_one(LineTable)
        rows = list(csv.reader((tmp_path / "out.csv").read_text().splitlines()))
        assert rows[0] == [column.title for column in table.columns]
        assert len(rows) == len(table.ids) + 1


async def test_an_export_that_cannot_be_written_says_why_and_asks_again(tmp_path):
    app = app_with(recorded())
    async with app.run_test(size=(120, 40)) as pilot:
        await settled(pilot)
        for name, said in (("out.png", "expected a name"), (str(tmp_path / "no" / "out.svg"), "there is no directory")):
            await export_as(pilot, name)
            assert isinstance(app.screen, AskScreen)
            assert said in str(app.screen.query_one("#hint", Static).content)
            await go(pilot, "escape")


async def test_the_palette_changes_policy_and_rate_of_a_running_engine_and_of_no_recording():
    app = app_with(recorded(), replay=True, speed=0.0)
    async with app.run_test(size=(120, 40)) as pilot:
        await settled(pilot)
        assert not await find_by_name(pilot, "queue policy sjf")
    app = app_with(recorded())
    async with app.run_test(size=(120, 40)) as pilot:
        await settled(pilot)
        await run_by_name(pilot, "queue policy sjf")
        assert isinstance(app.session, FakeSession)
        assert app.session.sent == [SetConfig({"policy": "sjf"})]
    app = app_with(recorded())
    async with app.run_test(size=(120, 40)) as pilot:
        await settled(pilot)
        app.action_change("arrival_rate", "2")
        assert isinstance(app.session, FakeSession)
        assert app.session.sent == [SetConfig({"arrival_rate": 2.0})]


async def test_the_palette_changes_the_pool_size_by_share_and_by_number():
    app = app_with(recorded())
    async with app.run_test(size=(120, 40)) as pilot:
        await settled(pilot)
        assert isinstance(app.session, FakeSession)
        pool = app.state.pool
        assert pool is not None
        await run_by_name(pilot, "pool size: half")
        assert app.session.sent == [SetConfig({"num_blocks": round(pool.num_blocks / 2)})]
        await run_by_name(pilot, "pool size: ask for a number")
        assert isinstance(app.screen, AskScreen)
        for text in (str(pool.num_blocks + 1), "0", "many", "101%", "nan%"):
            app.screen.query_one(Input).value = text
            await go(pilot, "enter")
            assert "expected blocks from 1 to" in str(app.screen.query_one("#hint", Static).content)
        app.screen.query_one(Input).value = "3"
        await go(pilot, "enter")
        assert app.session.sent[1:] == [SetConfig({"num_blocks": 3})]


@pytest.mark.parametrize("size", [(80, 24), (200, 50)])
async def test_numbers_on_the_overview_are_those_of_the_json(size):
    app = app_with(recorded())
    async with app.run_test(size=size) as pilot:
        await settled(pilot)
        numbers, text = read_all(app.state), screen_text(app)
        for name in ("used", "shared", "idle", "fresh"):
            assert f"{name} {numbers[f'pool.{name}_blocks']}" in text
        assert f"next victim {numbers['runway.victim']}" in text
        assert f"preempted {numbers['run.preemptions']}" in text
        rate = numbers["cache.hit_rate"]
        assert isinstance(rate, float)
        assert f"{100 * rate:.1f} %" in text


def test_every_screen_is_one_line_and_its_key_is_its_own():
    assert len({entry.key for entry in SCREENS}) == len(SCREENS)
    assert all(entry.load().__doc__ for entry in SCREENS)


async def test_in_a_hundred_columns_no_figure_of_queue_cache_and_host_is_cut_off():
    app = app_with(recorded())
    async with app.run_test(size=(100, 32)) as pilot:
        await settled(pilot)
        lines = screen_lines(app)
    top = next(index for index, line in enumerate(lines) if "Queue" in line)
    shown = [line for line in lines[top : top + 12] if "needs" not in line and "behind head" not in line]
    assert [line for line in shown if "…" in line] == []
    text = "\n".join(lines)
    for figure in (
        "conv-49",
        "needs 9 blocks, there were 8",
        "recomputed 176 tok",
        "34.1 % of 26.0k tok",
        "req. 94.0 %",
        "memory 5.0/16.0 GiB",
    ):
        assert figure in text, figure
