"""What a frame costs: nothing when nothing changed, and only what changed otherwise."""

from __future__ import annotations

from tui_fakes import app_with, go, recorded, settled

from kvtop.engine.events import Keyframe, Notice, RunStarted
from kvtop.state.model import USED
from kvtop.tui.app import KvtopApp
from kvtop.tui.widgets.block_map import BlockMap
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
