"""One peer's process: started, asked, stopped while others run, cut off when slow, ended with all it started."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from report import Run

HERE = Path(__file__).parent
CHUNK = 1 << 20  # bytes


class PeerFailed(Exception):
    """Ends this peer's part; what it did before and what the others do stays."""


class Process:
    """One peer in a process group of its own; stopped (SIGSTOP) unless it runs.

    ``timeout`` (s) bounds every wait: for the model to be loaded, for the warm-up, for each run. ``close`` kills the
    whole group, and may be called at any time and more than once.
    """

    def __init__(
        self, name: str, command: list[str], requests: list[dict], timeout: float, env: dict[str, str]
    ) -> None:
        self.name, self.requests, self.timeout = name, requests, timeout
        self.version = self.setting = ""
        self._said = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115
        self._unread = b""
        self._closed = False
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._said,
                env=env,
                start_new_session=True,
            )
        except OSError as error:
            self._closed = True
            raise PeerFailed(f"{command[0]} cannot be started: {error.strerror}") from error

    def load(self) -> None:
        """Wait until the model is loaded; ``version`` and ``setting`` are known then."""
        hello = self._read()
        self.version, self.setting = hello["version"], hello["setting"]
        self._signal(signal.SIGSTOP)

    def run(self, num_requests: int) -> Run:
        """Serve the first requests; the process is stopped again afterwards."""
        self._signal(signal.SIGCONT)
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(b"%d\n" % num_requests)  # far below what a pipe holds, so it never waits
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise PeerFailed(self._ended_early()) from error
        answer = self._read()
        self._signal(signal.SIGSTOP)
        for request, tokens, times in zip(self.requests[:num_requests], answer["tokens"], answer["times"], strict=True):
            # A peer may leave the time of a token out; its last one tells when the request was served.
            if len(tokens) != request["num_tokens"] or not 1 <= len(times) <= len(tokens):
                raise PeerFailed(f"{len(tokens)} tokens and {len(times)} times, asked for {request['num_tokens']}")
        return Run(answer["tokens"], answer["times"])

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        # Before the leader is waited for: until then its number cannot be another group's.
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            with suppress(OSError):
                assert pipe is not None
                pipe.close()
        log = os.environ.get("KVTOP_PEERS_LOG")
        if log:
            self._said.seek(0)
            with open(log, "a") as file:
                file.write(self._said.read())
        self._said.close()

    def _read(self) -> dict:
        """The next line it writes; PeerFailed when it ends or ``timeout`` passes first."""
        assert self._process.stdout is not None
        deadline = time.monotonic() + self.timeout
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._unread:
                left = deadline - time.monotonic()
                if left <= 0 or not selector.select(left):
                    raise PeerFailed(f"cut off after {self.timeout:g} s")
                chunk = os.read(self._process.stdout.fileno(), CHUNK)
                if not chunk:
                    raise PeerFailed(self._ended_early())
                self._unread += chunk
        line, _, self._unread = self._unread.partition(b"\n")
        return json.loads(line)

    def _ended_early(self) -> str:
        """The last line it printed, which is a traceback's error."""
        self._said.seek(0)
        lines = [line.strip() for line in self._said if line.strip()]
        return f"ended early: {lines[-1] if lines else 'it said nothing'} (KVTOP_PEERS_LOG=FILE keeps what it said)"

    def _signal(self, number: int) -> None:
        try:
            os.killpg(self._process.pid, number)
        except ProcessLookupError as error:
            raise PeerFailed(self._ended_early()) from error
