"""The recording survives kills, full disks and cuts at any byte."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
import zstandard
from result_runs import events_of, make_engine, specs

from kvtop.engine.events import AnyEvent, Event, Keyframe, StepEvent, decode_many
from kvtop.results.files import FileError
from kvtop.results.recording import FrameWriter, is_being_written, read_frames


@pytest.fixture(scope="module")
def events() -> list[Event]:
    engine = make_engine()
    return [*events_of(engine, specs(12)), engine.keyframe(), *events_of(engine, specs(12, seed=1))]


def write(path: Path, events: list[Event], size: int = 7) -> list[Event]:
    with FrameWriter(path) as writer:
        for start in range(0, len(events), size):
            writer.write(events[start : start + size])
    return events


def read(path: Path, offset: int = 0) -> list[AnyEvent]:
    return [event for frame in read_frames(path, offset) for event in frame]  # type: ignore[misc]


def test_reads_what_was_written(tmp_path: Path, events: list[Event]) -> None:
    write(tmp_path / "f", events)
    assert read(tmp_path / "f") == events


def test_any_cut_of_the_file_gives_a_prefix(tmp_path: Path, events: list[Event]) -> None:
    path, cut = tmp_path / "f", tmp_path / "cut"
    with FrameWriter(path) as writer:
        for event in events:
            writer.write([event])
            writer.flush()
    data = path.read_bytes()
    longest = 0
    for size in range(0, len(data), 97):
        cut.write_bytes(data[:size])
        got = read(cut)
        assert got == events[: len(got)]
        longest = max(longest, len(got))
    assert longest > len(events) // 2


def test_what_is_flushed_can_be_read_while_writing_goes_on(tmp_path: Path, events: list[Event]) -> None:
    writer = FrameWriter(tmp_path / "f")
    for count, event in enumerate(events, 1):
        writer.write([event])
        writer.flush()
        assert len(read(tmp_path / "f")) == count
    writer.close()


def test_a_time_without_flush_loses_at_most_half_a_second(
    tmp_path: Path, events: list[Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 100.0
    monkeypatch.setattr("kvtop.results.recording.time.monotonic", lambda: now_s)
    writer = FrameWriter(tmp_path / "f")
    writer.write([events[-1]])
    assert read(tmp_path / "f") == []
    now_s += 0.5
    writer.write([events[-1]])
    assert len(read(tmp_path / "f")) == 2
    writer.close()


def test_kill_9_keeps_what_was_flushed(tmp_path: Path) -> None:
    code = (
        "import os, sys, signal\n"
        "from kvtop.engine.events import Paused\n"
        "from kvtop.results.recording import FrameWriter\n"
        "writer = FrameWriter(sys.argv[1])\n"
        "writer.write([Paused(t_ns=i) for i in range(1000)])\n"
        "writer.flush()\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    path = tmp_path / "f"
    done = subprocess.run([sys.executable, "-c", code, str(path)], timeout=60)
    assert done.returncode == -signal.SIGKILL
    assert len(read(path)) == 1000
    assert not is_being_written(path)


def test_the_index_finds_every_keyframe(tmp_path: Path, events: list[Event]) -> None:
    """Read as its layout is written down, from the end of the file."""
    write(tmp_path / "f", events)
    data = (tmp_path / "f").read_bytes()
    assert data[-8:] == b"kvtopidx"
    length = int.from_bytes(data[-12:-8], "little")
    marks = msgspec.msgpack.decode(data[-12 - length : -12])
    head = data[-12 - length - 8 : -12 - length]
    assert head == (0x184D2A5A).to_bytes(4, "little") + (length + 12).to_bytes(4, "little")
    places = [i for i, e in enumerate(events) if isinstance(e, Keyframe)]
    assert len(places) == 3
    for (offset, step, t_ns), place in zip(marks, places, strict=True):
        assert (step, t_ns) == (events[place].step, events[place].t_ns)  # type: ignore[union-attr]
        assert read(tmp_path / "f", offset) == events[place:]


def test_other_tools_can_read_it(tmp_path: Path, events: list[Event]) -> None:
    """Plain zstd frames around a plain msgpack stream."""
    write(tmp_path / "f", events)
    with open(tmp_path / "f", "rb") as file:
        plain = zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True).readall()
    length = int.from_bytes(plain[1:5], "big")
    assert plain[0] == 0xC6
    first = msgspec.msgpack.decode(plain[: 5 + length])  # a msgpack bin value
    assert list(decode_many(first)) == events[:7] or list(decode_many(first)) == events[:1]


def test_something_else_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"PAR1 not a recording" * 10)
    with pytest.raises(FileError, match="not a recording"):
        read(tmp_path / "f")
    with pytest.raises(FileError, match="no such file"):
        read(tmp_path / "none")


def test_an_empty_file_is_an_empty_recording(tmp_path: Path) -> None:
    (tmp_path / "f").touch()
    assert read(tmp_path / "f") == []


def test_two_writers_cannot_share_a_file(tmp_path: Path, events: list[Event]) -> None:
    writer = FrameWriter(tmp_path / "f")
    writer.write([events[-1]])
    assert is_being_written(tmp_path / "f")
    with pytest.raises(FileError, match="another run is writing"):
        FrameWriter(tmp_path / "f")
    writer.close()
    assert not is_being_written(tmp_path / "f")
    assert read(tmp_path / "f") == [events[-1]]


def test_a_full_disk_is_one_line_and_what_was_written_stays(
    tmp_path: Path, events: list[Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "f"
    writer = FrameWriter(path)
    writer.write(events[:20])
    writer.flush()

    def full(data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(writer._sink, "write", full)
    writer.write(events[20:40])
    with pytest.raises(FileError, match="recording stopped: no space left on the device") as caught:
        writer.flush()
    assert "\n" not in str(caught.value)
    with pytest.raises(FileError, match="no space"):  # and it stays broken, instead of leaving a hole
        writer.write(events[40:50])
    writer.close()
    assert read(path) == events[:20]


def test_a_short_write_is_continued(tmp_path: Path, events: list[Event], monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "f"
    writer = FrameWriter(path)
    raw = writer._sink._file

    class Few:
        def write(self, data: memoryview) -> int:
            return raw.write(data[:3])  # type: ignore[arg-type]

    monkeypatch.setattr(writer._sink, "_file", Few())
    writer.write(events[:5])
    writer.close()
    assert read(path) == events[:5]


def test_steps_come_back_with_their_decisions_as_tuples(tmp_path: Path, events: list[Event]) -> None:
    write(tmp_path / "f", events)
    steps = [e for e in read(tmp_path / "f") if isinstance(e, StepEvent)]
    assert isinstance(steps[0].decisions[0], tuple)
