"""What TUIs are known to get wrong: a terminal that goes away, poor terminals, idle bytes, extreme sizes."""

from __future__ import annotations

import re
import subprocess
import sys
import time
import unicodedata
from pathlib import Path

import pytest
from pseudo_terminal import RESTORED, PseudoTerminal
from rich.cells import cell_len
from textual.containers import VerticalScroll
from textual.widget import Widget
from textual.widgets import OptionList
from tui_fakes import app_with, go, recorded, screen_lines, settled

from kvtop.tui import glyphs
from kvtop.tui.screens import SCREENS

PROGRAM = """
import itertools, sys, time
sys.path.insert(0, sys.argv[1])
from tui_fakes import FakeSession, recorded
from kvtop.tui.launch import run_app

session = FakeSession(recorded()[:20])
if "busy" in sys.argv:  # a screen whose every frame differs
    left, began_s, told = itertools.cycle(recorded()), time.monotonic(), 0

    def poll(timeout_s=0.0):
        global told
        before, told = told, int(100 * (time.monotonic() - began_s))  # events a second
        return list(itertools.islice(left, told - before))

    session.poll = poll
sys.exit(run_app(session, mouse="nomouse" not in sys.argv))
"""
LIMIT_S = 60.0
IDLE_S, IDLE_BYTES = 2.0, 1_000


@pytest.fixture
def terminal():
    opened: list[PseudoTerminal] = []

    def start(*flags: str, folder: Path | None = None, **environment: str) -> PseudoTerminal:
        here = f"cd {folder or Path.cwd()} && exec "
        words = [sys.executable, "-c", PROGRAM, str(Path(__file__).parent), *flags]
        command = ["sh", "-c", here + '"$@"', "sh", *words]
        opened.append(PseudoTerminal(command, **environment))
        return opened[-1]

    yield start
    for one in opened:
        one.close()


def written_in(screen: PseudoTerminal, seconds: float) -> tuple[int, float]:
    """(bytes that it writes in ``seconds``, how long that was)."""
    before, began_s = len(screen.output), time.monotonic()
    while time.monotonic() - began_s < seconds:
        screen._read(0.1)
    return len(screen.output) - before, time.monotonic() - began_s


def test_a_terminal_that_goes_away_ends_the_process_even_without_a_signal(terminal):
    screen = terminal()
    screen.read_until(b"Findings")
    screen.hang_up()
    assert screen.process.wait(LIMIT_S) == 128 + 1  # as if SIGHUP had come


def test_ctrl_c_twice_leaves_a_clean_terminal(terminal):
    screen = terminal()
    screen.read_until(b"Findings")
    screen.press(b"\x03\x03")
    assert screen.wait() == 130
    assert all(code in screen.output for code in RESTORED)
    assert b"Traceback" not in screen.output
    screen_codes = screen.output.rfind(b"\x1b[?1049h"), screen.output.rfind(b"\x1b[?1049l")
    assert screen_codes[0] < screen_codes[1]


def test_an_old_terminal_without_colours_utf_8_or_a_mouse(terminal, tmp_path):
    screen = terminal("nomouse", folder=tmp_path, LC_ALL="C", PYTHONUTF8="0", NO_COLOR="1")
    screen.wait_for("Findings", "q quit")
    deadline_s = time.monotonic() + LIMIT_S
    while written_in(screen, IDLE_S)[0] >= IDLE_BYTES:  # once all is drawn
        assert time.monotonic() < deadline_s, screen.output[-IDLE_BYTES:]
    drawn = screen.output
    screen.press(b"q")
    assert screen.wait() == 0
    assert drawn.isascii()
    for code in re.findall(rb"\x1b\[([0-9;]*)m", screen.output):
        for number in code.split(b";"):
            assert number in (b"", b"0", b"1", b"2", b"3", b"4", b"7", b"39", b"49"), code
    assert not re.search(rb"\x1b\[\?100[0236]h", screen.output)
    assert list(tmp_path.iterdir()) == []  # nothing is written where the user stands


@pytest.mark.parametrize("flags", [(), ("nomouse",)])
def test_the_mouse_goes_to_the_terminal_and_comes_back(terminal, flags):
    """Before it is anybody's but the terminal's, nothing can be selected and copied there."""
    screen = terminal(*flags)
    screen.read_until(b"Findings")
    on, off = b"\x1b[?1003h", b"\x1b[?1003l"
    assert (on in screen.output) == (not flags)
    for code in (on, off) if flags else (off, on, off):
        screen.output = b""
        screen.press(b"M")
        screen.read_until(code)
    screen.output = b""
    screen.press(b"1q")
    assert screen.wait() == 0
    assert on not in screen.output


