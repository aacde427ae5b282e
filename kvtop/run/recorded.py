"""A recorded run as a session: what was recorded is handed out as if it were happening, as fast as it is asked for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from kvtop.engine.errors import UsageError
from kvtop.engine.events import Command, Event, RunEnded
from kvtop.results.recording import FRAMES_NAME, read_frames


class RecordedSession:
    """The events of the recording in ``run`` (its directory, or the file). There is no engine: commands do nothing.

    A recording that ends without a ``RunEnded``, because its writer was killed, is given one.

    Raises:
        UsageError: there is no recording.
    """

    def __init__(self, run: Path) -> None:
        self.path = run / FRAMES_NAME if run.is_dir() else run
        self.ended = False
        self.share_read = 0.0  # of the file; 1 at its end
        self._frames: Iterator[list[Event]] = iter(())
        if not self.path.is_file():
            what = "has no recording in it" if run.is_dir() else "does not exist"
            raise UsageError(f"{run}: {what}, expected a run directory with {FRAMES_NAME}, or that file")

    def start(self) -> None:
        """Open the recording and read its first events.

        Raises:
            FileError: it cannot be read, or is no recording.
        """
        size = max(1, self.path.stat().st_size)  # of one that is still written, as it is now
        frames = read_frames(self.path, on_read=lambda read: setattr(self, "share_read", min(1.0, read / size)))
        first = next(frames, [])
        self._frames = _then(first, frames)

    def poll(self, timeout_s: float = 0.0) -> list[Event]:
        """The next events; [] at the end."""
        if self.ended:
            return []
        events: list[Event] | None = next(self._frames, None)
        if events is None:
            text = "the recording breaks off here: its run was killed, or goes on"
            events = [RunEnded(t_ns=0, status="interrupted", error=text)]
        self.ended = isinstance(events[-1], RunEnded) if events else False
        return events

    def send(self, command: Command) -> None:
        pass

    def stop(self, timeout_s: float = 10.0) -> None:
        self.ended = True


def _then(first: Sequence[Event], rest: Iterable[Sequence[Event]]) -> Iterator[list[Event]]:
    yield list(first)
    yield from map(list, rest)
