"""``frames.msgpack.zst``: every event of a run, appended as it happens: a killed process loses at most half a second.

The file is a row of zstd frames ("segments"). Decompressed, it is a stream of msgpack ``bin`` values, and each of them
holds one msgpack list of events. A segment ends before every keyframe, so that a reader may start there; it also ends
after ``SEGMENT_BYTES``. A closed recording ends with a skippable zstd frame, which zstd readers pass over, for tools
that seek. kvtop reads from the start: what its screens show is counted from there, and is more than a keyframe holds.

    0x184D2A5A | length | msgpack [[offset, step, t_ns], ...] | its length (uint32) | b"kvtopidx"
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, NamedTuple, TypeVar, cast

import msgspec
import zstandard

from kvtop.engine.events import Event, Keyframe, decode_many, encode
from kvtop.results.files import FileError, file_error, lock_file

FRAMES_NAME = "frames.msgpack.zst"
SEGMENT_BYTES = 8 << 20  # before compression
READ_BYTES = 1 << 18
FLUSH_S = 0.4  # what a killed process may lose, at most

_BIN = struct.Struct(">BI")  # msgpack bin 32: 0xc6, length
_SKIPPABLE = struct.Struct("<II")
_SKIPPABLE_MAGIC = 0x184D2A5A
_TAIL = struct.Struct("<I8s")
_TAIL_MAGIC = b"kvtopidx"


class KeyframeMark(NamedTuple):
    """Where folding may start: the file offset of a segment whose first event is a keyframe."""

    offset: int
    step: int
    t_ns: int


class FrameWriter:
    """Appends events to a recording. Holds a lock on the file, so that a reader sees that the run is still going.

    After a disk error every later call raises the same error again; what was written before stays readable.

    Raises:
        FileError: the file cannot be created or written, or another process is writing it.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.index: list[KeyframeMark] = []
        self._error: FileError | None = None
        self._segment_bytes = 0
        self._dirty = False
        self._flushed_s = time.monotonic()
        self._compressor = zstandard.ZstdCompressor(level=3)
        try:
            # Unbuffered: what zstd hands over is in the page cache at once, and survives a kill.
            self._file = open(self.path, "ab", buffering=0)  # noqa: SIM115 (closed by close)
            is_mine = lock_file(self._file)
        except OSError as error:
            raise file_error(self.path, error) from None
        if not is_mine:
            self._file.close()
            raise FileError(f"{self.path}: another run is writing this file")
        self._file.truncate(0)
        self._finished = False
        self._sink = _Counted(self._file)
        self._zstd = self._compressor.stream_writer(cast(BinaryIO, self._sink), closefd=False)

    def write(self, events: Sequence[Event]) -> None:
        """Append ``events`` as one list (two or more around a keyframe)."""
        start = 0
        for position, event in enumerate(events):
            if isinstance(event, Keyframe):
                self._append(events[start:position])
                self._guarded(self._end_segment)
                self.index.append(KeyframeMark(self._sink.offset, event.step, event.t_ns))
                start = position
        self._append(events[start:])
        self.tick()

    def tick(self) -> None:
        """Flush when the last flush is older than ``FLUSH_S``; cheap enough for every loop."""
        if self._dirty and time.monotonic() - self._flushed_s >= FLUSH_S:
            self.flush()

    def flush(self) -> None:
        """Hand everything written so far to the operating system."""
        if self._dirty:
            self._guarded(lambda: self._zstd.flush(zstandard.FLUSH_BLOCK))
            self._dirty = False
        self._flushed_s = time.monotonic()

    def finish(self) -> None:
        """End the last segment and append the index; the file stays locked, so that nobody takes its directory."""
        if self._error is None and not self._finished:
            self._finished = True
            self._guarded(self._finish)
            self._guarded(self._file.flush)

    def close(self) -> None:
        """``finish`` and release the file. Safe to call twice and after an error."""
        if self._file.closed:
            return
        try:
            self.finish()
        finally:
            self._file.close()

    def __enter__(self) -> FrameWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def _append(self, events: Sequence[Event]) -> None:
        if not events:
            return
        body = encode(events)
        self._guarded(lambda: self._zstd.write(_BIN.pack(0xC6, len(body)) + body))
        self._segment_bytes += len(body)
        self._dirty = True
        if self._segment_bytes >= SEGMENT_BYTES:
            self._guarded(self._end_segment)

    def _end_segment(self) -> None:
        if self._segment_bytes:
            self._zstd.flush(zstandard.FLUSH_FRAME)
            self._segment_bytes = 0
            self._dirty = False

    def _finish(self) -> None:
        self._end_segment()
        body = encode([tuple(mark) for mark in self.index])
        size = len(body) + _TAIL.size
        self._sink.write(_SKIPPABLE.pack(_SKIPPABLE_MAGIC, size) + body + _TAIL.pack(len(body), _TAIL_MAGIC))
        os.fsync(self._file.fileno())

    def _guarded(self, action: Callable[[], object]) -> None:
        if self._error is not None:
            raise self._error
        try:
            action()
        except OSError as error:
            self._error = file_error(self.path, error, "recording stopped")
            raise self._error from None