@pytest.mark.parametrize(("key", "shown"), [(b"1", "Findings"), (b"2", "Block map"), (b"4", "who runs, who waits")])
def test_a_busy_screen_stays_below_what_a_slow_line_carries(terminal, key, shown):
    screen = terminal("busy")
    screen.read_until(b"Findings")
    screen.press(key)
    screen.wait_for(shown)
    written_in(screen, 0.5)  # the new screen itself
    written, seconds = written_in(screen, 1.0)
    deadline_s = time.monotonic() + LIMIT_S
    while written <= 500:  # it is busy
        assert time.monotonic() < deadline_s, written
        more, took_s = written_in(screen, 1.0)
        written, seconds = written + more, seconds + took_s
    assert written < 250_000 * seconds
    screen.press(b"q")
    assert screen.wait() == 0


def test_standard_error_in_a_file_is_refused_before_anything_is_drawn(tmp_path):
    told = tmp_path / "told"
    shell = f'"{sys.executable}" -m kvtop live --executor null 2>"{told}"'
    screen = PseudoTerminal(["sh", "-c", shell])
    assert screen.wait() == 2
    screen.close()
    assert b"\x1b[?1049h" not in screen.output
    assert told.read_text().count("\n") == 1
    assert "standard error is not a terminal" in told.read_text()


@pytest.mark.parametrize("entry", SCREENS, ids=lambda entry: entry.name)
async def test_every_screen_fills_the_smallest_and_the_largest_terminal(entry):
    app = app_with(recorded())
    async with app.run_test(size=(80, 24)) as pilot:
        await settled(pilot)
        await go(pilot, entry.key)
        for width, height in ((1, 1), (300, 100), (3, 90), (61, 17)):
            await pilot.resize_terminal(width, height)
            await pilot.pause()
            app.tick()
            await pilot.pause()
            lines = screen_lines(app)
            assert len(lines) == height
            assert all(cell_len(line) == width for line in lines), (width, height)


@pytest.mark.parametrize("keys", [("e",), ("b",), ("x",), ("colon",), ("question_mark",), ("4", "w")], ids="-".join)
async def test_no_dialog_is_cut_off_at_80x24(keys):
    app = app_with(recorded()[:-1])
    async with app.run_test(size=(80, 24)) as pilot:
        await settled(pilot)
        await pilot.press(*keys)
        await settled(pilot)
        await settled(pilot)
        assert len(app.screen_stack) == 3, keys  # a dialog over a screen over the empty one
        shown = [widget for widget in app.screen.query("*") if widget.size.area and not _scrolls(widget)]
        assert shown
        for widget in shown:
            assert app.screen.region.contains_region(widget.region), (keys, widget, widget.region)


def _scrolls(widget: Widget) -> bool:
    """It lies in something that can be scrolled to it."""
    return any(isinstance(node, (VerticalScroll, OptionList)) for node in widget.ancestors)


async def test_what_a_lead_selects_is_told_beside_the_table_in_a_frozen_view_too():
    app = app_with(recorded())
    async with app.run_test(size=(120, 40)) as pilot:
        await settled(pilot)
        await go(pilot, "space", "4")
        names = [name for name in app.timeline.view.sequences if "." not in name]
        for name in (names[-1], names[0]):
            app.select("request", name)
            await settled(pilot)
            await settled(pilot)
            lines = screen_lines(app)
            told = next(i for i, line in enumerate(lines) if "Life of a request" in line)
            assert lines[told + 1].split()[0] == name


def test_glyphs_of_the_map_are_one_cell_wide_in_every_terminal():
    for glyph in (glyphs.FRESH, glyphs.IDLE, glyphs.USED, glyphs.PARTIAL, glyphs.TRANSFER, glyphs.MANY):
        assert unicodedata.east_asian_width(glyph) in ("N", "Na"), glyph


def test_the_application_is_not_imported_by_what_starts_without_a_screen():
    code = "import sys, kvtop.tui.launch; print([m for m in ('textual', 'numpy', 'torch') if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert result.stdout.strip() == "[]"  # the engine is started first, and loads while Textual is imported
