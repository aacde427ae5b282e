"""Frames come less often when one was large for the line or slow to draw; what a key changes is shown at once."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import cast

from textual.app import App
from textual.screen import Screen
from tui_fakes import app_with, recorded, screen_text, settled

from kvtop.engine.events import Notice
from kvtop.tui.pace import ATTENDED_S, LONGEST_REST_S, LOST_S, MOST_BYTES_S, Pace


class Line:
    """A screen on a driver that keeps what it is given, and calls nothing back by itself."""

    def __init__(self, queued: int = 0) -> None:
        self.got: list[str] = []
        self.queued = queued
        writer = SimpleNamespace(_queue=SimpleNamespace(empty=lambda: not self.queued))
        self._driver = SimpleNamespace(write=self.got.append, _writer_thread=writer)
        self.app = cast("App", self)

    def call_after_refresh(self, callback) -> None:
        pass


def frame(pace: Pace, line: Line, now: list[float], took_s: float, num_bytes: int) -> None:
    """One frame, drawn in ``took_s`` seconds."""
    pace.begin(cast("Screen", line))
    now[0] += took_s
    line._driver.write("x" * num_bytes)
    pace.painted()


def paced(queued: int = 0) -> tuple[Pace, Line, list[float]]:
    pace, now = Pace(), [100.0]
    pace.clock = lambda: now[0]
    return pace, Line(queued), now


def test_a_small_quick_frame_holds_nothing_up():
    pace, line, now = paced()
    assert pace.is_due
    frame(pace, line, now, 0.02, 2_000)
    now[0] += 0.02
    assert pace.is_due
    assert line.got == ["x" * 2_000]


def test_a_large_frame_waits_until_a_slow_line_has_carried_it():
    pace, line, now = paced()
    frame(pace, line, now, 0.01, MOST_BYTES_S // 2)
    now[0] = 100.49
    assert not pace.is_due
    now[0] = 100.51
    assert pace.is_due
    frame(pace, line, now, 0.01, 100)  # it is each frame's own size that counts
    now[0] += 0.02
    assert pace.is_due


def test_ten_frames_a_second_of_forty_kilobytes_become_six():
    pace, line, now = paced()
    drawn = 0
    for tick in range(100):
        now[0] = 100.0 + tick * 0.1
        if pace.is_due:
            frame(pace, line, now, 0.005, 40_000)
            drawn += 1
    assert pace.written / 10 <= MOST_BYTES_S
    assert drawn == 50  # every second tick: 0.16 s a frame


def test_a_slow_frame_is_followed_by_as_long_a_rest():
    pace, line, now = paced()
    frame(pace, line, now, 0.4, 100)
    now[0] += 0.39
    assert not pace.is_due
    now[0] += 0.02
    assert pace.is_due


def test_a_frame_that_was_held_up_for_long_rests_a_second():
    pace, line, now = paced()
    frame(pace, line, now, 5.0, 100)
    now[0] += LONGEST_REST_S - 0.01
    assert not pace.is_due
    now[0] += 0.02
    assert pace.is_due


def test_no_frame_is_drawn_over_one_that_is_not_painted_or_not_taken_yet():
    pace, line, now = paced(queued=1)
    pace.begin(cast("Screen", line))
    assert not pace.is_due
    now[0] += LOST_S  # its screen may be gone
    assert not pace.is_due
    line.queued = 0
    assert pace.is_due


def test_frames_that_yield_come_half_as_often():
    pace, line, now = paced()
    for yields, frames in ((False, 20), (True, 10), (False, 20)):
        pace.yields, drawn = yields, 0
        for _ in range(20):
            now[0] += 0.25
            if pace.is_due:
                frame(pace, line, now, 0.0, 100)
                drawn += 1
        assert drawn == frames


async def test_only_an_engine_on_the_cores_that_draw_is_yielded_to_and_only_while_nobody_presses_a_key():
    app = app_with(recorded())
    async with app.run_test(size=(120, 40)) as pilot:
        await settled(pilot)

        def yields(since_input_s: float, pid: int | None, executor: str, device: str) -> bool:
            app.session.pid = pid  # type: ignore[attr-defined]
            app.state.manifest = {**app.state.manifest, "executor": executor, "device": device}
            app._input_s = time.monotonic() - since_input_s
            app.tick()
            return app.pace.yields

        assert yields(ATTENDED_S + 1, 1, "torch", "cpu")
        assert not yields(0, 1, "torch", "cpu")
        assert not yields(ATTENDED_S + 1, 1, "torch", "cuda")
        assert not yields(ATTENDED_S + 1, 1, "sim", "cpu")  # it computes nothing
        assert not yields(ATTENDED_S + 1, None, "torch", "cpu")  # a recording, or a server elsewhere


async def test_a_tick_waits_and_a_key_does_not():
    app = app_with(recorded())
    async with app.run_test(size=(120, 40)) as pilot:
        await settled(pilot)
        app.pace, now = Pace(), [0.0]
        app.pace.clock = lambda: now[0]
        app.pace._next_s = 10.0
        before = screen_text(app)
        app.session.events.append(Notice(t_ns=2, text="the line is slow"))  # type: ignore[attr-defined]
        for _ in range(5):
            app.tick()
            await pilot.pause()
        assert screen_text(app) == before
        await pilot.press("left_square_bracket")
        assert screen_text(app) != before
        await pilot.press("end")
        now[0] = 20.0
        app.tick()
        while "the line is slow" not in screen_text(app):
            await pilot.pause(0.02)
