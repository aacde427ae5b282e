"""The real driver on a pseudo terminal: what it leaves behind, what native code may write, how fast it goes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from pseudo_terminal import RESTORED, PseudoTerminal

from kvtop.engine.errors import UsageError
from kvtop.tui.terminal import captured_stderr, check_terminal

PROGRAM = """
import os, sys, threading
sys.path.insert(0, sys.argv[1])
from tui_fakes import FakeSession, recorded
from kvtop.engine.events import RunEnded
from kvtop.tui.launch import run_app

session = FakeSession(recorded() if "short" not in sys.argv else recorded()[:20])
if "failing" in sys.argv:
    session.events.append(RunEnded(t_ns=0, status="failed", error="boom", traceback="SECRET TRACE", exit_code=3))
if "native" in sys.argv:
    start = session.start
    poll = session.poll
    session.poll = lambda timeout_s=0.0: (os.write(2, b"NATIVE GARBAGE\\n"), poll(timeout_s))[1]
if "stuck" in sys.argv:
    session.stop = lambda timeout_s: threading.Event().wait()
code = run_app(session)
assert session.started and session.stopped
print("CODE", code, flush=True)
sys.exit(code)
"""


class Terminal(PseudoTerminal):
    """The program on a pseudo terminal."""

    def __init__(self, *flags: str, **environment: str) -> None:
        super().__init__([sys.executable, "-c", PROGRAM, str(Path(__file__).parent), *flags], **environment)


@pytest.fixture
def terminal():
    opened: list[Terminal] = []

    def start(*flags: str, **environment: str) -> Terminal:
        opened.append(Terminal(*flags, **environment))
        return opened[-1]

    yield start
    for one in opened:
        one.close()


def test_q_quits_and_gives_the_terminal_back(terminal):
    screen = terminal()
    screen.read_until(b"Findings")
    screen.press(b"q")
    assert screen.wait() == 0
    assert all(code in screen.output for code in RESTORED)
    assert b"CODE 0" in screen.output


def test_the_terminal_is_given_back_at_once_however_long_the_engine_takes_to_stop(terminal):
    screen = terminal("stuck")
    screen.read_until(b"Findings")
    screen.press(b"q")
    screen.read_until(b"stopping the engine ...")
    assert all(code in screen.output for code in RESTORED)
    assert screen.process.poll() is None


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_ends_it_in_order(terminal, number):
    screen = terminal("short")
    screen.read_until(b"Findings")
    screen.process.send_signal(number)
    assert screen.wait() == 128 + number
    assert all(code in screen.output for code in RESTORED)
    assert b"Traceback" not in screen.output


def test_a_failed_run_leaves_its_traceback_on_the_screen_not_on_the_terminal(terminal):
    screen = terminal("short", "failing")
    screen.read_until(b"SECRET TRACE")
    screen.press(b"q")
    assert screen.wait() == 3
    assert b"SECRET TRACE" not in screen.output.split(RESTORED[0])[-1]


def test_what_native_code_writes_does_not_reach_the_screen_raw(terminal):
    screen = terminal("short", "native")
    screen.wait_for("Findings")
    screen.press(b"8")
    screen.wait_for(re.compile("stderr +NATIVE GARBAGE"))
    screen.press(b"q")
    assert screen.wait() == 0
    assert b"NATIVE GARBAGE\n" not in screen.output
    assert b"NATIVE GARBAGE\r\n" not in screen.output


def test_native_output_is_kept_as_lines_and_the_descriptor_is_put_back():
    before = os.fstat(2)
    stream = sys.__stderr__
    with captured_stderr() as lines:
        os.write(2, b"cuda says\n\nhello \xff\n")
        deadline_s = time.monotonic() + 60
        while len(lines) < 2 and time.monotonic() < deadline_s:
            time.sleep(0.01)
        assert list(lines) == ["cuda says", "hello \ufffd"]
        assert sys.__stderr__ is not stream
    assert os.fstat(2) == before
    assert sys.__stderr__ is stream


class Stream:
    def __init__(self, tty: bool) -> None:
        self.tty = tty

    def isatty(self) -> bool:
        return self.tty


@pytest.mark.parametrize(
    ("stdin", "stderr", "term", "message"),
    [
        (False, True, "xterm", "standard input is not a terminal"),
        (True, False, "xterm", "standard error is not a terminal"),
        (True, True, "dumb", "TERM is dumb"),
        (True, True, "", "TERM is not set"),
    ],
)
def test_without_a_terminal_it_refuses_in_one_line(monkeypatch, stdin, stderr, term, message):
    monkeypatch.setattr(sys, "__stdin__", Stream(stdin))
    monkeypatch.setattr(sys, "__stderr__", Stream(stderr))
    monkeypatch.setenv("TERM", term)
    with pytest.raises(UsageError, match=message):
        check_terminal()


def test_no_torch_is_loaded_with_the_application():
    code = "import sys, kvtop.tui.app; print([m for m in ('torch', 'triton', 'transformers') if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert result.stdout.strip() == "[]"
