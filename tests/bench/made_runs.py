"""Run directories made by hand: a recording of a few events, and the tables derived from it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kvtop.engine.events import RequestEvent, RunEnded, RunStarted, StepEvent
from kvtop.results.manifest import MANIFEST_KEYS, write_manifest
from kvtop.results.recording import FRAMES_NAME, FrameWriter
from kvtop.results.tables import write_tables
from kvtop.results.versions import RESULTS_SCHEMA_VERSION

MS = 1_000_000
S = 1_000_000_000


def manifest(**values: Any) -> dict[str, Any]:
    """A complete manifest of a made-up run; unknown keys are null."""
    known = dict.fromkeys(MANIFEST_KEYS) | {
        "run_id": "made", "status": "running", "clock": "virtual", "executor": "null", "policy": "fcfs",
        "allocator": "paged",
        "eviction": "lru", "seed": 0, "replicate": 0, "workload": "made", "workload_hash": "aaaa", "time_scale": 1.0,
        "block_size_tokens": 16, "num_blocks": 100, "prefix_caching": True, "chunked_prefill": True,
        "events_dropped": 0,
        "schema_version": RESULTS_SCHEMA_VERSION,
    }  # fmt: skip
    return known | values


def finished(
    request_id: str,
    index: int,
    *,
    at: int = 0,
    tokens: list[int] | tuple[int, ...] = (),
    prompt: int = 10,
    asked: int = 100,
    hit: int | None = 0,
    reason: str = "length",
    **more: Any,
) -> RequestEvent:
    """The end of a request scheduled at ``at`` that emitted one token at each of ``tokens`` (ns)."""
    num = len(tokens)
    done = tokens[-1] if num else None
    values: dict[str, Any] = {
        "t_submit_ns": at,
        "output_tokens": num,
        "t_first_sched_ns": at if num else None,
        "t_first_token_ns": tokens[0] if num else None,
        "t_last_token_ns": done,
        "t_done_ns": done,
        "tpot_ns": (tokens[-1] - tokens[0]) // (num - 1) if num > 1 else None,
    }
    return RequestEvent(
        phase="finished", t_ns=done or at, request_id=request_id, req_index=index, prompt_tokens=prompt,
        requested_output_tokens=asked, t_sched_ns=at, hit_tokens=hit, finish_reason=reason,
        **(values | more),
    )  # fmt: skip


def arrived(request_id: str, index: int, *, at: int = 0, prompt: int = 10) -> RequestEvent:
    return RequestEvent(
        phase="arrived", t_ns=at, request_id=request_id, req_index=index, prompt_tokens=prompt,
        requested_output_tokens=100, t_sched_ns=at, t_submit_ns=at,
    )  # fmt: skip


def steps(emitted: dict[int, list[tuple[str, int]]], **values: Any) -> list[StepEvent]:
    """One step for each time (ns), with what it emitted."""
    made, before = [], 0
    for number, (t_ns, tokens) in enumerate(sorted(emitted.items()), 1):
        shown: dict[str, Any] = {"num_running": len(tokens), **values}
        made.append(
            StepEvent(
                step=number, t_start_ns=before, t_planned_ns=before, t_done_ns=t_ns, emitted=tokens,
                **shown,
            )
        )  # fmt: skip
        before = t_ns
    return made


def steps_of(requests: dict[str, list[int]], **values: Any) -> list[StepEvent]:
    """Steps in which every request emits one token at each of its times."""
    emitted: dict[int, list[tuple[str, int]]] = {}
    for request_id, times in requests.items():
        for t_ns in times:
            emitted.setdefault(t_ns, []).append((request_id, 1))
    return steps(emitted, **values)


def make_run(run_dir: Path, events: list[Any], *, status: str = "complete", error: str = "", **values: Any) -> Path:
    """Write a run with these events; ``values`` are manifest keys."""
    run_dir.mkdir(parents=True)
    known = manifest(**values)
    write_manifest(run_dir, known)
    with FrameWriter(run_dir / FRAMES_NAME) as writer:
        writer.write([RunStarted(run_id=str(known["run_id"]), manifest=known)])
        writer.write(events)
        writer.write([RunEnded(t_ns=0, status=status, error=error)])
    write_tables(run_dir)
    return run_dir


def simple_run(run_dir: Path, *, ttft_ms: int = 100, **values: Any) -> Path:
    """Three requests with the same TTFT, four tokens each, 10 ms apart."""
    times = {f"r{i}": [i * S + (ttft_ms + 10 * k) * MS for k in range(4)] for i in range(3)}
    ends = [finished(name, i, at=i * S, tokens=tokens, hit=5) for i, (name, tokens) in enumerate(times.items())]
    return make_run(run_dir, [*steps_of(times, used_blocks=7), *ends], **values)
