"""The recording of attached servers on a disk that refuses, or takes its time: nobody waits for it, and it is said."""

from __future__ import annotations

import io
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from attach_helpers import silence
from test_attach_session import replayed

from kvtop.attach import recorder as attach_recorder
from kvtop.attach.recorder import Recorder
from kvtop.attach.session import AttachSession, AttachSpec
from kvtop.cli.main import main
from kvtop.engine.events import Event, Notice
from kvtop.results.files import FileError
from kvtop.results.recording import FrameWriter
from kvtop.tui.feed import StartableSession
from kvtop.tui.launch import stop_session

LIMIT_S = 60.0
SLOW = "the disk is too slow: the last of what was seen may not be recorded"


def refuse(self: FrameWriter, events: Sequence[Event] = ()) -> None:
    raise FileError("disk full")


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """A disk that writes nothing until this is set."""
    may_write, write = threading.Event(), FrameWriter.write

    def slowly(self: FrameWriter, events: Sequence[Event]) -> None:
        assert may_write.wait(LIMIT_S), "somebody waits for the disk"
        write(self, events)

    monkeypatch.setattr(FrameWriter, "write", slowly)
    yield may_write
    may_write.set()
    for thread in threading.enumerate():
        if thread.name == "kvtop-record":
            thread.join(LIMIT_S)


def errors(events: list[Event]) -> list[str]:
    return [event.text for event in events if isinstance(event, Notice)]


def test_what_goes_wrong_at_the_end_is_said_once_the_screen_has_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def shown(session: StartableSession, **display: object) -> int:
        session.start()
        session.stop(LIMIT_S)
        return 0

    monkeypatch.setattr("kvtop.tui.launch.run_app", shown)
    monkeypatch.setattr("kvtop.cli.terminal.can_open_tui", lambda: True)
    words = ["attach", "http://127.0.0.1:1", "--record"]
    assert main([*words, str(tmp_path / "whole")]) == 0
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(FrameWriter, "finish", refuse)
    assert main([*words, str(tmp_path / "lost")]) == 1
    assert capsys.readouterr().err == "kvtop: disk full\n"


def test_what_the_screen_has_said_already_is_an_exit_code_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def shown(session: AttachSession, **display: object) -> int:
        session.start()
        deadline = time.monotonic() + LIMIT_S
        while not errors(session.poll(0.01)):
            assert time.monotonic() < deadline, "nobody says it"
        session.stop(LIMIT_S)
        return 0

    monkeypatch.setattr("kvtop.tui.launch.run_app", shown)
    monkeypatch.setattr("kvtop.cli.terminal.can_open_tui", lambda: True)
    monkeypatch.setattr(FrameWriter, "write", refuse)
    words = ["attach", "--kv-events", "tcp://127.0.0.1:1", "--record", str(tmp_path / "run")]
    assert main(words) == 1
    assert capsys.readouterr().err == "kvtop: disk full\n"


def test_a_disk_that_refuses_is_told_of_while_nothing_comes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FrameWriter, "write", refuse)
    session, said = AttachSession(AttachSpec([], record=tmp_path / "run")), list[Event]()
    session.start()
    deadline = time.monotonic() + LIMIT_S
    while not errors(said):
        assert time.monotonic() < deadline, "nobody says it"
        said += session.poll(0.01)
    session.stop()
    assert errors([*said, *session.poll()]) == ["disk full"]


def test_the_end_does_not_wait_longer_for_the_disk_than_it_is_told_to(tmp_path: Path, disk: threading.Event) -> None:
    session = AttachSession(AttachSpec([], record=tmp_path / "run"))
    session.start()
    session.stop(0.05)
    (said,) = errors(session.poll())
    assert said.endswith(f"run: {SLOW}")


def test_what_waits_for_the_disk_is_bounded_and_the_end_of_the_recording_said_once(
    tmp_path: Path, disk: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attach_recorder, "MOST_WAITING", 10)
    recorder = Recorder(tmp_path / "run", {"run_id": "x", "executor": "attached"})
    said = [recorder.write([silence(n, "slow", t_s=n)], {}) for n in range(30)]
    assert [place for place, text in enumerate(said) if text] == [11]
    assert said[11].endswith("run: recording stopped: the disk is too slow, 11 events wait for it")
    assert recorder.close(0.0) == ""  # it was said
    disk.set()
    assert recorder.close(LIMIT_S) == recorder.news() == ""
    assert sum(not isinstance(event, Notice) for event in replayed(tmp_path / "run")) >= 11  # what waited is written


@pytest.mark.parametrize(("has_engine", "what"), [(True, "stopping the engine ..."), (False, "stopping ...")])
def test_it_is_said_what_is_stopped(has_engine: bool, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    said = threading.Event()

    class Screen(io.StringIO):
        def write(self, text: str) -> int:
            count = super().write(text)
            if "..." in text:
                said.set()
            return count

    class Slow(AttachSession):
        def stop(self, timeout_s: float = 10.0) -> None:
            assert said.wait(LIMIT_S)

    screen, session = Screen(), Slow(AttachSpec([]))
    if has_engine:
        monkeypatch.setattr(Slow, "has_engine", True)
    monkeypatch.setattr(sys, "stderr", screen)
    stop_session(session)
    assert screen.getvalue().startswith(f"kvtop: {what}")
