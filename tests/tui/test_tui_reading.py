"""A long recording while it is read: how far it is, with keys answered meanwhile."""

from __future__ import annotations

import make_frames
from tui_fakes import FakeDevices, app_with, go, recorded, screen_lines, settled

from kvtop.run.recorded import RecordedSession
from kvtop.tui.app import KvtopApp


def test_the_share_read_grows_to_one_with_the_file(monkeypatch):
    monkeypatch.setattr("kvtop.results.recording.READ_BYTES", 4096)
    session = RecordedSession(make_frames.PATH)
    assert session.share_read == 0.0
    session.start()
    shares, num_events = [session.share_read], 0
    while not session.ended:
        num_events += len(session.poll())
        shares.append(session.share_read)
    assert shares == sorted(shares)
    assert 0.0 < shares[0] < 0.5
    assert len(set(shares)) > 5
    assert num_events == len(recorded()) + 1  # it breaks off, and is given an end
    size = make_frames.PATH.stat().st_size
    assert shares[-1] > 1 - 4096 / size - 0.05  # what is left holds no events: the index


async def test_the_header_says_how_far_and_keys_are_answered():
    app = app_with(recorded()[:200], replay=True)
    app.session.share_read = 0.429  # type: ignore[attr-defined]
    async with app.run_test(size=(80, 24)) as pilot:
        await settled(pilot)
        assert "reading 42 %" in screen_lines(app)[0]
        await go(pilot, "4")
        assert "kvtop 4 Req" in screen_lines(app)[0]  # the name gives way
        assert "reading 42 %" in screen_lines(app)[0]
        app.session.share_read = 1.0  # type: ignore[attr-defined]
        await settled(pilot, *recorded()[200:])
        assert "reading" not in screen_lines(app)[0]


async def test_a_real_recording_ends_without_a_word_of_reading():
    session = RecordedSession(make_frames.PATH)
    session.start()
    app = KvtopApp(session, hz=50.0, replay=True, speed=0)
    app.devices = FakeDevices()  # type: ignore[assignment]
    async with app.run_test(size=(80, 24)) as pilot:
        while app.feed.end is None:
            await pilot.pause(0.02)
        app.tick()
        await pilot.pause()
        assert "REPLAY" in screen_lines(app)[0]
        assert "reading" not in screen_lines(app)[0]
