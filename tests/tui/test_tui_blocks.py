"""The block map and what stands beside it: cells against a recount, orders, looks, the cursor, leads, history."""

from __future__ import annotations

import random
import time
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tui_fakes import app_with, go, recorded, screen_text, settled

from kvtop.engine.events import BlockRow, Keyframe, RunStarted, SequenceRow
from kvtop.state.block_history import BlockEvent
from kvtop.state.model import FRESH, IDLE, IN_TRANSFER, USED, PoolState
from kvtop.tui import block_view
from kvtop.tui.glyphs import to_ascii
from kvtop.tui.panels.block_history import BlockHistoryPanel, cells
from kvtop.tui.widgets.block_map import BlockMap
from kvtop.tui.widgets.cells import LIT, LOOKS, cell_codes, glyph_of, hue_of, style_of
from kvtop.tui.widgets.line_table import LineTable


@pytest.fixture(autouse=True)
def _blocks_take_their_places_at_once(monkeypatch):
    monkeypatch.setattr(block_view, "RESORT_S", 0.0)


def random_pool(rng: random.Random, num_blocks: int) -> PoolState:
    pool = PoolState.empty(num_blocks, 16)
    for block in range(num_blocks):
        state = pool.state[block] = rng.choice((FRESH, IDLE, USED, USED, IN_TRANSFER))
        pool.refcount[block] = rng.choice((1, 1, 2, 5, 12)) if state == USED else 0
        pool.filled[block] = rng.choice((0, 7, 16)) if state != FRESH else 0
        pool.uses[block] = rng.choice((0, 0, 1, 4, 30)) if state in (IDLE, USED) else 0
        pool.since_step[block] = rng.choice((-1, 0, 50, 98, 100)) if state != FRESH else -1
    return pool


def plain_code(pool: PoolState, blocks: list[int], look: str, published: list[bool]) -> str:
    """The glyph of one cell, block by block, from the words of the help."""
    counts = Counter(pool.state[b] for b in blocks)
    most = max((IN_TRANSFER, USED, IDLE, FRESH), key=lambda s: counts[s])
    glyph = {FRESH: ".", IDLE: "░", IN_TRANSFER: "~"}.get(most, "▪")
    used = [b for b in blocks if pool.state[b] == USED]
    highest = max((pool.refcount[b] for b in used), default=0)
    if look == "refcount" and most == USED:
        partly = sum(pool.filled[b] < 16 for b in used)
        glyph = "+" if highest > 9 else str(highest) if highest > 1 else "▫" if 2 * partly > len(used) else "▪"
    elif look == "heat" and most != FRESH:
        hits = [pool.uses[b] for b in blocks if published[b]]
        glyph = glyph if not hits else "+" if max(hits) > 9 else str(max(hits))
    elif look == "age" and most != FRESH:
        ages = [100 - pool.since_step[b] for b in blocks if pool.state[b] != FRESH and pool.since_step[b] >= 0]
        digit = next((n for n in range(10) if max(ages) < 2 ** (n + 1)), 10) if ages else None
        glyph = "?" if digit is None else "+" if digit == 10 else str(digit)
    return glyph


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    num_blocks=st.integers(1, 60),
    density=st.integers(1, 7),
    look=st.sampled_from(["refcount", "heat", "age"]),
)
def test_cells_show_what_most_of_their_blocks_are_and_the_highest_number(seed, num_blocks, density, look):
    import numpy as np

    rng = random.Random(seed)
    pool = random_pool(rng, num_blocks)
    published = [pool.state[b] == IDLE or (pool.state[b] == USED and rng.random() < 0.5) for b in range(num_blocks)]
    order = rng.sample(range(num_blocks), num_blocks)
    lit = [rng.random() < 0.1 for _ in range(num_blocks)]
    codes = cell_codes(
        pool, np.array(order), density, look, 100, published=np.array(published), lit=np.array(lit)
    ).tolist()
    cells = [order[i : i + density] for i in range(0, num_blocks, density)]
    assert [glyph_of(code & ~LIT) for code in codes] == [plain_code(pool, cell, look, published) for cell in cells]
    assert [bool(code & LIT) for code in codes] == [any(lit[b] for b in cell) for cell in cells]


def test_an_owners_colour_is_that_of_most_of_the_cells_used_blocks_and_a_letter_without_colours():
    import numpy as np

    pool = PoolState.empty(4, 16)
    names = ["r1", "r2"]
    assert hue_of("r1") != hue_of("r2")
    assert hue_of("r1") == hue_of("r1#2")
    hues = np.array([hue_of(names[0]), hue_of(names[1]), hue_of(names[1]), 0], np.uint8)
    for block in range(3):
        pool.state[block], pool.refcount[block], pool.filled[block] = USED, 1, 16
    (one, two, *_) = cell_codes(pool, np.arange(4), 1, "owner", 0, hues).tolist()
    assert style_of(one) == f"owner{hue_of('r1')}"
    assert (glyph_of(one), glyph_of(two, letters=True)) == ("▪", "abcdefgh"[hue_of("r2") - 1])
    assert style_of(cell_codes(pool, np.arange(4), 4, "owner", 0, hues).tolist()[0]) == f"owner{hue_of('r2')}"


def test_every_look_is_complete_in_ascii():
    for code in range(32):
        assert to_ascii(glyph_of(code)).isascii()
        assert "?" not in to_ascii(glyph_of(code)) or glyph_of(code) == "?"
    plain = [to_ascii(glyph_of(code)) for code in (0, 1, 11, 12, 13)]
    assert len(set(plain)) == len(plain)


