"""Progress: one line in place on a terminal, at most one plain line every five seconds elsewhere."""

from __future__ import annotations

import io
import signal

import pytest

from kvtop.cli import terminal
from kvtop.cli.terminal import ProgressLine, interruptible, is_terminal


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    """Stands in for ``time``: the test says how late it is."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(terminal, "time", made)
    monkeypatch.setenv("TERM", "xterm-256color")
    return made


def test_without_a_terminal_at_most_one_plain_line_in_five_seconds(clock: Clock) -> None:
    stream = io.StringIO()
    line = ProgressLine(stream)
    for tenth in range(300):
        line.show(f"step {tenth}")
        clock.now_s += 0.1
    line.clear()
    lines = stream.getvalue().splitlines()
    assert 4 <= len(lines) <= 6
    assert "\x1b" not in stream.getvalue()
    assert "\r" not in stream.getvalue()


def test_what_ends_at_once_shows_no_plain_progress(clock: Clock) -> None:
    stream = io.StringIO()
    ProgressLine(stream).show("step 1")
    assert stream.getvalue() == ""


def test_a_terminal_shows_one_line_that_is_erased(clock: Clock) -> None:
    stream = Screen()
    line = ProgressLine(stream)
    for step in range(3):
        line.show(f"step {step} {'x' * 500}")
        clock.now_s += 0.2
    line.clear()
    text = stream.getvalue()
    assert "\n" not in text
    assert text.endswith("\r\x1b[K")
    assert max(len(part) for part in text.split("\r\x1b[K")) < 500


def test_a_dumb_terminal_is_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    assert not is_terminal(Screen())
    monkeypatch.setenv("TERM", "xterm")
    assert is_terminal(Screen())
    assert not is_terminal(io.StringIO())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_signals_count_as_an_interruption_inside_only(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt), interruptible():
        signal.raise_signal(number)
    assert signal.getsignal(number) is before
