"""At every width a number is shown whole or not at all, and what matters most is there at the smallest size.

Each screen is walked from 40 to 80 columns. What stands at an edge, of a panel or of the screen, or before an ellipsis,
is what may have been cut: such a number has to be one that a screen with room has, too.
"""

from __future__ import annotations

import asyncio
import re
from functools import cache

import pytest
from test_tui_values import split_values
from textual.pilot import Pilot
from tui_fakes import app_with, go, recorded, screen_lines, screen_text, settled
from tui_looks import SIZES, looks
from tui_states import STATES, app_in, compared, pair_in, reach

from kvtop.tui.app import KvtopApp
from kvtop.tui.panels.base import Panel
from kvtop.tui.screens import SCREENS, frame_screen
from kvtop.tui.screens.base import MIN_HEIGHT, MIN_WIDTH

LIVE = STATES[0]
WIDTHS = range(40, 81)
HEIGHTS = (MIN_HEIGHT, 24)
NUMBER = re.compile(r"\d[\d.,:/]*")
AT_EDGE = re.compile(r"(?<![\w.,:/#-])\d[\d.,:/]*(?:$|(?=…))")  # no part of a name: conv-49

SAID = (
    "the mouse is kvtop's again", "the mouse is the terminal's now; M takes it back",
    "this terminal's mouse cannot be turned off here",
)  # fmt: skip

Rows = list[tuple[str, int]]
"""Rows of a panel or of the whole screen, each with the width it has."""


@cache
def walked() -> dict[tuple[str, int, int], Rows]:
    """By screen, width and height. The same applications are made narrower and wider again, as a terminal is."""
    found: dict[tuple[str, int, int], Rows] = {}
    asyncio.run(_walk_one(found))
    asyncio.run(_walk_two(found))
    return found


async def _walk_one(found: dict[tuple[str, int, int], Rows]) -> None:
    app = app_in(LIVE)
    async with app.run_test(size=(120, 40)) as pilot:
        await reach(pilot, LIVE)
        for entry in SCREENS:
            if entry.name != "Compare":
                await go(pilot, entry.key)
                await _walk(pilot, entry.name, found)


async def _walk_two(found: dict[tuple[str, int, int], Rows]) -> None:
    app = pair_in(LIVE)
    async with app.run_test(size=(120, 40)) as pilot:
        await reach(pilot, LIVE)
        await compared(pilot)
        await _walk(pilot, "Compare", found)


async def _walk(pilot: Pilot, name: str, found: dict[tuple[str, int, int], Rows]) -> None:
    for height in HEIGHTS:
        for width in WIDTHS:
            await pilot.resize_terminal(width, height)
            await settled(pilot)
            found[name, width, height] = _rows(pilot.app)
    await pilot.resize_terminal(120, 40)
    await settled(pilot)


def _rows(app: object) -> Rows:
    assert isinstance(app, KvtopApp)
    lines = screen_lines(app)
    rows = [(line, app.size.width) for line in lines]
    if app.size.width >= MIN_WIDTH and app.size.height >= MIN_HEIGHT:
        for panel in app.screen.query(Panel):
            x, y, width, height = panel.region
            rows += [(line[x : x + width], width) for line in lines[y : y + height]] if panel.region.area else []
    return rows


@cache
def whole_numbers(name: str) -> set[str]:
    """Those of the screen where it has room, and those of any width that stand where nothing can have cut them."""
    rows = [row for size in SIZES[1:] for row in looks(LIVE, size)[name].picture.text]
    for (screen, _, _), narrow in walked().items():
        if screen == name:
            rows += [AT_EDGE.sub("", row) for row, _ in narrow]
    return {number.rstrip(".,:/") for row in rows for number in NUMBER.findall(row)}


