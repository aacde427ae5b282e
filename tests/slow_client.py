"""A client that takes its time."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

EVERY_S = 0.02
LIMIT_S = 30.0


@contextmanager
def dripping(client: socket.socket, what: bytes) -> Iterator[None]:
    """While ``what`` goes out byte by byte, over and over, or until the other side closes. Of b"" nothing goes out."""
    over = threading.Event()

    def drip() -> None:
        try:
            while what:
                for at in range(len(what)):
                    client.sendall(what[at : at + 1])
                    if over.wait(EVERY_S):
                        return
        except OSError:
            return

    thread = threading.Thread(target=drip, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(LIMIT_S)


def said_until_closed(client: socket.socket) -> bytes:
    """All that comes until the other side closes; that it may do while we are sending."""
    said = b""
    try:
        while piece := client.recv(65_536):
            said += piece
    except ConnectionResetError:
        pass
    return said
