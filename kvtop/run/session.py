"""The parent's side of a run: start the engine's process, read its events, send commands, survive its death."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from pathlib import Path
from typing import IO

import msgspec

from kvtop.engine.errors import KvtopError
from kvtop.engine.events import (
    AnyEvent,
    Command,
    Event,
    Notice,
    RunEnded,
    RunStarted,
    StepEvent,
    Stop,
    decode_many,
    encode,
)
from kvtop.run.pipes import MessageReader, MessageWriter
from kvtop.run.spec import RunSpec

REAP_S = 2.0  # a process that has said its last word gets this long to be gone
MAX_OUTPUT_BYTES = 64 << 10  # of printed text read at a time
TRACEBACK_LINES = 60
INTERRUPTED_LOADING = "interrupted while loading"

# -P: the folder the user stands in must not shadow a library. The path makes the child run this very kvtop.
# Ctrl-C is answered by the parent, and may come before anything of ours is loaded.
_BOOT = (
    "import signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN); sys.path.insert(0, sys.argv[1]); "
    "from kvtop.run.child import main; main(*map(int, sys.argv[2:]))"
)


class RunSession:
    """One run in a process of its own. Safe to use from two threads; every wait is bounded.

    ``poll`` ends with exactly one ``RunEnded``, whatever becomes of the process; then ``ended`` is True.
    """

    def __init__(self, spec: RunSpec) -> None:
        self.spec = spec
        self.ended = False
        self._lock = threading.RLock()
        self._ready: list[Event] = []  # read, not yet polled
        self._saw_start = self._saw_end = False
        self._stopping = False  # told to end while it was loading
        self._t_ns = 0
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """Of the engine's process, while there is one."""
        return None if self._process is None else self._process.pid

    def fileno(self) -> int:
        """Of the pipe that events come from, to wait for several sessions at once; valid until ``ended``."""
        return self._events.fd

    def start(self) -> None:
        """Check the run directory and start the process; the model loads there, with progress as Notice events.

        Raises:
            UsageError: a run directory that cannot be used.
            KvtopError: the process cannot be started.
        """
        if self._process is not None:
            raise KvtopError("this session was started already; make a new one")
        if sys.platform == "win32":
            raise KvtopError("the engine needs pipes that Windows does not have: run kvtop in WSL")
        spec = self.spec
        if spec.run_dir is not None:
            from kvtop.results.rundir import prepare_run_dir

            spec = msgspec.structs.replace(spec, run_dir=str(prepare_run_dir(spec.run_dir).resolve()))
        try:
            self._output = _Output()
        except OSError as error:
            raise KvtopError(f"cannot create a temporary file: {error.strerror or error}") from None
        command_read, command_write = os.pipe()
        event_read, event_write = os.pipe()
        try:
            self._process = self._spawn(command_read, event_write)
        except OSError as error:
            os.close(command_write)
            os.close(event_read)
            self._output.file.close()
            raise KvtopError(f"cannot start the engine's process: {error.strerror or error}") from None
        finally:
            os.close(command_read)
            os.close(event_write)
        for fd in (command_write, event_read):
            os.set_blocking(fd, False)
        self._events = MessageReader(event_read)
        self._commands = MessageWriter(command_write)
        self._finalizer = weakref.finalize(self, _abandon, self._process, (command_write, event_read), self._output)
        self._commands.send(msgspec.msgpack.encode(spec))

    def poll(self, timeout_s: float = 0.0) -> list[Event]:
        """Events since the last poll, in order; waits up to ``timeout_s`` for the first. [] when there are none."""
        with self._lock:
            if self._process is None:
                raise KvtopError("this session has not been started")
            if not self._ready and not self._saw_end:
                self._pump(timeout_s)
            events, self._ready = self._ready, []
            if events and isinstance(events[-1], RunEnded):
                self.ended = True
            return events

    def send(self, command: Command) -> None:
        """Hand a command to the engine; it obeys between two steps. After the end it is ignored."""
        with self._lock:
            if self._process is not None and not self._saw_end:
                self._commands.send(encode(command))

    def stop(self, timeout_s: float = 10.0) -> None:
        """End the run: what is finished is written. After ``timeout_s`` the process is killed.

        What it said until then, its ``RunEnded`` included, can still be polled.
        """
        with self._lock:
            if self._process is None or self._saw_end:
                return
            self._commands.send(encode(Stop()))
            self._pump(0.0)
            if not self._saw_start and not self._saw_end:
                self._stopping = True
                self._process.terminate()  # it is loading, and reads no commands
            deadline_s = time.monotonic() + timeout_s
            while not self._saw_end and (left_s := deadline_s - time.monotonic()) > 0:
                self._pump(min(left_s, 0.25))
            if not self._saw_end:
                self._process.kill()
                self._died(f"the engine did not stop within {timeout_s:g} s and was killed")

    # -- inside --------------------------------------------------------------------------------------------------

    def _spawn(self, command_fd: int, event_fd: int) -> subprocess.Popen[bytes]:
        import kvtop

        root = str(Path(kvtop.__file__).resolve().parent.parent)
        return subprocess.Popen(
            [sys.executable, "-P", "-c", _BOOT, root, str(command_fd), str(event_fd)],
            stdin=subprocess.DEVNULL,
            stdout=self._output.file,
            stderr=self._output.file,
            pass_fds=(command_fd, event_fd),
        )

    def _pump(self, timeout_s: float) -> None:
        """Read what is there, or wait for the first; notice a death."""
        assert self._process is not None
        self._commands.flush()
        if not self._events.closed:
            select.select([self._events.fd], [], [], max(0.0, timeout_s))
        # Asked before reading: what a dead process wrote is in the pipe by then.
        code = self._process.poll()
        before = len(self._ready)
        for body in self._events.read():
            self._take(decode_many(body))
        self._ready[before:before] = [
            Notice(t_ns=self._t_ns, text=line, level="warning") for line in self._output.new_lines()
        ]
        if self._saw_end:
            self._reap()
            self._close()
        elif self._events.closed or (code is not None and len(self._ready) == before):
            self._died(None)

    def _take(self, events: list[AnyEvent]) -> None:
        for event in events:
            if self._saw_end:
                return
            self._ready.append(event)
            self._t_ns = max(self._t_ns, event.t_done_ns if isinstance(event, StepEvent) else event.t_ns)
            self._saw_start |= isinstance(event, RunStarted)
            self._saw_end = isinstance(event, RunEnded)

    def _died(self, why: str | None) -> None:
        """The process is gone, or going, without a ``RunEnded``: make one."""
        code = self._reap()
        trace = self._output.tail(TRACEBACK_LINES)
        if self._stopping and not self._saw_start:
            end = RunEnded(t_ns=0, status="interrupted", error=INTERRUPTED_LOADING, exit_code=130)
        else:
            error = why or f"the engine's process died ({_how(code)})"
            end = RunEnded(t_ns=self._t_ns, status="failed", error=error, traceback=trace, exit_code=1)
        self._ready.append(end)
        self._saw_end = True
        self._close()

    def _reap(self) -> int | None:
        """Wait for the process, and insist."""
        assert self._process is not None
        try:
            code = self._process.wait(REAP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait(REAP_S)
        return code

    def _close(self) -> None:
        self._commands.closed = self._events.closed = True
        self._finalizer()


def _how(code: int | None) -> str:
    if code is None or code >= 0:
        return f"exit status {code}"
    try:
        return f"signal {-code}, {signal.Signals(-code).name}"
    except ValueError:
        return f"signal {-code}"


class _Output:
    """What the process prints: an unnamed file, so that a print never blocks and outlives the process."""

    def __init__(self) -> None:
        self.file: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (closed when the session ends)
        self._offset = 0
        self._rest = b""

    def new_lines(self) -> list[str]:
        """Whole lines since the last call."""
        if self.file.closed:
            return []
        data = os.pread(self.file.fileno(), MAX_OUTPUT_BYTES, self._offset)
        self._offset += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [text for line in lines if (text := _printable(line))]

    def tail(self, num_lines: int) -> str:
        """The last lines, for a traceback."""
        if self.file.closed:
            return ""
        fd = self.file.fileno()
        start = max(0, os.fstat(fd).st_size - MAX_OUTPUT_BYTES)
        lines = os.pread(fd, MAX_OUTPUT_BYTES, start).split(b"\n")
        return "\n".join(_printable(line) for line in lines[-num_lines:]).strip("\n")


def _printable(line: bytes) -> str:
    """Text without control characters: it is going to be shown on a terminal."""
    text = line.decode("utf-8", "replace").rpartition("\r")[2] or line.decode("utf-8", "replace")
    return "".join(c for c in text.expandtabs() if c.isprintable()).rstrip()


def _abandon(process: subprocess.Popen[bytes], fds: tuple[int, int], output: _Output) -> None:
    """Runs once: when the session has ended, is collected, or the interpreter exits."""
    if process.poll() is None:
        process.kill()
        process.wait(REAP_S)
    for fd in fds:
        os.close(fd)
    output.file.close()