def keyframe() -> Keyframe:
    blocks = [
        BlockRow(0, "used", 1, 16, 100, 0, 3, 5, 2, 0),
        BlockRow(1, "idle", 0, 16, 101, 100, 4, 6, 0, 0),
        BlockRow(2, "idle", 0, 16, 200, 0, 2, 2, 0, 0),
    ]
    row = SequenceRow("a", "a", "running", 20, 20, 20, 9, 0, 0, [0], "", "", 0, 0, None, None)
    return Keyframe(step=7, t_ns=10**9, num_blocks=64, block_size=16, blocks=blocks, sequences=[row], totals={})


async def test_in_the_order_of_eviction_what_goes_next_stands_first_and_the_cursor_stays_on_its_block():
    app = app_with([RunStarted(run_id="r", manifest={}), keyframe()])
    async with app.run_test(size=(120, 40)) as pilot:
        await settled(pilot)
        await go(pilot, "2", "o")
        block_map = app.screen.query_one(BlockMap)
        assert block_map.view.order is not None
        assert block_map.view.order.tolist()[:3] == [3, 4, 5]
        assert block_map.view.order.tolist()[-3:] == [2, 1, 0]
        text = screen_text(app)
        assert "order eviction (lru)" in text
        assert "next is top left" in text
        block_map.move_to(1)
        await settled(pilot)
        assert "after 1 other and 61 fresh" in screen_text(app)
        assert "not reported: no eviction" in screen_text(app)
        await go(pilot, "left")
        assert block_map.cursor == 2
        assert "evicted   next" in screen_text(app)
        await go(pilot, "o")
        assert block_map.cursor == 2
        assert "order owner" in screen_text(app)


async def test_a_policy_whose_order_is_not_known_is_left_out_and_says_so():
    app = app_with([RunStarted(run_id="r", manifest={"eviction": "mine.py:key"}), keyframe()])
    async with app.run_test(size=(120, 40)) as pilot:
        await settled(pilot)
        await go(pilot, "2", "o")
        assert "order owner" in screen_text(app)
        app.screen.query_one(BlockMap).move_to(1)
        await settled(pilot)
        assert "not reported: policy mine.py:key" in screen_text(app)


@pytest.mark.parametrize("size", [(60, 16), (120, 40)], ids=str)
async def test_every_look_and_order_draws_at_every_size(size):
    app = app_with(recorded())
    async with app.run_test(size=size) as pilot:
        await settled(pilot)
        await go(pilot, "2")
        seen = set()
        for _ in LOOKS:
            for _ in range(5):
                await pilot.press("o")
            await go(pilot, "g")
            seen.add(app.screen.query_one(BlockMap).look)
        assert seen == set(LOOKS)


async def test_enter_on_an_idle_block_leads_to_its_prefix_and_back_to_the_block():
    app = app_with([RunStarted(run_id="r", manifest={}), keyframe()])
    async with app.run_test(size=(120, 40)) as pilot:
        await settled(pilot)
        await go(pilot, "2", "right", "right", "enter")
        assert "Radix tree" in screen_text(app)
        assert app.screen.query_one(LineTable).selected == "200"
        await go(pilot, "enter")
        assert "Block map" in screen_text(app)
        block_map = app.screen.query_one(BlockMap)
        assert block_map.cursor == 2
        assert block_map._lit == {2}


async def test_the_history_goes_to_a_step_and_follows_a_block_through_time():
    app = app_with(recorded())
    async with app.run_test(size=(120, 40)) as pilot:
        await settled(pilot)
        await go(pilot, "2")
        app.screen.query_one(BlockMap).move_to(33)
        await settled(pilot)
        panel = app.screen.query_one(BlockHistoryPanel)
        assert panel.history is not None
        while not panel.history.is_whole:
            await pilot.pause(0.05)
        steps = panel.steps()
        assert len(steps) > 4
        assert "taken by" in screen_text(app)
        await go(pilot, "f", "comma", "comma")
        assert app.timeline.view.step == steps[-2]
        await go(pilot, "full_stop")
        assert app.timeline.view.step == steps[-1]
        assert all(entry.step <= steps[-1] for entry in panel._shown)
        panel.table.focus()
        await go(pilot, "down", "down", "down", "down", "enter")
        assert app.timeline.view.step in steps[:-1]
        pool = app.timeline.view.pool
        assert pool is not None
        assert len(pool.owners[33]) == pool.refcount[33]


async def test_a_map_that_fell_silent_puts_its_blocks_in_their_places(monkeypatch):
    monkeypatch.setattr(block_view, "RESORT_S", 0.3)
    app = app_with(recorded()[:-60])
    async with app.run_test(size=(120, 40)) as pilot:
        await settled(pilot)
        await go(pilot, "2", "o", "o", "o", "o")
        block_map = app.screen.query_one(BlockMap)
        assert block_map.view.order_name == "age"
        await settled(pilot, *recorded()[-60:])
        pool, deadline_s = app.state.pool, time.monotonic() + 30
        assert pool is not None
        while True:
            assert block_map.view.order is not None
            ages = [pool.since_step[b] for b in block_map.view.order.tolist() if pool.state[b] != FRESH]
            if ages == sorted(ages):
                break
            assert time.monotonic() < deadline_s
            await pilot.pause(0.05)


def test_a_reset_of_our_own_engine_is_called_one():
    assert cells(BlockEvent(4, ("unpublish", 0, 7, 99, "reset")), False)[1][0] == "unpublished by a reset"
