"""The live screen under a user's hands: keys, selection, dialogs, sizes, hostile text."""

from __future__ import annotations

import random

import pytest
from rich.cells import cell_len
from tui_fakes import FakeSession, app_with, go, recorded, screen_lines, screen_text, settled
from tui_keyframes import keyframe, sequence, started, used

from kvtop.engine.events import Notice, Pause, Paused, Resume, Resumed, RunEnded, Step
from kvtop.tui.screens import SCREENS
from kvtop.tui.screens.dialogs import FailureScreen, HelpScreen, help_text
from kvtop.tui.widgets.block_map import BlockMap
from kvtop.tui.widgets.line_table import LineTable


async def test_a_timer_that_fires_while_the_screens_are_taken_apart_does_nothing():
    app = app_with([started(), keyframe()])
    async with app.run_test(size=(80, 24)) as pilot:
        await settled(pilot)
    session = app.session
    assert isinstance(session, FakeSession)
    session.events.append(Notice(t_ns=0, text="too late"))
    app.tick()
    assert session.events


async def test_without_prefix_caching_there_is_no_hit_rate_not_one_of_zero():
    for caching, shown in ((True, "prefix hits 0.0 % of 374"), (False, "prefix hits prefix caching is off")):
        frame = keyframe()
        frame.totals["query_tokens"] = 374
        app = app_with([started(prefix_caching=caching), frame])
        async with app.run_test(size=(80, 24)) as pilot:
            await settled(pilot)
            assert shown in screen_text(app)


async def test_hits_in_host_memory_are_shown_where_there_is_a_host_tier():
    for blocks, size, line in (
        (64, (80, 24), "host hits 25.0 %"),
        (64, (140, 50), "host hits 25.0 %  12 of 64 blocks"),
        (0, (80, 24), "prefix hits 5.0 % of 400"),
    ):
        frame = keyframe()
        frame.totals.update(query_tokens=400, hit_tokens=20, host_hit_tokens=100, host_cached=12)
        app = app_with([started(host_cache_blocks=blocks), frame])
        async with app.run_test(size=size) as pilot:
            await settled(pilot)
            assert line in screen_text(app)
            assert ("host hits" in screen_text(app)) == bool(blocks)
            assert "evictions 0" in screen_text(app)


async def test_p_pauses_then_resumes_and_n_steps_only_while_paused():
    app = app_with([started(), keyframe()])
    async with app.run_test(size=(80, 24)) as pilot:
        await settled(pilot)
        session = app.session
        assert isinstance(session, FakeSession)
        await pilot.press("n")
        assert session.sent == []
        await pilot.press("p")
        assert session.sent == [Pause()]
        await settled(pilot, Paused(t_ns=2_000_000_001))
        assert "paused" in screen_lines(app)[0]
        assert "next step" in screen_lines(app)[-1]
        assert "resume" in screen_lines(app)[-1]
        await pilot.press("n", "p")
        assert session.sent[1:] == [Step(1), Resume()]
        await settled(pilot, Resumed(t_ns=2_000_000_002))
        assert "next step" not in screen_lines(app)[-1]
        assert "pause" in screen_lines(app)[-1]


@pytest.mark.parametrize(
    ("reason", "blocker", "expected"),
    [
        ("no_blocks", "", "not enough blocks available"),
        ("seats", "", "all 8 seats taken"),
        ("head_of_line", "r9", "behind r9"),
        ("budget", "", "step's token budget spent"),
        ("preempting", "r3", "r3 was preempted in this step"),
        ("pinned", "", "the blocks it needs are pinned"),
    ],
)
async def test_a_waiting_request_says_why_even_at_80_columns(reason, blocker, expected):
    app = app_with([started(), keyframe(sequence("w", "waiting", [], reason, blocker))])
    async with app.run_test(size=(80, 24)) as pilot:
        await settled(pilot)
        await go(pilot, "4")
        assert expected in screen_text(app)


async def test_waiting_for_blocks_shows_need_and_have():
    app = app_with([started(), keyframe(sequence("w", "waiting", [], "no_blocks"))])
    async with app.run_test(size=(80, 24)) as pilot:
        await settled(pilot)
        await go(pilot, "4")
        waiting = app.state.sequences["w"]
        waiting.need_blocks, waiting.have_blocks = 382, 19
        await settled(pilot, Notice(t_ns=0, text="x"))
        assert "needs 382 blocks, 64 there now" in screen_text(app)


