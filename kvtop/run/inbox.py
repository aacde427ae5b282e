"""Commands from the parent. A parent that is gone and a terminating signal both read as ``Stop``."""

from __future__ import annotations

import os
import select
import signal
from contextlib import suppress

import msgspec

from kvtop.engine.events import Command, Stop, decode_command
from kvtop.run.pipes import MessageReader


class Stopped(BaseException):
    """A terminating signal came while loading, with nothing to finish. Not an Exception: no library may keep it."""


class PipeInbox:
    """Reads commands from a non-blocking pipe; ``wait`` sleeps until there is one, without polling."""

    def __init__(self, reader: MessageReader, bodies: list[bytes] | None = None) -> None:
        """``bodies``: commands that came with the spec."""
        self._reader = reader
        self._stop = False
        self.loading = False  # while True a terminating signal ends the load where it stands, by raising Stopped
        self._queue: list[Command] = []
        self._decode(bodies or [])
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)

    def listen_to_signals(self) -> None:
        """Ctrl-C goes to the whole group, and the parent answers it: ignore it. Other ends are a clean stop."""
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._on_signal)

    def poll(self) -> list[Command]:
        self._decode(self._reader.read())
        commands, self._queue = self._queue, []
        if self._stop or self._reader.closed:
            commands.append(Stop())
        return commands

    @property
    def stop_wanted(self) -> bool:
        """Whether there is a ``Stop``, for moments at which only that can be obeyed (loading). Takes nothing out."""
        self._decode(self._reader.read())
        return self._stop or self._reader.closed or any(isinstance(command, Stop) for command in self._queue)

    def wait(self, timeout_s: float | None) -> None:
        if self._stop or self._reader.closed:
            return
        ready = select.select([self._reader.fd, self._wake_read], [], [], timeout_s)[0]
        if self._wake_read in ready:
            os.read(self._wake_read, 4096)

    def _decode(self, bodies: list[bytes]) -> None:
        for body in bodies:
            # A command that cannot be decoded is a newer parent's: not ours to die of.
            with suppress(msgspec.DecodeError):
                self._queue.append(decode_command(body))

    def _on_signal(self, number: int, frame: object) -> None:
        self._stop = True
        if self.loading:
            raise Stopped
