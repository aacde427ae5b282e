"""One cursor in time for all screens: frozen views, steps, moments, marks, playing, recordings; leads."""

from __future__ import annotations

import time

import pytest
from make_frames import PATH
from tui_fakes import FakeSession, app_with, go, recorded, run_by_name, screen_lines, screen_text, settled

from kvtop.engine.errors import UsageError
from kvtop.engine.events import RunEnded, StepEvent
from kvtop.run.recorded import RecordedSession
from kvtop.tui.app import KvtopApp
from kvtop.tui.widgets.line_table import LineTable

LAST = next(event.step for event in reversed(recorded()) if isinstance(event, StepEvent))


async def test_a_frozen_view_stays_while_the_run_goes_on_and_space_returns_to_it():
    app = app_with(recorded()[:-60])
    async with app.run_test(size=(120, 40)) as pilot:
        await settled(pilot)
        await go(pilot, "4", "space")
        frozen = screen_lines(app)
        at = app.timeline.view.step
        assert "FROZEN" in frozen[0]
        await settled(pilot, *recorded()[-60:])
        assert app.state.step == LAST
        assert screen_lines(app)[2:-2] == frozen[2:-2]
        assert f"step {at}" in screen_lines(app)[0]
        assert " ago" in screen_lines(app)[-2]
        await go(pilot, "space")
        assert f"step {LAST}" in screen_lines(app)[0]
        assert "FROZEN" not in screen_lines(app)[0]


async def test_brackets_go_step_by_step_and_every_screen_follows():
    app = app_with(recorded())
    async with app.run_test(size=(120, 40)) as pilot:
        await settled(pilot)
        await go(pilot, "left_square_bracket")
        assert app.timeline.view.step == LAST - 1
        await go(pilot, "left_curly_bracket", "right_square_bracket")
        for key in ("1", "2", "4"):
            await go(pilot, key)
            assert f"step {LAST - 10}" in screen_lines(app)[0]
        ids = app.screen.query_one(LineTable).ids
        assert set(app.timeline.view.sequences) == {row for row in ids if not row.startswith("\x00")}
        await go(pilot, "right_curly_bracket", "right_square_bracket")
        assert app.timeline.at_live


async def test_comma_and_full_stop_go_to_what_happened_and_say_what():
    app = app_with(recorded())
    preempting = [e.step for e in recorded() if isinstance(e, StepEvent) and e.preemptions]
    async with app.run_test(size=(120, 40)) as pilot:
        await settled(pilot)
        await go(pilot, "comma")
        assert app.timeline.view.step == preempting[-1]
        assert "preempt conv-" in screen_lines(app)[-2]
        await go(pilot, "ctrl+home")
        assert app.timeline.view.step == 1
        await go(pilot, "full_stop")
        assert app.timeline.view.step == app.timeline.moments.all[0].step
        await go(pilot, "ctrl+end")
        assert app.timeline.at_live


async def test_a_mark_is_drawn_and_gone_back_to():
    app = app_with(recorded())
    async with app.run_test(size=(120, 40)) as pilot:
        await settled(pilot)
        await go(pilot, *["left_curly_bracket"] * 20, "m")
        at = app.timeline.view.step
        await go(pilot, "space")
        assert "m" in screen_lines(app)[-2].split("─", 1)[1]
        await go(pilot, "apostrophe")
        assert app.timeline.view.step == at


async def test_the_past_plays_until_space_stops_it():
    app = app_with(recorded())
    play = app.timeline.play
    app.timeline.play = lambda seconds: play(0.02 if seconds else 0.0)  # type: ignore[method-assign]  # a tick is so long
    async with app.run_test(size=(120, 40)) as pilot:
        await settled(pilot)
        await go(pilot, "ctrl+home")
        first = app.timeline.view.step
        await pilot.press("greater_than_sign", *["less_than_sign"] * 3)
        assert app.timeline.speed == 0.1
        deadline_s = time.monotonic() + 60
        while app.timeline.view.step == first or "PLAYING" not in screen_lines(app)[0]:
            assert time.monotonic() < deadline_s
            await pilot.pause(0.02)
        await go(pilot, "space")
        at = app.timeline.view.step
        assert first < at < LAST
        for _ in range(10):
            app.tick()
        await pilot.pause()
        assert app.timeline.view.step == at
        assert "FROZEN" in screen_lines(app)[0]


async def test_a_click_on_the_time_line_goes_there():
    app = app_with(recorded())
    async with app.run_test(size=(120, 40)) as pilot:
        await settled(pilot)
        await pilot.click("#scrubber", offset=(60, 0))
        await settled(pilot)
        assert 0.3 * LAST < app.timeline.view.step < 0.7 * LAST


async def test_a_step_is_selected_from_anywhere_and_escape_comes_back():
    app = app_with(recorded())
    async with app.run_test(size=(120, 40)) as pilot:
        await settled(pilot)
        await go(pilot, "2")
        app.select("step", 77)
        await settled(pilot)
        assert "step 77" in screen_lines(app)[0]
        await go(pilot, "escape")
        assert app.timeline.at_live
        assert "Block map" in screen_lines(app)[0]
        await go(pilot, "escape")
        assert "Overview" in screen_lines(app)[0]


async def test_keys_of_an_engine_do_not_apply_to_a_recording_which_is_shown_from_its_start():
    end = RunEnded(t_ns=0, status="failed", error="boom", exit_code=1)
    app = app_with([*recorded(), end], replay=True, speed=0.0)
    async with app.run_test(size=(120, 40)) as pilot:
        await settled(pilot)
        await settled(pilot)
        assert "REPLAY" in screen_lines(app)[0]
        assert app.timeline.view.step == 1
        assert "pause" not in screen_lines(app)[-1]
        await pilot.press("p", "n")
        session = app.session
        assert isinstance(session, FakeSession)
        assert session.sent == []
    assert app.run_exit_code() == 0


async def test_a_recording_is_read_to_its_end_and_played_at_the_speed_asked_for():
    session = RecordedSession(PATH)
    session.start()
    app = KvtopApp(session, hz=50.0, replay=True, speed=100.0)
    async with app.run_test(size=(120, 40)) as pilot:
        deadline_s = time.monotonic() + 60
        while not (session.ended and app.timeline.at_live):
            assert time.monotonic() < deadline_s
            await pilot.pause(0.02)
        assert app.state.step == LAST
        assert app.state.status == "interrupted"  # its writer left it without an end
        assert "the recording breaks off here" in app.state.error


def test_what_is_no_recording_is_refused_in_one_line(tmp_path):
    with pytest.raises(UsageError, match="has no recording in it"):
        RecordedSession(tmp_path)
    with pytest.raises(UsageError, match="does not exist"):
        RecordedSession(tmp_path / "nothing")


async def test_the_palette_runs_an_action_by_its_name():
    app = app_with(recorded())
    async with app.run_test(size=(120, 40)) as pilot:
        await settled(pilot)
        await run_by_name(pilot, "ten steps back")
        await settled(pilot)
        assert app.timeline.view.step == LAST - 10


async def test_e_explains_the_numbers_of_the_focused_panel():
    app = app_with(recorded())
    async with app.run_test(size=(120, 40)) as pilot:
        await settled(pilot)
        await go(pilot, "e")
        text = screen_text(app)
        assert app.state.pool is not None
        assert f"used = {app.state.pool.counts[2]} blocks" in text
        assert "blocks with refcount > 0" in text
        assert "(pool.used_blocks)" in text
