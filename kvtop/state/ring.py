"""The last minutes of a run on disk, so that the state of any step in them can be built again.

The ring is a row of segments: a copy of the state (the keyframe), then the events that came after it. Both lie in
unnamed temporary files: whatever becomes of the process, nothing is left behind. A segment ends when folding it again
would take about a twentieth of a second, so that going anywhere is a matter of one segment.
"""

from __future__ import annotations

import tempfile
import weakref
from collections import deque
from dataclasses import dataclass, field
from typing import IO, Any

import zstandard

from kvtop.engine.events import Event, KvEvents, StepEvent, decode_many, encode
from kvtop.state.copies import Copier
from kvtop.state.model import RunState

RING_NS = 15 * 60 * 1_000_000_000
FILE_BYTES = 256 << 20  # a file that is this long is followed by another; two are kept
SEGMENT_WORK = 60_000
_EVENT_WORK = 25  # an event costs as much to fold as so many decisions, whatever it holds


def work_of(event: Event) -> int:
    """What folding ``event`` costs, in decisions."""
    if isinstance(event, StepEvent):
        return _EVENT_WORK + len(event.decisions) + len(event.emitted)
    if isinstance(event, KvEvents):
        return _EVENT_WORK + len(event.decisions)
    return _EVENT_WORK


@dataclass(slots=True)
class _File:
    file: IO[bytes]
    first_ns: int
    size: int = 0


@dataclass(slots=True, eq=False)
class Segment:
    """The state before ``events``, which the run was in after ``step`` at ``t_ns``. On disk once it is closed."""

    step: int
    t_ns: int
    frozen: bytes = b""
    events: list[Event] = field(default_factory=list)
    work: int = 0
    place: tuple[_File, int, int] | None = None  # file, offset, size


class Ring:
    """Segments of one run, oldest first; the last one is open. ``span_ns`` None: all of them are kept.

    A disk that refuses ends the keeping, not the run: ``error`` then says why, and the past begins anew in memory.
    """

    def __init__(self, span_ns: int | None = RING_NS) -> None:
        self.span_ns = span_ns
        self.segments: deque[Segment] = deque()
        self.error = ""
        self._files: list[_File] = []
        self._cached: tuple[Segment, bytes, list[Event]] | None = None
        self._copier = Copier()
        self._compressor = zstandard.ZstdCompressor(level=1)
        self._close_files = weakref.finalize(self, _close_files, self._files)

    @property
    def num_bytes(self) -> int:
        """On disk."""
        return sum(file.size for file in self._files)

    @property
    def is_due(self) -> bool:
        """Whether the next step should begin a segment."""
        return not self.segments or self.segments[-1].work >= SEGMENT_WORK

    def begin(self, state: RunState) -> None:
        """End the open segment; ``state`` is where the next one starts. It goes to disk a little later."""
        self._tidy()
        self.segments.append(Segment(state.step, state.t_ns, self._copier.freeze(state)))

    def _tidy(self) -> None:
        """Put an ended segment on disk: at another moment than the copy that ended it, so that neither is long."""
        if len(self.segments) > 1 and self.segments[-2].place is None:
            self._close(self.segments[-2])

    def append(self, event: Event) -> None:
        last = self.segments[-1]
        last.events.append(event)
        last.work += work_of(event)
        if last.work > SEGMENT_WORK // 4:
            self._tidy()

    def read(self, segment: Segment) -> tuple[bytes, list[Event]]:
        """The frozen state and the events of a segment; the events of the open one go on growing."""
        if segment.place is None:
            return segment.frozen, segment.events
        if self._cached is None or self._cached[0] is not segment:
            self._cached = (segment, *self._load(segment.place))
        return self._cached[1:]

    def after(self, segment: Segment) -> Segment | None:
        """The segment that follows."""
        found = False
        for other in self.segments:
            if found:
                return other
            found = other is segment
        return None

    def find(self, step: int) -> Segment:
        """The segment that holds ``step``, or the oldest one."""
        return self._last(lambda segment: segment.step < step)

    def find_ns(self, t_ns: int) -> Segment:
        """The segment that holds the moment ``t_ns``, or the oldest one."""
        return self._last(lambda segment: segment.t_ns <= t_ns)

    def _last(self, fits: Any) -> Segment:
        return next((segment for segment in reversed(self.segments) if fits(segment)), self.segments[0])

    def close(self) -> None:
        """Give the disk back. What is asked for later is no longer there."""
        self._close_files()
        self.segments.clear()

    # Disk ----------------------------------------------------------------------------------------------------

    def _close(self, segment: Segment) -> None:
        events = self._compressor.compress(encode(segment.events))
        body = b"".join((len(segment.frozen).to_bytes(8, "little"), segment.frozen, events))
        try:
            file = self._file_for(segment)
            file.file.seek(file.size)
            file.file.write(body)
            file.file.flush()
        except OSError as error:
            self.error = f"the past is not kept: {error.strerror or error}"
            while self.segments[0] is not self.segments[-1]:
                self.segments.popleft()
            return
        segment.place = (file, file.size, len(body))
        file.size += len(body)
        segment.frozen, segment.events = b"", []

    def _file_for(self, segment: Segment) -> _File:
        """The newest file, or a new one that makes the oldest of two go."""
        last = self._files[-1] if self._files else None
        if last is not None and not self._is_full(last, segment):
            return last
        file = _File(tempfile.TemporaryFile(prefix="kvtop-"), segment.t_ns)  # noqa: SIM115 (closed when it goes)
        self._files.append(file)
        if self.span_ns is not None and len(self._files) > 2:
            gone = self._files.pop(0)
            gone.file.close()
            while self.segments and self.segments[0].place is not None and self.segments[0].place[0] is gone:
                self.segments.popleft()
        return file

    def _is_full(self, file: _File, segment: Segment) -> bool:
        return self.span_ns is not None and (segment.t_ns - file.first_ns >= self.span_ns or file.size >= FILE_BYTES)

    def _load(self, place: tuple[_File, int, int]) -> tuple[bytes, list[Event]]:
        file, offset, size = place
        file.file.seek(offset)
        body = file.file.read(size)
        end = 8 + int.from_bytes(body[:8], "little")
        events = zstandard.ZstdDecompressor().decompress(body[end:])
        return body[8:end], list(decode_many(events))


def _close_files(files: list[_File]) -> None:
    for file in files:
        file.file.close()
