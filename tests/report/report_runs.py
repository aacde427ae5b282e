"""Small runs made by hand for the report: their events, and the tables derived from them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kvtop.engine.events import Decision, RequestEvent, RunEnded, RunStarted, StepEvent
from kvtop.report.figure import Figure, Material
from kvtop.results.manifest import MANIFEST_KEYS, write_manifest
from kvtop.results.recording import FRAMES_NAME, FrameWriter
from kvtop.results.tables import write_tables
from kvtop.results.versions import RESULTS_SCHEMA_VERSION

MS = 1_000_000
NUM_BLOCKS = 4


def step(number: int, start_ms: int, done_ms: int, emitted: list[str], **values: Any) -> StepEvent:
    """A step that is planned in a tenth of its time and computes on the device for a half."""
    start, done = start_ms * MS, done_ms * MS
    shown: dict[str, Any] = {
        "num_running": len(emitted), "used_blocks": 1, "idle_blocks": 1, "fresh_blocks": 2, "filled_slots": 8,
    }  # fmt: skip
    return StepEvent(
        step=number, t_start_ns=start, t_planned_ns=start + (done - start) // 10, t_done_ns=done,
        device_ns=(done - start) // 2, emitted=[(name, 1) for name in emitted], **(shown | values),
    )  # fmt: skip


def finished(name: str, index: int, at_ms: int, first_ms: int, last_ms: int, num_tokens: int) -> RequestEvent:
    first, last = first_ms * MS, last_ms * MS
    return RequestEvent(
        phase="finished", t_ns=last, request_id=name, req_index=index, prompt_tokens=20,
        requested_output_tokens=num_tokens, t_sched_ns=at_ms * MS, t_submit_ns=at_ms * MS, hit_tokens=5,
        output_tokens=num_tokens, t_first_sched_ns=at_ms * MS, t_first_token_ns=first, t_last_token_ns=last,
        t_done_ns=last, tpot_ns=(last - first) // max(1, num_tokens - 1), finish_reason="length",
    )  # fmt: skip


def write_run(run_dir: Path, events: list[Any], *, status: str = "complete", **manifest: Any) -> Path:
    """A run's directory with these events; ``manifest`` are keys of run.json."""
    run_dir.mkdir(parents=True)
    known = dict.fromkeys(MANIFEST_KEYS) | {
        "run_id": "made", "status": "running", "clock": "virtual", "executor": "null", "policy": "fcfs",
        "allocator": "paged", "eviction": "lru", "seed": 0, "replicate": 0, "workload": "made",
        "workload_hash": "aaaa", "time_scale": 1.0, "block_size_tokens": 16, "num_blocks": NUM_BLOCKS,
        "prefix_caching": True, "chunked_prefill": True, "events_dropped": 0, "git_dirty": False,
        "started_utc": "2026-01-01T00:00:00.000Z", "schema_version": RESULTS_SCHEMA_VERSION,
    } | manifest  # fmt: skip
    write_manifest(run_dir, known)
    with FrameWriter(run_dir / FRAMES_NAME) as writer:
        writer.write([RunStarted(run_id=str(known["run_id"]), manifest=known)])
        writer.write(events)
        writer.write([RunEnded(t_ns=0, status=status)])
    write_tables(run_dir)
    return run_dir


BLOCK_LOG: list[list[Decision]] = [
    # block 0: held from 10 to 30 ms by a and b, kept until its eviction at 41 ms; block 1: from 10 to 20 ms
    [("alloc", "a", 0, 0, 0), ("alloc", "a", 0, 1, 16), ("publish", "a", 0, 0, 7, None)],
    [("share", "b", 0, 0, 0, "hit"), ("free", "a", 0, 1, "release"), ("free", "a", 0, 0, "release")],
    [("free", "b", 0, 0, "release")],
    [("evict", "c", 0, 0, 7, None, 3, 1, 2), ("alloc", "c", 0, 0, 0)],
]
"""Decisions of four steps; those before the first publish, free or first token have the time their step was planned."""


def small_run(run_dir: Path, *, slower_ms: int = 0, **manifest: Any) -> Path:
    """Two requests in four steps, one eviction, one preemption; the second step takes ``slower_ms`` longer."""
    late = slower_ms
    steps = [
        step(0, 10, 20, ["a"], prefill_tokens=20, decisions=BLOCK_LOG[0]),
        step(1, 20, 30 + late, ["a", "b"], prefill_tokens=20, decisions=BLOCK_LOG[1], used_blocks=2, idle_blocks=0),
        step(2, 30 + late, 40 + late, ["b"], decode_tokens=1, decisions=BLOCK_LOG[2], num_running=0),
        step(3, 50 + late, 60 + late, ["b"], decode_tokens=1, decisions=BLOCK_LOG[3], evictions=1, preemptions=1),
    ]
    ends = [finished("a", 0, 0, 20, 30 + late, 2), finished("b", 1, 5, 30 + late, 60 + late, 3)]
    return write_run(run_dir, [*steps, *ends], **manifest)


def material(*run_dirs: Path) -> Material:
    from kvtop.report.build import compare_all

    (comparison,) = compare_all(run_dirs)
    return Material(comparison)


def rows_of(figure: Figure) -> list[list[float | None]]:
    """The numbers behind a plot whose data is one table."""
    assert figure.spec is not None, figure.caption
    lines = figure.spec["data"]["values"].split("\n")[1:]
    return [[float(cell) if cell else None for cell in line.split(",")] for line in lines]
