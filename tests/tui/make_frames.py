"""Writes data/frames.msgpack.zst: the run the TUI tests look at. Run it again only to change that run.

A NullExecutor engine in virtual time under requests that share prefixes, fork, wait and preempt each other:

    .venv/bin/python tests/tui/make_frames.py
"""

from __future__ import annotations

import random
from pathlib import Path

from kvtop.engine.api import Engine, EngineConfig, NullExecutor
from kvtop.engine.events import Event, RunStarted
from kvtop.engine.recorder import Recorder
from kvtop.engine.types import RequestSpec, SamplingParams
from kvtop.results.recording import FrameWriter

PATH = Path(__file__).parent / "data" / "frames.msgpack.zst"
NUM_STEPS, STEP_NS = 498, 31_000_000
CONFIG = EngineConfig(num_blocks=512, block_size=16, max_num_seqs=24, max_batched_tokens=256, policy="fcfs")
MANIFEST = {
    "model": "SmolLM2-135M-Instruct",
    "device": "cpu",
    "dtype": "float32",
    "executor": "null",
    "clock": "virtual",
    "policy": CONFIG.policy,
    "workload": "shared-prompts",
    "num_blocks": CONFIG.num_blocks,
    "block_size_tokens": CONFIG.block_size,
    "max_num_seqs": CONFIG.max_num_seqs,
    "max_batched_tokens": CONFIG.max_batched_tokens,
    "prefix_caching": True,
}


def requests(seed: int = 7, count: int = 60) -> list[RequestSpec]:
    """Conversations that begin with one of three system prompts; every ninth asks for three answers."""
    rng = random.Random(seed)
    prefixes = [[rng.randrange(1000) for _ in range(length)] for length in (64, 160, 320)]
    specs, due_ns = [], 0
    for i in range(count):
        due_ns += int(rng.expovariate(3.0) * 1e9)
        prompt = rng.choice(prefixes) + [rng.randrange(1000) for _ in range(rng.randint(20, 700))]
        params = SamplingParams(max_tokens=rng.randint(40, 260), n=3 if i % 9 == 4 else 1)
        specs.append(RequestSpec(prompt=prompt, params=params, request_id=f"conv-{i}", arrival_ns=due_ns))
    return specs


def record() -> list[list[Event]]:
    """The run as lists of events, one a step."""
    recorder = Recorder()
    engine = Engine(CONFIG, NullExecutor(step_time_ns=STEP_NS), recorder=recorder)
    pending = requests()
    frames: list[list[Event]] = [[RunStarted(run_id="snapshot", manifest=MANIFEST)], [engine.keyframe()]]
    for _ in range(NUM_STEPS):
        now = engine.clock.now_ns()
        while pending and (pending[0].arrival_ns or 0) <= now:
            engine.submit_spec(pending.pop(0))
        if engine.has_work:
            engine.step()
        else:
            engine.clock.advance(STEP_NS)
        if events := recorder.drain():
            frames.append(events)
    return frames


def main() -> None:
    with FrameWriter(PATH) as writer:
        for events in record():
            writer.write(events)
    print(f"{PATH}: {PATH.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