@pytest.mark.parametrize("entry", SCREENS, ids=lambda entry: entry.name)
def test_no_number_is_cut_at_any_width(entry):
    cut: list[tuple[int, int, str]] = []
    for (name, width, height), rows in walked().items():
        if name != entry.name:
            continue
        texts = [row for row, _ in rows]
        cut += [(width, height, value) for value in split_values(texts)]
        for row, room in rows:
            for match in AT_EDGE.finditer(row if len(row.rstrip()) == room else row.rstrip() + " "):
                number = match[0].rstrip("….,:/")
                if number not in whole_numbers(name):
                    cut.append((width, height, row.strip()))
    assert cut == []


async def test_the_calculators_figures_are_all_there_at_the_smallest_width():
    """Remarks give way; inputs, results and the head of the fit table are those of the widest screen."""
    app = app_with(recorded())
    async with app.run_test(size=(200, 50)) as pilot:
        await settled(pilot)
        await go(pilot, "7")
        wide = screen_lines(app)
        for width in range(MIN_WIDTH, 81):
            await pilot.resize_terminal(width, 24)
            await settled(pilot)
            narrow = screen_lines(app)
            for name in ("model", "KV dtype", "block size", "tokens a request", "GPU", "shared prefix", "a token",
                         "a block", "weights", "KV budget", "blocks", "requests", "contiguous"):  # fmt: skip
                assert _value_of(name, narrow) == _value_of(name, wide), (width, name)
            head = next(row for row in narrow if row.startswith("tokens "))
            assert head.split() == ["tokens", "1", "2", "4", "8", "16", "32", "64", "128", "256", "requests"]


def _value_of(name: str, rows: list[str]) -> str:
    found = (re.search(rf"(?:^|[ >]){name} +(\S+(?: [KMG]?i?B|\s%)?)", row) for row in rows[3:])
    return next(match[1] for match in found if match)


async def test_overview_of_the_smallest_size_has_what_matters_most():
    app = app_with(recorded())
    async with app.run_test(size=(MIN_WIDTH, MIN_HEIGHT)) as pilot:
        await settled(pilot)
        text = screen_text(app)
        for needed in (r"▪{20}", r"used 505", r"runway 618 ms", r"running 17/24  waiting 4",
                       r"no blocks +1|behind head +3", r"preempted 4  recomputed 176", r"prefix hits 34\.1 % of 26\.0k",
                       r"last 60 s +34\.1 %  req\. 94\.0 %",
                       r"TTFT +74\.7 ms", r"ITL +31\.0 ms", r"prefill +1\.1k", r"decode +502"):  # fmt: skip
            assert re.search(needed, text), (needed, text)
        await pilot.resize_terminal(120, MIN_HEIGHT)
        await settled(pilot)
        text = screen_text(app)
        for needed in (r"runway 618 ms", r"waiting 4", r"34\.1 %", r"TTFT +74\.7 ms", r"short-runway"):
            assert re.search(needed, text), (needed, text)


async def test_what_m_says_hides_no_other_message(monkeypatch):
    monkeypatch.setattr(frame_screen, "toggle_mouse", lambda app: True)
    app = app_with(recorded())
    async with app.run_test(size=(120, 40), notifications=True) as pilot:
        await settled(pilot)
        app.notify("an error that nobody has read yet", timeout=60, severity="error")
        await go(pilot, "M", "M")
        text = screen_text(app)
        assert "an error that nobody has read yet" in text
        assert text.count("the mouse is kvtop's again") == 1


@pytest.mark.parametrize("is_ours", [True, False, None])
@pytest.mark.parametrize("size", [(60, 16), (80, 24), (120, 40)])
async def test_what_m_says_takes_the_place_of_the_keys_alone(monkeypatch, size, is_ours):
    """Header, figures and time line stay: where one is, whether that is simulated, and what is looked at."""
    monkeypatch.setattr(frame_screen, "toggle_mouse", lambda app: is_ours)
    app = app_with(recorded())
    async with app.run_test(size=size, notifications=True) as pilot:
        await settled(pilot)
        before = screen_lines(app)
        await go(pilot, "M", "M")
        now = screen_lines(app)
        changed = [y for y, (was, there) in enumerate(zip(before, now, strict=True)) if was != there]
        assert changed == [size[1] - 1], now
        assert now[-1].strip(" ▌▐") in SAID
