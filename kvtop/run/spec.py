"""What one run is: everything the engine's process needs, as plain data that crosses the process boundary."""

from __future__ import annotations

from typing import Any

import msgspec

from kvtop.workloads.spec import WorkloadSpec


class RunSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One engine under one workload.

    ``engine`` holds EngineConfig values by name, without ``num_blocks`` when the pool is sized from
    ``kv_memory_bytes`` (or, with neither, from a default budget) once the model is loaded.
    """

    workload: WorkloadSpec
    engine: dict[str, Any] = {}
    executor: str = "torch"  # torch: a real model, real clock; sim, null: no model, virtual clock
    executor_params: dict[str, Any] = {}  # e.g. null: step_time_ns; sim: cost_model
    predicted_by: dict[str, Any] | None = None  # a cost model, to be told beside what a real model takes
    model: str = "default"  # default (SmolLM2, else the tiny one), tiny, or a Hugging Face directory or GGUF file
    device: str = "auto"  # auto, cpu, cuda
    num_blocks: int | None = None
    kv_memory_bytes: int | None = None
    seed: int = 0
    replicate: int = 0
    run_dir: str | None = None  # where frames and Parquet go; None: nothing is written
    max_seconds: float | None = None  # stop after this long on the run's clock; what is finished is kept
    start_paused: bool = False
    brief: bool = False  # the parent is told the numbers of steps, not their decisions (``PipeOutlet``)
    tokens: bool = False  # also write tokens.parquet
    slo: list[str] = []  # objectives that its requests are judged by (kvtop.analysis.slo)
    warmup: int = 0  # requests, the first by intended arrival, that are kept and enter no latency
    concurrent_points: int = 1  # of one bench, this one included, that may run on this machine meanwhile
    serve: bool = False  # requests come by ``Submit`` commands, and the run goes on until it is stopped
    record_workload: str | None = None  # with ``serve``: where what came in goes, as a trace
    virtual_time: bool = False  # the executor's device_ns is the clock (always so with null)
