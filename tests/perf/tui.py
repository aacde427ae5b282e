"""What the TUI costs: a frame of a large pool, going back in time, idling, and the time to the first paint.

    python tests/perf/tui.py [--blocks 100000] [--frames 200] [--model default]

Frames: events of a real engine (null executor, 1,000 sequences, 3,072 tokens a step, 10 steps a frame: 0.25 s of steps
of 25 ms) are folded and drawn at 200x50, escape codes included, for a terminal that throws them away; CPU time of this
process until the frame is painted and what it set off is done. Going back: to steps drawn at random from those that the
ring holds. The rest: ``kvtop`` on a pseudo terminal of that size, CPU time of the TUI's own process, bytes it writes
there, and times on the wall.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import random
import sys
import time
from importlib import import_module
from pathlib import Path
from statistics import median

import psutil
from textual.drivers.headless_driver import HeadlessDriver

sys.path.insert(0, str(Path(__file__).parents[1] / "tui"))

from pseudo_terminal import PseudoTerminal  # pyright: ignore[reportMissingImports]
from tui_fakes import FakeSession  # pyright: ignore[reportMissingImports]

from kvtop.analysis.stats import percentile
from kvtop.engine.api import Engine, EngineConfig, NullExecutor, SamplingParams
from kvtop.engine.events import Event, RunStarted
from kvtop.engine.recorder import Recorder
from kvtop.state.timeline import Timeline
from kvtop.tui.app import KvtopApp
from kvtop.tui.garbage import rarely_searched
from kvtop.tui.pace import Pace
from kvtop.tui.screens import SCREENS

STEPS_A_FRAME, SEQUENCES, WARM_UP = 10, 1_000, 20
AFTER_S = 0.03  # from a painted frame until everybody has rest again; no CPU time passes while they do
IDLE_S = 10.0
SEEKS = 40
SCREENS_DRAWN = ("1", "2")


class Serving:
    """An engine without a model whose pool fills up, then lives from evictions."""

    def __init__(self, num_blocks: int) -> None:
        self.recorder = Recorder()
        config = EngineConfig(
            num_blocks=num_blocks,
            block_size=16,
            max_num_seqs=SEQUENCES,
            max_batched_tokens=3_072,
            max_model_len=8_192,
            policy="fcfs",
        )
        self.engine = Engine(config, NullExecutor(step_time_ns=20_000_000), recorder=self.recorder)
        self._next = 0

    def events(self) -> list[Event]:
        """Of the next steps."""
        for _ in range(STEPS_A_FRAME):
            while len(self.engine.scheduler.waiting) < 50:
                self._next += 1
                prompt = list(range(self._next, self._next + 400 + self._next % 1_500))
                self.engine.submit(prompt, SamplingParams(max_tokens=50 + self._next % 200))
            self.engine.step()
        return self.recorder.drain()


class ToldPace(Pace):
    """Tells when a frame has been painted."""

    def __init__(self) -> None:
        super().__init__()
        self.is_painted = asyncio.Event()

    def painted(self) -> None:
        super().painted()
        self.is_painted.set()


async def frame_seconds(num_blocks: int, frames: int, key: str) -> tuple[list[float], list[float]]:
    """CPU seconds of each frame on the screen ``key``: folding its events, and drawing what they changed."""
    serving = Serving(num_blocks)
    session = FakeSession([RunStarted(run_id="r", manifest={"num_blocks": num_blocks}), serving.engine.keyframe()])
    made = [serving.events() for _ in range(frames + WARM_UP)]
    del serving
    gc.collect()
    gc.freeze()  # the events, which in a real run are in another process
    for name in (*(entry.module for entry in SCREENS), "numpy"):
        import_module(name)  # the application does so in its first seconds, one at a time
    app = KvtopApp(session, hz=0.001)  # the frames are made by hand
    app.pace = pace = ToldPace()
    HeadlessDriver.is_headless = property(lambda self: False)  # type: ignore[assignment]  # what it writes is made, too
    folding, drawing = [], []
    with rarely_searched():  # as in ``run_app``
        async with app.run_test(size=(200, 50)) as pilot:
            app.tick()
            await pilot.press(key)
            await pilot.pause(0.2)
            while not app.ahead.is_done:  # making other screens ready is work of the first seconds only
                await asyncio.sleep(0.05)
            for events in made:
                session.events.extend(events)
                begin = time.process_time()
                while session.events or app.feed.behind:
                    app.feed.fold_pending()
                folded = time.process_time()
                pace.is_painted.clear()
                app.show_now()
                await pace.is_painted.wait()
                await asyncio.sleep(AFTER_S)
                folding.append(folded - begin)
                drawing.append(time.process_time() - folded)
    return sorted(folding[WARM_UP:]), sorted(drawing[WARM_UP:])


def seek_seconds(num_blocks: int, frames: int) -> list[float]:
    """CPU seconds of going to a step, wherever the cursor was before."""
    serving, line = Serving(num_blocks), Timeline()
    for event in (RunStarted(run_id="r", manifest={"num_blocks": num_blocks}), serving.engine.keyframe()):
        line.fold(event)
    for _ in range(frames):
        for event in serving.events():
            line.fold(event)
    del serving
    gc.collect()
    gc.freeze()
    choose, taken = random.Random(1), []
    for _ in range(SEEKS):
        step = choose.randint(1, line.live.step)
        begin = time.process_time()
        line.seek(step)
        taken.append(time.process_time() - begin)
        assert line.view.step == step
    line.ring.close()
    return sorted(taken)


def first_paint(model: str) -> dict[str, str]:
    """At 200x50: the way to the first paint and step, what a busy and a paused screen cost, and how fast it quits."""
    begin = time.perf_counter()
    command = [sys.executable, "-m", "kvtop", "live", "-m", model, "-w", "default"]
    terminal = PseudoTerminal(command, PYTHONWARNINGS="ignore", COLUMNS="200", LINES="50")
    found: dict[str, str] = {}
    try:
        terminal.read_until(b"kvtop")
        found["first paint after the command"] = f"{time.perf_counter() - begin:.2f} s"
        terminal.read_until("\u25b6 running".encode(), timeout_s=120)
        found["first step after the command"] = f"{time.perf_counter() - begin:.2f} s"
        process = psutil.Process(terminal.process.pid)
        _read_for(terminal, 3.0)
        cpu, written = _share(terminal, process)
        found["CPU while the engine runs, 200x50"] = f"{cpu:.1%} of a core"
        found["written to the terminal while it runs"] = f"{written / 1e3:.0f} kB/s"
        first, later = _key_seconds(terminal)
        found["key to a screen not shown before"] = f"{first * 1e3:.0f} ms"
        found["key to screen (median of 8)"] = f"{later * 1e3:.0f} ms"
        terminal.press(b"p")
        terminal.read_until(b"paused")
        _read_for(terminal, 2.0)
        cpu, written = _share(terminal, process)
        found["CPU while paused"] = f"{cpu:.1%} of a core"
        found["written to the terminal while paused"] = f"{written:.0f} B/s"
        begin = time.perf_counter()
        terminal.press(b"q")
        terminal.read_until(b"\x1b[?1049l")
        found["quit: the terminal is given back"] = f"{(time.perf_counter() - begin) * 1e3:.0f} ms"
        terminal.wait()
    finally:
        terminal.close()
    return found


def _share(terminal: PseudoTerminal, process: psutil.Process) -> tuple[float, float]:
    """Share of a core, and bytes a second, over IDLE_S."""
    before, length = sum(process.cpu_times()[:2]), len(terminal.output)
    _read_for(terminal, IDLE_S)
    return (sum(process.cpu_times()[:2]) - before) / IDLE_S, (len(terminal.output) - length) / IDLE_S


def _key_seconds(terminal: PseudoTerminal) -> tuple[float, float]:
    """From a key that changes the screen to the first byte of its new title: the first time, then there and back."""
    taken = []
    for i in range(9):
        key, title = (b"8", b"Source") if i % 2 == 0 else (b"1", b"Findings")
        terminal.output = b""
        begin = time.perf_counter()
        terminal.press(key)
        terminal.read_until(title)
        taken.append(time.perf_counter() - begin)
        _read_for(terminal, 0.3)
    return taken[0], median(taken[1:])


def _read_for(terminal: PseudoTerminal, seconds: float) -> None:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        terminal._read(0.1)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--blocks", type=int, default=100_000)
    parser.add_argument("--frames", type=int, default=200)
    parser.add_argument("--model", default="default")
    arguments = parser.parse_args()
    sizes = arguments.blocks, arguments.frames
    print(f"load average {os.getloadavg()[0]:.1f}\n\n| what | figure |\n|---|---|")
    for key in SCREENS_DRAWN:
        name = next(entry.name for entry in SCREENS if entry.key == key)
        for what, taken in zip(("folding", "drawing"), asyncio.run(frame_seconds(*sizes, key)), strict=True):
            p50, p99 = percentile(taken, 50) or 0, percentile(taken, 99) or 0
            figure = f"{p50 * 1e3:.1f} / {p99 * 1e3:.1f} ms, n = {len(taken)}"
            print(f"| {name}: {what} a frame of {arguments.blocks:,} blocks, CPU p50 / p99 | {figure} |")
    seeks = seek_seconds(*sizes)
    figure = f"{(percentile(seeks, 50) or 0) * 1e3:.0f} / {seeks[-1] * 1e3:.0f} ms, n = {len(seeks)}"
    print(f"| going to a step, {arguments.blocks:,} blocks, CPU p50 / max | {figure} |")
    for what, figure in first_paint(arguments.model).items():
        print(f"| {what} | {figure} |")


if __name__ == "__main__":
    main()
