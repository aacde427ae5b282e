"""Small engine scenarios without a model, and what `why` says about a request in them. A step takes 10 ms."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvtop.engine.api import Engine, EngineConfig, NullExecutor, Recorder, SamplingParams
from kvtop.engine.events import Event, RunEnded, RunStarted
from kvtop.results.manifest import build_manifest, write_manifest
from kvtop.results.recording import FRAMES_NAME, FrameWriter
from kvtop.results.tables import write_tables
from kvtop.run.spec import RunSpec
from kvtop.why import Line, explain, facts_of
from kvtop.workloads.spec import WorkloadSpec

STEP = 10_000_000  # ns


class Scenario:
    """An engine whose events are kept. ``run`` is what run.json would say of it."""

    def __init__(self, num_blocks: int = 8, block_size: int = 4, **config: Any) -> None:
        values: dict[str, Any] = {"max_num_seqs": 8, "max_batched_tokens": 64, "max_model_len": 64, **config}
        self.engine = Engine(
            EngineConfig(num_blocks=num_blocks, block_size=block_size, **values),
            NullExecutor(STEP),
            recorder=Recorder(),
        )
        self.run: Mapping[str, Any] = {
            "status": "complete",
            "block_size_tokens": block_size,
            "num_blocks": num_blocks,
            "max_model_len": self.engine.config.effective_len,
            "max_batched_tokens": values["max_batched_tokens"],
            "clock": "virtual",
        }
        self.events: list[Event] = []

    def submit(self, rid: str, prompt: list[int], m: int = 1, *, n: int = 1, **fields: Any) -> None:
        self.engine.submit(prompt, SamplingParams(max_tokens=m, n=n), request_id=rid, **fields)

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.engine.step()

    def finish(self, limit: int = 200) -> None:
        """Step until nothing is left, not even a decision to tell."""
        for _ in range(limit):
            if not self.engine.has_work:
                break
            self.engine.step()
        assert not self.engine.has_work

    def why(self, name: str, **run: Any) -> list[Line]:
        self.events += self.engine.recorder.drain()
        facts = facts_of(self.events, name, {**self.run, **run})
        assert facts is not None, f"no request {name}"
        return explain(facts)


def tokens(length: int, salt: int) -> list[int]:
    """A prompt that shares no block with one of another ``salt``."""
    return [1000 * salt + i for i in range(length)]


def of_kind(lines: list[Line], kind: str) -> list[Line]:
    return [line for line in lines if line.kind == kind]


def one(lines: list[Line], kind: str) -> Line:
    found = of_kind(lines, kind)
    assert len(found) == 1, f"{len(found)} lines of kind {kind}: {[line.text for line in lines]}"
    return found[0]


def stretches(lines: list[Line]) -> list[tuple[Any, ...]]:
    """(reason, other, first step, steps, ns) of all stretches waited, in order."""
    return [
        (s["reason"], s["other"], s["first_step"], s["num_steps"], s["wait_ns"])
        for line in of_kind(lines, "waited")
        for s in line.numbers["stretches"]
    ]


def record(run_dir: Path, events: list[Event], run: Mapping[str, Any]) -> Path:
    """A run directory with tables, from events; ``run`` goes into its run.json."""
    run_dir.mkdir(parents=True)
    spec = RunSpec(workload=WorkloadSpec(name="made"), executor="null")
    manifest = build_manifest(spec, dict(run), workload_hash="abc", trace_sha256=None, num_requests=None)
    write_manifest(run_dir, manifest)
    with FrameWriter(run_dir / FRAMES_NAME) as writer:
        writer.write([RunStarted(run_id=str(manifest["run_id"]), manifest=manifest)])
        writer.write(events)
        writer.write([RunEnded(t_ns=0, status=str(run["status"]))])
    write_tables(run_dir)
    return run_dir
