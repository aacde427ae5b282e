"""Ctrl+Z and fg: whose terminal it is meanwhile, what is drawn afterwards, and what the gap does to what is counted."""

from __future__ import annotations

import os
import signal
import sys
import termios
import time
from pathlib import Path

import pytest
from pseudo_terminal import RESTORED, PseudoTerminal
from tui_fakes import app_with, recorded, settled

from kvtop.engine.events import EngineSample, RunStarted, Sample
from kvtop.state.attached import WINDOW_NS
from kvtop.state.model import RunState
from kvtop.state.reduce import reduce
from kvtop.tui import app as app_module
from kvtop.tui import suspend as suspend_module
from kvtop.tui.suspend import Suspension
from kvtop.tui.terminal import EXIT_GONE

PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
from tui_fakes import FakeSession, recorded
from kvtop.tui.launch import run_app

session = FakeSession(recorded()[:20])
code = run_app(session)
print("SENT", [type(command).__name__ for command in session.sent], flush=True)
sys.exit(code)
"""
WAIT_S = 60.0


@pytest.fixture
def screen():
    terminal = PseudoTerminal([sys.executable, "-c", PROGRAM, str(Path(__file__).parent)])
    yield terminal
    terminal.close()


def modes(screen: PseudoTerminal) -> int:
    """The local modes of the terminal: whether it echoes, puts lines together, makes signals of keys."""
    return termios.tcgetattr(screen.master)[3]


def wait_stopped(screen: PseudoTerminal) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while os.waitid(os.P_PID, screen.process.pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT) is None:
        assert time.monotonic() < deadline_s, "it was not stopped"
        screen._read(0.02)
    os.waitid(os.P_PID, screen.process.pid, os.WSTOPPED | os.WNOHANG)
    while screen._read(0.1) and time.monotonic() < deadline_s:  # what it had written by then
        if not _more(screen):
            return


def _more(screen: PseudoTerminal) -> bool:
    before = len(screen.output)
    screen._read(0.2)
    return len(screen.output) > before


@pytest.mark.parametrize("how", ["key", "SIGTSTP", "SIGSTOP"])
def test_the_terminal_is_given_back_and_taken_again(screen, how):
    cooked = modes(screen)
    assert cooked & termios.ICANON
    screen.read_until(b"Findings")
    screen.read_until(b"policy")  # the first frame may come before the run is known: there is nothing to pause then
    raw = modes(screen)
    assert not raw & (termios.ICANON | termios.ECHO)
    before = len(screen.output)
    if how == "key":
        screen.press(b"\x1a")
    else:
        screen.process.send_signal(getattr(signal, how))
    wait_stopped(screen)
    if how != "SIGSTOP":  # which cannot be caught
        assert modes(screen) == cooked
        assert all(code in screen.output[before:] for code in RESTORED)
    assert not _more(screen)  # nothing is written while it is stopped
    screen.output = b""
    screen.process.send_signal(signal.SIGCONT)
    screen.read_until(b"Findings")  # all of it again, on the other screen
    screen.read_until(b"\x1b[?1003h")
    assert b"\x1b[?1049h" in screen.output
    assert modes(screen) == raw
    screen.press(b"q")
    assert screen.wait() == 0
    assert modes(screen) == cooked
    assert all(code in screen.output for code in RESTORED)
    assert b"Traceback" not in screen.output
    sent = b"SENT ['Pause', 'Resume']" if how != "SIGSTOP" else b"SENT []"
    assert sent in screen.output


async def test_a_recording_does_not_play_through_the_gap():
    app = app_with(recorded(), replay=True)
    async with app.run_test(size=(80, 24)) as pilot:
        await settled(pilot)
        app.timeline.to_start()
        app.timeline.set_speed(1.0)
        began_ns = app.timeline.view.t_ns
        played: list[float] = []
        app.timeline.play = played.append  # type: ignore[method-assign]
        app._ticked_s -= 3600.0
        app.tick()
        assert played[0] <= app_module.LONGEST_TICK_S
        assert app.timeline.view.t_ns == began_ns


@pytest.mark.parametrize(("gap_s", "rate"), [(30, 100.0), (600, None)])
def test_the_rate_of_a_server_is_not_a_mean_over_the_gap(gap_s, rate):
    """Nobody looked for ten minutes: what was counted meanwhile is no pace of now. Half a minute is in the window."""
    state = RunState()
    reduce(state, RunStarted(run_id="r", manifest={"interval_ns": 1_000_000_000}))
    times = [0, 1, 2, 2 + gap_s]
    for step, at_s in enumerate(times, 1):
        engine = EngineSample("0", "m", {}, {"generation_tokens": 100.0 * at_s}, {})
        reduce(state, Sample(step=step, t_ns=at_s * 1_000_000_000, server="s", kind="vllm", engines=[engine]))
    assert state.attached is not None
    assert state.attached.rows[-1].generation_tokens == rate
    assert WINDOW_NS == 60_000_000_000


@pytest.mark.parametrize(
    ("is_there", "has_ended", "code"), [(False, False, EXIT_GONE), (False, True, 7), (True, True, 7)]
)
async def test_a_terminal_that_is_closed_is_not_taken_once_more(monkeypatch, is_there, has_ended, code):
    """It sends SIGHUP, then SIGCONT: a thread that reads keys from then on is told of no end, and reads for ever."""
    monkeypatch.setattr(suspend_module, "has_terminal", lambda: is_there)
    app = app_with(recorded())
    async with app.run_test(size=(80, 24)) as pilot:
        await settled(pilot)
        suspension = Suspension.__new__(
            Suspension
        )  # without its signal handlers; it touches neither driver nor Textual's
        suspension._app, suspension._is_given_back = app, False
        if has_ended:
            app.exit(return_code=7)
        suspension._on_continue()
    assert app.return_code == code
