"""What being watched costs the engine: the same requests with nobody looking, and with the TUI attached.

    python tests/perf/watched.py [--pairs 5] [--model default] [--requests 24]

Alternating runs of the torch executor, everything queued at the start. Unwatched: the engine steps in a process of its
own with the null recorder. Watched: ``kvtop live`` as users start it (engine in a child process, events over the pipe,
the TUI on a pseudo terminal of 120x40 that somebody reads). Bare: the same without screens made ready
(``kvtop.tui.ahead``), which is done once, in the first seconds. All times run from the first step's start to the last
step's end. Steps and tokens must be the same in all runs.
"""

from __future__ import annotations

import argparse
import json
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

WIDTH, HEIGHT = 120, 40
NUM_BLOCKS = 512
ROLES = ("unwatched", "watched", "bare")


def run_spec(model: str, requests: int):
    from kvtop.run.spec import RunSpec
    from kvtop.workloads.spec import WorkloadSpec

    workload = WorkloadSpec(name="default", limit=requests, time_scale=0.0)
    return RunSpec(workload=workload, model=model, num_blocks=NUM_BLOCKS)


def unwatched(model: str, requests: int) -> dict[str, float]:
    """Body of the process without observers."""
    from kvtop.engine.recorder import NullRecorder
    from kvtop.engine.worker import build_engine, settle_memory
    from kvtop.workloads.load import load_workload

    spec = run_spec(model, requests)
    built = build_engine(
        engine=spec.engine,
        executor=spec.executor,
        executor_params=spec.executor_params,
        model=spec.model,
        device=spec.device,
        num_blocks=spec.num_blocks,
        kv_memory_bytes=None,
        recorder=NullRecorder(),
        progress=lambda text, fraction: None,
    )
    engine = built.engine
    longest = engine.config.effective_len
    source = load_workload(spec.workload, vocab_size=built.vocab_size, max_model_len=longest).source()
    for request in source.pop_due(1):
        engine.submit_spec(request)
    settle_memory()
    begin, tokens = time.perf_counter(), 0
    while engine.has_requests:
        tokens += sum(map(len, engine.step().tokens.values()))
    return {"seconds": time.perf_counter() - begin, "steps": engine.num_steps, "tokens": tokens}


def watched(model: str, requests: int, answer: Path, is_bare: bool) -> None:
    """Body of the process that shows the TUI; quits when the run has ended."""
    from kvtop.engine.events import Event, RunEnded, StepEvent
    from kvtop.run.session import RunSession
    from kvtop.tui.launch import run_app

    class Watch(RunSession):
        first_ns: int | None = None
        last_ns = steps = tokens = 0

        def poll(self, timeout_s: float = 0.0) -> list[Event]:
            events = super().poll(timeout_s)
            for event in events:
                if isinstance(event, StepEvent) and event.prefill_tokens + event.decode_tokens:
                    self.first_ns = event.t_start_ns if self.first_ns is None else self.first_ns
                    self.last_ns, self.steps = event.t_done_ns, self.steps + 1
                    self.tokens += sum(count for _, count in event.emitted)
                elif isinstance(event, RunEnded):
                    seconds = (self.last_ns - (self.first_ns or 0)) / 1e9
                    answer.write_text(json.dumps({"seconds": seconds, "steps": self.steps, "tokens": self.tokens}))
                    os.kill(os.getpid(), signal.SIGTERM)
            return events

    if is_bare:
        import kvtop.tui.app

        kvtop.tui.app.Ahead = lambda app: None  # type: ignore[misc,assignment]
    run_app(Watch(run_spec(model, requests)))


def on_a_terminal(command: list[str]) -> None:
    """Run ``command`` on a pseudo terminal, reading what it draws."""
    import fcntl
    import termios

    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", HEIGHT, WIDTH, 0, 0))
    environment = {**os.environ, "TERM": "xterm-256color", "LC_ALL": "C.UTF-8"}
    process = subprocess.Popen(
        command, stdin=slave, stdout=slave, stderr=slave, env=environment, start_new_session=True
    )
    os.close(slave)
    try:
        while process.poll() is None:
            if select.select([master], [], [], 0.2)[0]:
                try:
                    os.read(master, 65536)
                except OSError:
                    break
        process.wait(30)
    finally:
        if process.poll() is None:
            process.kill()
        os.close(master)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--model", default="default")
    parser.add_argument("--requests", type=int, default=24)
    parser.add_argument("--role", choices=ROLES, help=argparse.SUPPRESS)
    parser.add_argument("--answer", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.role == "unwatched":
        arguments.answer.write_text(json.dumps(unwatched(arguments.model, arguments.requests)))
        return
    if arguments.role is not None:
        watched(arguments.model, arguments.requests, arguments.answer, arguments.role == "bare")
        return
    ratios: dict[str, list[float]] = {"watched": [], "bare": []}
    work = set()
    print("| pair | unwatched s | watched s | bare s | watched / unwatched | bare / unwatched |")
    print("|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory(prefix="kvtop-watched-") as folder:
        for pair in range(arguments.pairs):
            seconds = {}
            for role in ROLES if pair % 2 == 0 else reversed(ROLES):
                answer = Path(folder) / f"{role}-{pair}.json"
                command = [sys.executable, __file__, "--model", arguments.model]
                command += ["--requests", str(arguments.requests), "--role", role, "--answer", str(answer)]
                if role != "unwatched":
                    on_a_terminal(command)
                else:
                    subprocess.run(command, check=True)
                told = json.loads(answer.read_text())
                seconds[role] = told["seconds"]
                work.add((told["steps"], told["tokens"]))
            for role, of_role in ratios.items():
                of_role.append(seconds[role] / seconds["unwatched"])
            cells = [f"{seconds[role]:.2f}" for role in ROLES] + [f"{found[-1]:.3f}" for found in ratios.values()]
            print(f"| {pair + 1} | {' | '.join(cells)} |", flush=True)
    medians = ", ".join(f"{role} {median(of_role):.3f}" for role, of_role in ratios.items())
    print(f"\nmedian {medians} (n = {arguments.pairs}); steps and output tokens of all runs: {sorted(work)}")


if __name__ == "__main__":
    main()
