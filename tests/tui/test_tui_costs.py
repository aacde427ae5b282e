"""What a frame costs: nothing when nothing changed, and only what changed otherwise."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest
from textual.css import stylesheet
from tui_fakes import app_with, go, recorded, settled

from kvtop.engine.events import Keyframe, Notice, RunStarted
from kvtop.state.model import FRESH, IDLE, USED, PoolState
from kvtop.tui.app import KvtopApp
from kvtop.tui.widgets.block_map import BlockMap
from kvtop.tui.widgets.cells import LOOKS, cell_codes
from kvtop.tui.widgets.line_table import LineTable
from kvtop.tui.widgets.lines import DrawnWidget


def count_renders(monkeypatch) -> list[str]:
    """Names of the widgets whose rows were drawn anew, from now on."""
    drawn: list[str] = []
    original = DrawnWidget.strip_of

    def counted(self, *args, **kwargs):
        drawn.append(type(self).__name__)
        return original(self, *args, **kwargs)

    monkeypatch.setattr(DrawnWidget, "strip_of", counted)
    return drawn


async def test_nothing_is_drawn_while_nothing_changes(monkeypatch):
    app = app_with(recorded())
    async with app.run_test(size=(120, 40)) as pilot:
        await settled(pilot)
        drawn = count_renders(monkeypatch)
        for _ in range(20):
            app.tick()
            await pilot.pause()
        assert drawn == []


async def test_the_screen_under_a_dialog_is_not_drawn(monkeypatch):
    app = app_with([RunStarted(run_id="r", manifest={}), *recorded()[1:-50]])
    async with app.run_test(size=(120, 40)) as pilot:
        await settled(pilot)
        await pilot.press("question_mark")
        await settled(pilot)
        drawn = count_renders(monkeypatch)
        await settled(pilot, *recorded()[-50:])
        assert drawn == []
        await pilot.press("escape")
        await settled(pilot)
        assert drawn


async def test_a_hidden_screen_is_not_drawn_and_catches_up_when_it_is_shown(monkeypatch):
    app = app_with(recorded()[:-50])
    async with app.run_test(size=(120, 40)) as pilot:
        await settled(pilot)
        await go(pilot, "4")
        table = app.screen.query_one(LineTable)
        await go(pilot, "1")
        shown: list[str] = []
        original = LineTable.set_rows

        def counted(self, *args):
            if self is table:
                shown.append("rows")
            original(self, *args)

        monkeypatch.setattr(LineTable, "set_rows", counted)
        await settled(pilot, *recorded()[-50:])
        assert not shown
        before = list(table.ids)
        await go(pilot, "4")
        assert shown
        assert table.ids != before


async def test_a_screen_shown_again_draws_only_rows_that_differ(monkeypatch):
    app = app_with(recorded())
    async with app.run_test(size=(120, 40)) as pilot:
        await settled(pilot)
        await go(pilot, "4", "1")
        drawn = count_renders(monkeypatch)
        await go(pilot, "4", "1")
        assert len(drawn) < 12, drawn  # of some eighty rows: the footer, and what the focus marks
        drawn.clear()
        await go(pilot, "t")  # a look that is another
        assert len(drawn) > 30


def count_styles_read(monkeypatch) -> Counter[tuple[str, int]]:
    """From now on, by name and rank: those of a class rank lower once there is a widget of a subclass."""
    read: Counter[tuple[str, int]] = Counter()
    original = vars(stylesheet)["parse"]

    def counted(scope, css, read_from, *, tie_breaker=0, **kwargs):
        read[read_from[1] or read_from[0], tie_breaker] += 1
        return original(scope, css, read_from, tie_breaker=tie_breaker, **kwargs)

    monkeypatch.setattr(stylesheet, "parse", counted)
    return read


@pytest.mark.parametrize("theme", ["dark", "light"])
async def test_styles_are_read_once_until_the_first_paint_and_for_the_next_screen_only_its_own(monkeypatch, theme):
    monkeypatch.setattr(KvtopApp, "is_at_rest", False)  # nothing is made ready ahead
    read = count_styles_read(monkeypatch)
    app = app_with(recorded(), theme=theme)
    async with app.run_test(size=(120, 40)) as pilot:
        await settled(pilot)
        assert "OverviewScreen.CSS" in {name for name, _ in read}
        assert set(read.values()) == {1}, read
        read.clear()
        await go(pilot, "5")
        assert "LatencyScreen.CSS" in {name for name, _ in read}
        assert "OverviewScreen.CSS" not in {name for name, _ in read}
        assert set(read.values()) == {1}, read
        ground = app.screen.styles.background
        await go(pilot, "t")
        assert app.screen.styles.background != ground  # all of them in the other theme
        assert "OverviewScreen.CSS" in {name for name, _ in read}


def big_pool(num_blocks: int) -> list:
    key = Keyframe(step=1, t_ns=1, num_blocks=num_blocks, block_size=16, blocks=[], sequences=[], totals={})
    return [RunStarted(run_id="r", manifest={}), key]


def use(app: KvtopApp, block: int) -> None:
    pool = app.state.pool
    assert pool is not None
    pool.state[block], pool.refcount[block], pool.filled[block] = USED, 1, 16
    pool.dirty.add(block)


async def test_a_map_of_100000_blocks_builds_only_rows_that_changed(monkeypatch):
    app = app_with(big_pool(100_000))
    async with app.run_test(size=(200, 50)) as pilot:
        await settled(pilot)
        await go(pilot, "2")
        block_map = app.screen.query_one(BlockMap)
        assert block_map.grid.density > 1
        a_row = block_map.grid.blocks_a_row
        built: list[int] = []
        original = BlockMap._build

        def counted(self, row, codes):
            built.append(row)
            return original(self, row, codes)

        monkeypatch.setattr(BlockMap, "_build", counted)
        for block in range(3 * a_row, 3 * a_row + block_map.grid.density):
            use(app, block)
        await settled(pilot, Notice(t_ns=2, text="x"))
        assert set(built) == {3}
        assert "▪" in block_map.render_line(3).text


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("density", [1, 3, 40, 200])
def test_in_the_order_of_their_ids_blocks_need_not_be_put_in_order(look, density):
    pool, rng = PoolState.empty(97, 16), random.Random(density)
    for block in range(97):
        pool.state[block], pool.refcount[block] = rng.choice([(USED, 1), (USED, 3), (IDLE, 0), (FRESH, 0)])
        pool.filled[block], pool.uses[block], pool.since_step[block] = rng.choice((3, 16)), block % 13, block
    hues, published = np.arange(97, dtype=np.uint8) % 9, np.arange(97) % 2 == 0
    rest = density, look, 1_000, hues, published, np.arange(97) % 30 == 7
    assert cell_codes(pool, None, *rest).tolist() == cell_codes(pool, np.arange(97), *rest).tolist()


async def test_the_map_keeps_up_with_changes_made_while_it_could_not_be_seen():
    app = app_with(big_pool(100))
    async with app.run_test(size=(120, 40)) as pilot:
        await settled(pilot)
        await go(pilot, "2")
        block_map = app.screen.query_one(BlockMap)
        await pilot.press("question_mark")
        use(app, 0)
        await settled(pilot, Notice(t_ns=2, text="x"))
        await pilot.press("escape")
        await go(pilot, "1")
        use(app, 1)
        await settled(pilot, Notice(t_ns=3, text="y"))
        await go(pilot, "2")
        assert block_map.render_line(0).text.split()[1:4] == ["▪", "▪", "."]
