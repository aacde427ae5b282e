"""What the TUI costs: a frame of a large pool, idling, and the time to the first paint.

    python tests/perf/tui.py [--blocks 100000] [--frames 200] [--model default]

Frames: events of a real engine (null executor, 1,000 sequences, 3,072 tokens a step, 10 steps a frame: 0.25 s of steps
of 25 ms) are folded and drawn at 200x50 on a headless driver; CPU time of this process. First paint: ``kvtop`` on a
pseudo terminal, from the command to the first row of its header, and to the first engine step. Idle: CPU time of the
paused TUI's own process.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import sys
import time
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).parents[1] / "tui"))

from pseudo_terminal import PseudoTerminal  # pyright: ignore[reportMissingImports]
from tui_fakes import FakeSession  # pyright: ignore[reportMissingImports]

from kvtop.engine.api import Engine, EngineConfig, NullExecutor, SamplingParams
from kvtop.engine.events import Event, RunStarted
from kvtop.engine.recorder import Recorder
from kvtop.stats import percentile
from kvtop.tui.app import KvtopApp

STEPS_A_FRAME, SEQUENCES, WARM_UP = 10, 1_000, 20
IDLE_S = 10.0


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


async def frame_seconds(num_blocks: int, frames: int) -> tuple[list[float], list[float]]:
    """CPU seconds of each frame: folding its events, and drawing what they changed."""
    serving = Serving(num_blocks)
    session = FakeSession([RunStarted(run_id="r", manifest={"num_blocks": num_blocks}), serving.engine.keyframe()])
    made = [serving.events() for _ in range(frames + WARM_UP)]
    del serving
    gc.collect()
    gc.freeze()  # the events, which in a real run are in another process
    app = KvtopApp(session, hz=0.001)  # the frames are made by hand
    folding, drawing = [], []
    async with app.run_test(size=(200, 50)) as pilot:
        app.tick()
        await pilot.pause(0.2)
        for events in made:
            session.events.extend(events)
            begin = time.process_time()
            while session.events or app.feed.behind:
                app.feed.fold_pending()
            folded = time.process_time()
            app._show()
            await pilot.pause()
            folding.append(folded - begin)
            drawing.append(time.process_time() - folded)
    return sorted(folding[WARM_UP:]), sorted(drawing[WARM_UP:])


def first_paint(model: str) -> tuple[float, float, float]:
    """Seconds to the first paint, seconds to the first step, and the share of a core while paused."""
    begin = time.perf_counter()
    command = [sys.executable, "-m", "kvtop", "live", "-m", model, "-w", "default"]
    terminal = PseudoTerminal(command, PYTHONWARNINGS="ignore")
    try:
        terminal.wait_for("kvtop")
        painted = time.perf_counter() - begin
        terminal.wait_for("\u25b6 running", timeout_s=120)
        running = time.perf_counter() - begin
        terminal.press(b" ")
        terminal.wait_for("paused")
        process = psutil.Process(terminal.process.pid)
        _read_for(terminal, 2.0)
        before = sum(process.cpu_times()[:2])
        _read_for(terminal, IDLE_S)
        idle = (sum(process.cpu_times()[:2]) - before) / IDLE_S
        terminal.press(b"q")
        terminal.wait()
    finally:
        terminal.close()
    return painted, running, idle


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
    for what, taken in zip(("folding", "drawing"), asyncio.run(frame_seconds(*sizes)), strict=True):
        p50, p99 = percentile(taken, 50) or 0, percentile(taken, 99) or 0
        figure = f"{p50 * 1e3:.1f} / {p99 * 1e3:.1f} ms, n = {len(taken)}"
        print(f"| {what} a frame of {arguments.blocks:,} blocks, CPU p50 / p99 | {figure} |")
    painted, running, idle = first_paint(arguments.model)
    print(f"| first paint after the command | {painted:.2f} s |")
    print(f"| first step after the command | {running:.2f} s |")
    print(f"| CPU while paused | {idle:.1%} of a core |")


if __name__ == "__main__":
    main()