async def test_running_rows_come_before_the_queue():
    rows = [sequence("late", "waiting", [], "seats"), sequence("early", "running", [0])]
    app = app_with([started(), keyframe(*rows, blocks=[used(0, 1)])])
    async with app.run_test(size=(80, 24)) as pilot:
        await settled(pilot)
        await go(pilot, "4")
        assert app.screen.query_one(LineTable).ids == ["early", "late"]


async def test_selection_follows_the_request_and_moves_on_when_it_is_gone():
    rows = [sequence(name, "running", []) for name in ("a", "b", "c")]
    app = app_with([started(), keyframe(*rows)])
    async with app.run_test(size=(80, 24)) as pilot:
        await settled(pilot)
        await go(pilot, "4")
        table = app.screen.query_one(LineTable)
        await pilot.press("down")
        assert table.selected == "b"
        await settled(pilot, keyframe(*reversed(rows)))
        assert table.selected == "b"
        await settled(pilot, keyframe(rows[0], rows[2]))
        assert table.selected == "c"


@pytest.mark.parametrize("key", [entry.key for entry in SCREENS])
async def test_help_scrolls_at_80x24_and_says_every_definition(key):
    app = app_with(recorded())
    async with app.run_test(size=(80, 24)) as pilot:
        await settled(pilot)
        await go(pilot, key)
        words = help_text(app.screen).splitlines()
        assert max(map(cell_len, words)) <= 75
        await go(pilot, "question_mark")
        assert isinstance(app.screen, HelpScreen)
        seen = set()
        for _ in range(len(words) // 8 + 2):
            seen.update(line.strip(" │") for line in screen_lines(app))
            await go(pilot, "pagedown")
        for line in words:
            assert any(line.strip() in s for s in seen), line
        await pilot.press("q")
        assert not isinstance(app.screen, HelpScreen)
        assert app.is_running


async def test_a_failed_run_shows_its_traceback_stays_and_exits_with_its_code():
    end = RunEnded(t_ns=9, status="failed", error="boom", traceback="Traceback:\n  ValueError: [/] boom", exit_code=1)
    app = app_with([started(), keyframe()])
    async with app.run_test(size=(80, 24)) as pilot:
        await settled(pilot, end)
        assert isinstance(app.screen, FailureScreen)
        text = screen_text(app)
        assert "The engine failed: boom" in text
        assert "ValueError: [/] boom" in text
        await pilot.press("escape")
        await settled(pilot)
        assert "failed" in screen_lines(app)[0]
        assert "boom" in screen_lines(app)[1]
        await pilot.press("E")
        assert isinstance(app.screen, FailureScreen)
        await pilot.press("q")
    assert app.return_code == 1


@pytest.mark.parametrize("status", ["complete", "interrupted"])
async def test_a_run_that_ended_says_so_and_exits_with_0(status):
    app = app_with([started(), keyframe(), RunEnded(t_ns=9, status=status)])
    async with app.run_test(size=(80, 24)) as pilot:
        await settled(pilot)
        assert status in screen_lines(app)[0]
        assert "pause" not in screen_lines(app)[-1]
        await pilot.press("q")
    assert app.return_code == 0


async def test_a_session_that_cannot_be_read_is_a_failed_run_not_a_crash():
    app = app_with([started()])
    async with app.run_test(size=(80, 24)) as pilot:
        await settled(pilot)
        app.session.poll = broken_poll
        app.tick()
        await settled(pilot)
        assert "cannot follow the run: OSError: pipe" in screen_text(app)
    assert app.run_exit_code() == 1


def broken_poll(timeout_s: float = 0.0):
    raise OSError("pipe")


async def test_one_ctrl_c_warns_and_the_second_quits():
    app = app_with([started()])
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("ctrl+c")
        assert app.is_running
        assert app.return_code is None
        await pilot.press("ctrl+c")
    assert app.return_code == 130


HOSTILE = [
    "[/]",
    "[red]x",
    "\x1b]0;x\x07",
    "a\x9bb\rc\nd",
    "\u202eabc\u200b",
    "模型名字",
    "e\u0301👩\u200d👩\ufe0f",
    "x" * 300,
]


@pytest.mark.parametrize("size", [(80, 24), (131, 41), (200, 50)])
async def test_hostile_names_are_shown_literally_and_never_break_a_line(size):
    app = app_with()
    async with app.run_test(size=size) as pilot:
        for name in HOSTILE:
            manifest = {"model": name, "workload": name, "policy": name, "device": name}
            rows = [sequence(name, "running", [0]), sequence(f"w{name}", "waiting", [], "head_of_line", name)]
            frame = keyframe(*rows, blocks=[used(0, 1)])
            await settled(pilot, started(**manifest), Notice(t_ns=0, text=name, level="warning"), frame)
            for entry in SCREENS:
                await go(pilot, entry.key)
                lines = screen_lines(app)
                assert all(cell_len(line) == size[0] for line in lines)
                assert not {c for line in lines for c in line} & set("\x1b\x07\x9b\r\n\u202e\u200b\u200d\ufe0f")
                if name.isprintable() and len(name) < 20:
                    assert name in lines[0]
                    assert f"behind {name}" in screen_text(app) or entry.name != "Requests"


async def test_no_size_raises_and_every_row_is_full():
    rng = random.Random(3)
    keys = [entry.key for entry in SCREENS] + ["space", "left_square_bracket", "full_stop", "m"]
    app = app_with(recorded())
    async with app.run_test(size=(80, 24)) as pilot:
        await settled(pilot)
        for i in range(60):
            width, height = rng.randint(1, 200), rng.randint(1, 60)
            await pilot.resize_terminal(width, height)
            await pilot.press(
                rng.choice(["down", "end", "d", "z", "tab", "pageup", "enter", "question_mark", "escape", *keys])
            )
            await pilot.pause()
            lines = screen_lines(app)
            assert len(lines) == height, i
            assert all(cell_len(line) == width for line in lines), (i, width, height)


@pytest.mark.parametrize("size", [(59, 40), (200, 15), (30, 3)])
async def test_a_screen_too_small_says_what_it_needs(size):
    app = app_with([started(), keyframe(sequence("a", "running", []))])
    async with app.run_test(size=size) as pilot:
        await settled(pilot)
        text = screen_text(app)
        assert "running step 7" in text
        assert "1 request running, 0 waiting" in text
        assert "terminal too small, need 60x16"[: size[0] - 1] in text
        await pilot.resize_terminal(60, 16)
        await settled(pilot)
        assert "Pool" in screen_text(app)


async def test_loading_shows_a_progress_bar_and_no_keys_of_a_running_engine():
    app = app_with([Notice(t_ns=0, text="converting the model", progress=0.42)])
    async with app.run_test(size=(80, 24)) as pilot:
        await settled(pilot)
        first, second, *_, footer = screen_lines(app)
        assert "loading" in first
        assert "42 %  converting the model" in second
        assert "pause" not in footer


async def test_simulated_runs_and_virtual_time_are_marked():
    app = app_with([started(executor="null", clock="virtual"), keyframe()])
    async with app.run_test(size=(80, 24)) as pilot:
        await settled(pilot)
        assert "SIMULATED" in screen_text(app)
        assert "VIRTUAL TIME" in screen_text(app)
    app = app_with([started(), keyframe()])
    async with app.run_test(size=(80, 24)) as pilot:
        await settled(pilot)
        assert "SIMULATED" not in screen_text(app)
        assert "real time" in screen_text(app)


async def test_missing_numbers_say_so_instead_of_showing_zero():
    app = app_with([started(), keyframe()])
    async with app.run_test(size=(80, 24)) as pilot:
        await settled(pilot)
        text = screen_text(app)
        assert "no lookups yet" in text
        assert text.count("no samples yet") == 3
        assert "prefill      - tok/s" in text


async def test_ascii_draws_nothing_else():
    app = app_with(recorded(), ascii=True)
    async with app.run_test(size=(120, 40)) as pilot:
        await settled(pilot)
        for entry in SCREENS:
            await go(pilot, entry.key, "space", "left_square_bracket")
            assert screen_text(app).isascii()
        await pilot.press("question_mark")
        await settled(pilot)
        assert screen_text(app).isascii()


async def test_without_colour_nothing_is_coloured_and_the_cursor_still_shows(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    app = app_with(recorded())
    async with app.run_test(size=(80, 24)) as pilot:
        await settled(pilot)
        await go(pilot, "2")
        block_map = app.screen.query_one(BlockMap)
        strips = app.screen._compositor.render_strips()
        filtered = [segment for strip in strips for segment in _filtered(app, strip)]
        assert all(s.style is None or s.style.color is None or s.style.color.is_default for s in filtered)
        cursor = block_map.render_line(0)
        assert any(s.style and s.style.reverse for s in cursor)


def _filtered(app, strip):
    from textual.color import Color

    segments = list(strip)
    for line_filter in app._filters:
        if line_filter.enabled:
            segments = line_filter.apply(segments, Color.parse("#000000"))
    return segments
