"""Short real runs of the engine without a model, recorded to a directory."""

from __future__ import annotations

import random
from pathlib import Path

from kvtop.engine.api import Engine, EngineConfig, NullExecutor, Recorder, RequestSpec, SamplingParams
from kvtop.engine.events import Event, RunEnded, RunStarted
from kvtop.results.manifest import build_manifest, write_manifest
from kvtop.results.recording import FRAMES_NAME, FrameWriter
from kvtop.run.spec import RunSpec
from kvtop.workloads.spec import WorkloadSpec

STEP_NS = 10_000_000


def make_engine(**config: object) -> Engine:
    values = {"num_blocks": 16, "block_size": 4, "max_num_seqs": 4, "max_batched_tokens": 16} | config
    return Engine(EngineConfig(**values), NullExecutor(STEP_NS), recorder=Recorder())  # type: ignore[arg-type]


def specs(count: int, seed: int = 0) -> list[RequestSpec]:
    """Requests that share prefixes, preempt each other and branch."""
    rng = random.Random(seed)
    shared = [rng.randrange(1000) for _ in range(20)]
    return [
        RequestSpec(
            shared[: rng.randrange(1, 20)] + [rng.randrange(1000) for _ in range(rng.randrange(6))],
            SamplingParams(max_tokens=rng.randrange(1, 16), n=rng.choice((1, 1, 2))),
            request_id=f"q{i}",
            arrival_ns=i * STEP_NS,
            tenant="t" if i % 2 else "",
            klass="chat",
        )
        for i in range(count)
    ]


def events_of(engine: Engine, requests: list[RequestSpec], *, max_steps: int = 10_000) -> list[Event]:
    """Serve everything, one submission a step."""
    queue = list(requests)
    events: list[Event] = [engine.keyframe()]
    for _ in range(max_steps):
        if queue:
            engine.submit_spec(queue.pop(0))
        if not engine.has_work and not queue:
            break
        engine.step()
        events += engine.recorder.drain()
    return events


def manifest_of(**info: object) -> dict[str, object]:
    spec = RunSpec(workload=WorkloadSpec(name="test"), executor="null")
    values = {"clock": "virtual", "policy": "fcfs", "block_size_tokens": 4, "num_blocks": 16} | info
    return build_manifest(spec, values, workload_hash="abc", trace_sha256=None, num_requests=1)


def record(run_dir: Path, events: list[Event], *, status: str | None = "complete") -> Path:
    """A run directory with a manifest and a recording, and no tables yet."""
    run_dir.mkdir(parents=True, exist_ok=True)
    manifest = manifest_of()
    write_manifest(run_dir, manifest)
    with FrameWriter(run_dir / FRAMES_NAME) as writer:
        writer.write([RunStarted(run_id=str(manifest["run_id"]), manifest=manifest)])
        for event in events:
            writer.write([event])
        if status is not None:
            writer.write([RunEnded(t_ns=0, status=status)])
    return run_dir
