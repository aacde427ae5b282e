"""How long the first key to each screen takes, with and without screens made ready ahead (``kvtop.tui.ahead``).

    python tests/perf/first_keys.py [--runs 4] [--wait 4]

``kvtop live -m tiny`` on a pseudo terminal of 100x32, paused, so that little but the key makes it write; with and
without in turn. From the key to the last byte within WINDOW_S; then each key again. Without: the screen's module is
imported at the key, and the screen made.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parents[1] / "tui"))

from pseudo_terminal import PseudoTerminal  # pyright: ignore[reportMissingImports]

KEYS, WINDOW_S = b"2345678", 0.8
START = """
import sys
import kvtop.tui.app as app
from kvtop.cli.main import main
if sys.argv.pop(1) == "without":
    app.Ahead = lambda _: None
sys.exit(main(sys.argv[1:]))
"""


def key_seconds(how: str, wait_s: float) -> tuple[list[float], list[float]]:
    """Of each of KEYS: the first time, and the second."""
    command = [sys.executable, "-c", START, how, "live", "-m", "tiny", "-w", "default"]
    terminal = PseudoTerminal(command, PYTHONWARNINGS="ignore", COLUMNS="100", LINES="32")
    try:
        terminal.read_until("\u25b6 running".encode(), timeout_s=120)
        terminal.press(b"p")
        terminal.read_until(b"paused")
        _read(terminal, wait_s)
        return [_press(terminal, key) for key in KEYS], [_press(terminal, key) for key in KEYS]
    finally:
        terminal.close()


def _press(terminal: PseudoTerminal, key: int) -> float:
    begin = time.perf_counter()
    terminal.press(bytes([key]))
    return _read(terminal, WINDOW_S) - begin


def _read(terminal: PseudoTerminal, seconds: float) -> float:
    """Read for a while; when something was written last."""
    end, last = time.perf_counter() + seconds, float("nan")
    while time.perf_counter() < end:
        length = len(terminal.output)
        terminal._read(0.002)
        if len(terminal.output) > length:
            last = time.perf_counter()
    return last


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=int, default=4)
    parser.add_argument("--wait", type=float, default=4.0)
    arguments = parser.parse_args()
    found: dict[str, list[float]] = {}
    for _ in range(arguments.runs):
        for how in ("with", "without"):
            for which, seconds in zip(("first", "second"), key_seconds(how, arguments.wait), strict=True):
                found.setdefault(f"{how}, {which} visit", []).extend(seconds)
    print(f"load average {os.getloadavg()[0]:.1f}\n\n| what | median, ms | least to most | n |\n|---|---|---|---|")
    for what, seconds in found.items():
        low, high = min(seconds), max(seconds)
        print(f"| {what} | {median(seconds) * 1e3:.0f} | {low * 1e3:.0f} to {high * 1e3:.0f} | {len(seconds)} |")


if __name__ == "__main__":
    main()