class _Counted:
    """Raw file that writes everything or raises, and knows its offset."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self.offset = file, 0

    def write(self, data: bytes) -> int:
        view = memoryview(data)
        while view:
            written = self._file.write(view)
            self.offset += written
            view = view[written:]
        return len(data)

    def flush(self) -> None:
        pass


T = TypeVar("T")


def read_frames(
    path: str | os.PathLike[str],
    offset: int = 0,
    *,
    decode: Callable[[bytes], list[T]] = decode_many,
    on_read: Callable[[int], object] = lambda _: None,
) -> Iterator[list[T]]:
    """Lists of events in the order they were written, from the segment at ``offset`` on.

    A tail that a killed writer left incomplete is passed over in silence: everything before it is whole. ``decode``
    makes other things than events of a list, for those who need little of each. ``on_read`` is told how many bytes of
    the file have been read when there is something of them to hand out.

    Raises:
        FileError: the file is missing, or does not begin like a recording.
    """
    try:
        file = open(path, "rb")  # noqa: SIM115 (closed below, after the last item)
    except OSError as error:
        raise file_error(path, error, "cannot read") from None
    with file:
        file.seek(offset)
        buffer = bytearray()
        for plain in _decompressed(file, path):
            buffer += plain
            on_read(file.tell())
            yield from (_decode(body, path, decode) for body in _bodies(buffer, path))


def _decompressed(file: BinaryIO, path: object) -> Iterator[bytes]:
    """The content, piece by piece, to the end, or to where a killed writer or a bad disk left off.

    Not zstandard's stream reader: that one keeps back a part of what an unfinished frame already holds.
    """
    decoder, pending, any_data = zstandard.ZstdDecompressor().decompressobj(), b"", False
    while data := pending or file.read(READ_BYTES):
        try:
            plain = decoder.decompress(data)
        except zstandard.ZstdError:
            if any_data:
                return
            raise FileError(f"{path}: is not a recording (no zstd data)") from None
        any_data = True
        yield plain
        pending = b""
        if decoder.eof:
            pending = decoder.unused_data or b""
            decoder = zstandard.ZstdDecompressor().decompressobj()


def _bodies(buffer: bytearray, path: object) -> Iterator[bytes]:
    """Whole frames of events at the front of ``buffer``, taken out of it."""
    start = 0
    while len(buffer) - start >= _BIN.size:
        tag, length = _BIN.unpack_from(buffer, start)
        if tag != 0xC6:
            raise FileError(f"{path}: found byte 0x{tag:02x}, expected a frame of events (0xc6)")
        end = start + _BIN.size + length
        if end > len(buffer):
            break
        yield bytes(buffer[start + _BIN.size : end])
        start = end
    del buffer[:start]


def _decode(body: bytes, path: object, decode: Callable[[bytes], list[T]] = decode_many) -> list[T]:
    try:
        return decode(body)
    except msgspec.DecodeError as error:
        raise FileError(f"{path}: a frame of events cannot be decoded: {error}") from None


def is_being_written(path: str | os.PathLike[str]) -> bool:
    """True while a live process holds the recording open for writing."""
    try:
        with open(path, "rb") as file:
            return not lock_file(file, shared=True)
    except OSError:
        return False
