"""Ports on this machine's loopback interface."""

from __future__ import annotations

import random
import socket

FIRST, LAST = 20_000, 32_000  # below those that the system gives to whoever asks for any


def free_port() -> int:
    """A port that nobody uses, for a program that has to be told one.

    Between this and the program's start the system gives it to nobody else: it hands out higher ones.
    """
    while True:
        with socket.socket() as probe:
            port = random.SystemRandom().randrange(FIRST, LAST)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
