"""The cursor on the block map: what it tells, where it leads, and that it stays on its block."""

from __future__ import annotations

from tui_fakes import app_with, go, screen_lines, screen_text, settled
from tui_keyframes import keyframe, sequence, started, used

from kvtop.tui.widgets.block_map import BlockMap
from kvtop.tui.widgets.line_table import LineTable


async def test_the_cursor_tells_who_holds_a_block_and_which_positions():
    blocks = [used(3, 2), used(4, 1, filled=8, key=None)]
    rows = [sequence("alice", "running", [3, 4]), sequence("bob", "running", [3])]
    app = app_with([started(), keyframe(*rows, blocks=blocks)])
    async with app.run_test(size=(80, 24)) as pilot:
        await settled(pilot)
        await go(pilot, "2")
        assert "held by nobody" in screen_text(app)
        await pilot.press("right", "right", "l")
        await settled(pilot)
        text = screen_text(app)
        assert "block 3  shared by 2  tokens 16/16" in text
        assert "held by alice bob  positions 0-15  published as abcd1234" in text
        await pilot.press("right")
        await settled(pilot)
        text = screen_text(app)
        assert "block 4  used by 1  tokens 8/16" in text
        assert "held by alice  positions 16-31  not published" in text


async def test_enter_on_a_block_leads_to_its_owner_and_escape_back_to_the_block():
    rows = [sequence("alice", "running", [5]), sequence("bob", "running", [5])]
    app = app_with([started(), keyframe(*rows, blocks=[used(5, 2)])])
    async with app.run_test(size=(80, 24)) as pilot:
        await settled(pilot)
        for owner in ("alice", "bob", "alice"):  # each time the next one
            await go(pilot, "2")
            app.screen.query_one(BlockMap).move_to(5)
            await go(pilot, "enter")
            assert app.screen.query_one(LineTable).selected == owner
            assert app.selected["request"] == owner
            await go(pilot, "escape")
            assert app.screen.query_one(BlockMap).cursor == 5
            assert app.screen.query_one(BlockMap)._lit == {5}


async def test_the_cursor_stays_on_its_block_when_the_size_changes_the_density():
    app = app_with([started(), keyframe(num_blocks=5000)])
    async with app.run_test(size=(200, 50)) as pilot:
        await settled(pilot)
        await go(pilot, "2")
        block_map = app.screen.query_one(BlockMap)
        block_map.move_to(4321)
        before = block_map.grid.density
        await pilot.resize_terminal(80, 24)
        await settled(pilot)
        assert block_map.grid.density > before
        assert block_map.cursor == 4321


async def test_d_shows_one_block_a_cell_and_scrolls_to_the_cursor():
    app = app_with([started(), keyframe(num_blocks=5000)])
    async with app.run_test(size=(80, 24)) as pilot:
        await settled(pilot)
        await go(pilot, "2")
        block_map = app.screen.query_one(BlockMap)
        assert f"1 cell = {block_map.grid.density} blocks" in screen_text(app)
        await pilot.press("d", "end")
        await settled(pilot)
        assert block_map.grid.density == 1
        assert "block 4,999" in screen_text(app)
        assert f"of {block_map.grid.num_rows}" in screen_text(app)
        await pilot.press("home", "pagedown", "up", "pageup")
        assert block_map.cursor == 0


async def test_room_under_a_small_map_lists_who_holds_most():
    blocks = [used(i, 2 if i == 0 else 1) for i in range(9)]
    rows = [sequence("small", "running", [0, 1]), sequence("large", "running", [0, *range(2, 9)])]
    app = app_with([started(), keyframe(*rows, blocks=blocks)])
    async with app.run_test(size=(200, 50)) as pilot:
        await settled(pilot)
        await go(pilot, "2")
        lines = screen_lines(app)
        heading = next(y for y, line in enumerate(lines) if line.startswith("held most by"))
        assert lines[heading + 1].split()[:4] == ["large", "8", "12.5", "%"]
        assert "1 shared" in lines[heading + 1]
        assert lines[heading + 2].split()[:4] == ["small", "2", "3.1", "%"]
