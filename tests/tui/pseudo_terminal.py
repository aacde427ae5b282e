"""A program on a pseudo terminal of 80x24, as a user would see it."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import time

WIDTH, HEIGHT = 80, 24
RESTORED = (b"\x1b[?1049l", b"\x1b[?25h", b"\x1b[?1003l")
"""What must be written before the terminal is given back: main screen, cursor, no mouse."""


class PseudoTerminal:
    """Starts ``command`` on a new terminal; ``output`` is everything it has written there so far."""

    def __init__(self, command: list[str], **environment: str) -> None:
        self.master, slave = pty.openpty()
        size = {"TERM": "xterm-256color", "LC_ALL": "C.UTF-8", "COLUMNS": str(WIDTH), "LINES": str(HEIGHT)}
        self.process = subprocess.Popen(
            command,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env={**os.environ, **size, **environment},
            start_new_session=True,
        )
        os.close(slave)
        self.output = b""
        self._screen = Screen()
        self._drawn = 0  # bytes of the output that are on the screen

    def read_until(self, wanted: bytes, timeout_s: float = 60.0) -> None:
        """Read on until ``wanted`` has been written as it stands; what was there before counts too."""
        deadline_s = time.monotonic() + timeout_s
        while wanted not in self.output:
            assert time.monotonic() < deadline_s, self.output[-2000:]
            if not self._read(0.1):
                break
        assert wanted in self.output, self.output[-2000:]

    def wait_for(self, *wanted: str | re.Pattern[str], timeout_s: float = 60.0) -> None:
        """Read on until all that is ``wanted`` stands on the screen at once, each text or pattern in one row.

        The screen itself is not returned: it may be half of a frame, whose other half is still being written.
        What a test wants to see together is waited for together.
        """
        deadline_s = time.monotonic() + timeout_s
        while missing := [text for text in wanted if not self._stands(text)]:
            assert time.monotonic() < deadline_s, f"no {missing!r} on the screen:\n{self.shown()}"
            assert self._read(0.1), f"it ended without {missing!r} on the screen:\n{self.shown()}"

    def _stands(self, wanted: str | re.Pattern[str]) -> bool:
        rows = self.shown().splitlines()
        return any(wanted in row if isinstance(wanted, str) else wanted.search(row) for row in rows)

    def shown(self) -> str:
        """The screen as far as it has been read, a line a row."""
        # What begins with the last escape may be cut short: it is drawn with what follows.
        end = max(self.output.rfind(b"\x1b"), self._drawn)
        self._screen.feed(self.output[self._drawn : end].decode("utf-8", "replace"))
        self._drawn = end
        return self._screen.text()

    def _read(self, timeout_s: float) -> bool:
        """Take what is there; False when the program is gone."""
        try:
            if select.select([self.master], [], [], timeout_s)[0]:
                self.output += os.read(self.master, 65536)
        except OSError:
            return False
        return True

    def press(self, keys: bytes) -> None:
        os.write(self.master, keys)

    def wait(self) -> int:
        """The exit code, with the rest of the output read."""
        while self.process.poll() is None or select.select([self.master], [], [], 0)[0]:
            if not self._read(0.05):
                break
        return self.process.wait(60)

    def hang_up(self) -> None:
        """The terminal goes away; whoever is on it still is."""
        os.close(self.master)
        self.master = -1

    def close(self) -> None:
        """End the program and all it has started on the terminal, if it has not ended by itself."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        if self.master >= 0:
            self.hang_up()


class Screen:
    """The least of a terminal that Textual needs: text, line ends, the cursor put somewhere, erased screens."""

    _TOKEN = re.compile(
        r"\x1b\[(?P<numbers>[0-9;]*)(?P<command>[HJ])|\x1b\[[0-?]*[ -/]*[@-~]"
        r"|\x1b\].*?(?:\x07|\x1b\\)|\x1bP.*?\x1b\\|\x1b.|(?P<char>.)",
        re.DOTALL,
    )

    def __init__(self) -> None:
        self._rows = [[" "] * WIDTH for _ in range(HEIGHT)]
        self._row = self._column = 0

    def feed(self, text: str) -> None:
        for token in self._TOKEN.finditer(text):
            if token["command"] == "H":
                row, _, column = (token["numbers"] or "1;1").partition(";")
                self._row, self._column = int(row or 1) - 1, int(column or 1) - 1
            elif token["command"] == "J":
                self._rows = [[" "] * WIDTH for _ in range(HEIGHT)]
            elif token["char"] == "\n":
                self._row += 1
            elif token["char"] == "\r":
                self._column = 0
            elif token["char"]:
                if self._row < HEIGHT and self._column < WIDTH:
                    self._rows[self._row][self._column] = token["char"]
                self._column += 1

    def text(self) -> str:
        return "\n".join("".join(row).rstrip() for row in self._rows)
