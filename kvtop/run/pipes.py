"""Messages between the two processes: a 4-byte length and msgpack. Loads no torch.

Both ends are non-blocking: whoever cannot write keeps the bytes, whoever cannot read comes back later.
"""

from __future__ import annotations

import os
import select
import struct
import sys
from contextlib import suppress

_LENGTH = struct.Struct("<I")
READ_BYTES = 1 << 20
PIPE_BYTES = 1 << 20  # Linux grants it to everybody; elsewhere the default stays
_F_SETPIPE_SZ = 1031


def widen(fd: int) -> None:
    """A larger pipe buffer where the system has such a thing: a frame then leaves in one call."""
    if sys.platform == "linux":
        import fcntl

        with suppress(OSError):
            fcntl.fcntl(fd, _F_SETPIPE_SZ, PIPE_BYTES)


class MessageReader:
    """Whole messages from a non-blocking file descriptor. ``closed`` once the other end is gone."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.closed = False
        self._buffer = bytearray()

    def read(self) -> list[bytes]:
        """Messages that are complete now, at most about ``READ_BYTES`` of them."""
        if not self.closed:
            try:
                data = os.read(self.fd, READ_BYTES)
                self.closed = not data
                self._buffer += data
            except BlockingIOError:
                pass
            except OSError:
                self.closed = True
        messages: list[bytes] = []
        start = 0
        while len(self._buffer) - start >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer, start)
            end = start + _LENGTH.size + length
            if end > len(self._buffer):
                break
            messages.append(bytes(self._buffer[start + _LENGTH.size : end]))
            start = end
        del self._buffer[:start]
        return messages


class MessageWriter:
    """Sends messages without waiting; what the pipe does not take stays ``pending``. ``closed``: nobody reads."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.closed = False
        self._buffer = bytearray()

    @property
    def pending_bytes(self) -> int:
        return 0 if self.closed else len(self._buffer)

    def send(self, body: bytes) -> None:
        if not self.closed:
            self._buffer += _LENGTH.pack(len(body))
            self._buffer += body
            self.flush()

    def flush(self, timeout_s: float = 0.0) -> bool:
        """Write what the pipe takes; True when nothing is left. Waits for room up to ``timeout_s`` at a time."""
        while self._buffer and not self.closed:
            try:
                with memoryview(self._buffer) as view:
                    written = os.write(self.fd, view[:PIPE_BYTES])
                del self._buffer[:written]
            except BlockingIOError:
                if timeout_s <= 0 or not select.select([], [self.fd], [], timeout_s)[1]:
                    return False
            except OSError:  # the reader is gone
                self.closed = True
        return True
