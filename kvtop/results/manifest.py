"""run.json: what a run was, on what, and how it ended. Known keys are written always; what is unknown is null."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
from datetime import UTC, datetime
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import msgspec

import kvtop
from kvtop.results.files import FileError, file_error, write_bytes
from kvtop.results.identity import point_identity
from kvtop.results.versions import DEFINITIONS_VERSION, RESULTS_SCHEMA_VERSION
from kvtop.run.spec import RunSpec

MANIFEST_NAME = "run.json"
RUNNING = "running"
"""Status in run.json until the run ends; a reader that finds it without a live writer reads "interrupted"."""

MANIFEST_KEYS = (
    "run_id", "sweep_point_hash", "started_utc", "status", "clock", "executor", "model", "device", "dtype", "policy",
    "policy_params", "allocator", "batch_policy", "eviction", "preemption_mode", "seed", "replicate", "workload",
    "workload_hash", "trace_sha256", "time_scale", "limit", "cost_model", "cost_model_hash", "block_size_tokens",
    "num_blocks", "kv_bytes_per_block", "max_num_seqs", "max_batched_tokens", "max_model_len", "prefix_caching",
    "chunked_prefill", "cache_state", "warmup_requests", "window_start_ns", "window_end_ns", "events_dropped",
    "git_sha", "git_dirty", "python", "torch", "triton", "transformers", "kvtop", "cpu", "gpu", "os",
    "definitions_version", "schema_version", "length_scale", "too_long", "replay", "loop", "kv_dtype", "victim",
    "host_blocks", "host_cache_blocks", "computed_by", "num_requests", "max_seconds", "slo", "error",
)  # fmt: skip
"""Keys of run.json that are columns of runs.parquet, in their order. Others may follow them."""


def build_manifest(
    spec: RunSpec, info: dict[str, Any], *, workload_hash: str, trace_sha256: str | None, num_requests: int | None
) -> dict[str, Any]:
    """run.json as known at the start. ``info`` is what the engine side knows (``Built.info``) and wins."""
    clock = info.get("clock", "real")
    started = datetime.now(UTC)
    point = {  # what stays when only the seed changes
        "spec": point_identity(spec, seed=0, replicate=0, workload=msgspec.structs.replace(spec.workload, seed=0)),
        "trace_sha256": trace_sha256,
        "engine": info,
    }
    identity = {
        "point": point,
        "seeds": [spec.seed, spec.replicate, spec.workload.seed],
        "workload_hash": workload_hash,
        "kvtop": version_of("kvtop"),
    }
    if clock != "virtual" or spec.executor == "torch":  # what is measured never repeats itself; the rest must
        identity["started"] = [started.isoformat(), os.getpid(), platform.node()]
    values: dict[str, Any] = {
        "started_utc": started.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "status": RUNNING,
        "executor": spec.executor,
        "seed": spec.seed,
        "replicate": spec.replicate,
        "workload": spec.workload.name,
        "workload_hash": workload_hash,
        "trace_sha256": trace_sha256,
        "time_scale": spec.workload.time_scale,
        "limit": spec.workload.limit,
        "cache_state": "cold",
        "warmup_requests": spec.warmup,
        "slo": spec.slo or None,
        "tokens": spec.tokens,
        "events_dropped": 0,
        "definitions_version": DEFINITIONS_VERSION,
        **environment(),
        **info,
        "clock": clock,
        "length_scale": spec.workload.length_scale,
        "too_long": spec.workload.too_long,
        "arrival_rate": spec.workload.arrival_rate,
        "num_requests": num_requests,
        "max_seconds": spec.max_seconds,
        "concurrent_points": spec.concurrent_points,
        "schema_version": RESULTS_SCHEMA_VERSION,
        "run_id": content_hash(identity),
        "sweep_point_hash": content_hash(point),
    }
    if values.get("gpu") is None and str(values.get("device", "")).startswith("cuda"):
        values["gpu"] = gpu_name()
    known = {key: values.get(key) for key in MANIFEST_KEYS}
    return known | {key: value for key, value in values.items() if key not in known}


def content_hash(value: Any, length: int = 16) -> str:
    """Hex digits that depend on the content only: not on key order, hash seed or machine."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:length]


def write_manifest(run_dir: Path, manifest: dict[str, Any]) -> None:
    """Replace run.json as a whole.

    Raises:
        FileError: the disk refuses; the old file stays.
    """
    text = json.dumps(manifest, indent=2, ensure_ascii=False, allow_nan=False, default=str)
    write_bytes(run_dir / MANIFEST_NAME, (text + "\n").encode())


TEXTS = ("run_id", "status", "clock", "executor", "workload", "workload_hash", "policy", "allocator")
COUNTS = (
    "seed",
    "replicate",
    "block_size_tokens",
    "num_blocks",
    "max_num_seqs",
    "max_batched_tokens",
    "max_model_len",
    "warmup_requests",
    "window_start_ns",
    "window_end_ns",
    "events_dropped",
)


def read_manifest(run_dir: Path) -> dict[str, Any]:
    """Decode run.json.

    Raises:
        FileError: missing, unreadable, not a JSON object, or a value of the wrong kind.
    """
    path = run_dir / MANIFEST_NAME
    try:
        manifest = json.loads(path.read_bytes())
    except OSError as error:
        raise file_error(path, error, "cannot read") from None
    except ValueError as error:
        raise FileError(f"{path}: is not JSON ({error})") from None
    if not isinstance(manifest, dict):
        raise FileError(f"{path}: found {type(manifest).__name__}, expected a JSON object")
    _check_kinds(path, manifest)
    return manifest


def _check_kinds(path: Path, manifest: dict[str, Any]) -> None:
    """Whether what readers rely on is of the kind they expect; a key that older versions lacked may be missing."""
    for key in ("run_id", "status"):
        if key not in manifest:
            raise FileError(f"{path}: {key} is missing, expected the run.json of a run")
    for kind, said, keys in ((str, "a text", TEXTS), (int, "a whole number or null", COUNTS)):
        for key in keys:
            value = manifest.get(key)
            if value is not None and (not isinstance(value, kind) or isinstance(value, bool)):
                raise FileError(f"{path}: {key} is {json.dumps(value)[:60]}, expected {said}")


@cache
def environment() -> dict[str, Any]:
    """Versions, checkout and hardware of this process; null where unknown. Imports none of the libraries it names."""
    sha, dirty = git_state(Path(kvtop.__file__).resolve())
    return {
        "git_sha": sha,
        "git_dirty": dirty,
        "python": platform.python_version(),
        **{name: version_of(name) for name in ("torch", "triton", "transformers", "kvtop")},
        "cpu": cpu_name(),
        "gpu": None,
        "os": platform.platform(),
    }


def version_of(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def git_state(tracked: Path) -> tuple[str | None, bool | None]:
    """(commit, dirty) of the checkout that tracks the file ``tracked``; (None, None) when none does."""

    def git(*args: str) -> str | None:
        try:
            command = ["git", "-C", str(tracked.parent), *args]
            done = subprocess.run(command, capture_output=True, text=True, timeout=5, stdin=subprocess.DEVNULL)
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    # A virtual environment inside somebody's repository must not pass for a checkout of kvtop.
    if git("ls-files", "--error-unmatch", tracked.name) is None:
        return None, None
    sha, changes = git("rev-parse", "HEAD"), git("status", "--porcelain", "--untracked-files=no")
    return sha, None if changes is None else bool(changes)


def cpu_name() -> str | None:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.lower().startswith("model name"):
                return line.partition(":")[2].strip() or None
    except OSError:
        pass
    return platform.processor() or platform.machine() or None


def gpu_name() -> str | None:
    """Name of the first CUDA device by NVML; None where there is none."""
    try:
        import pynvml

        pynvml.nvmlInit()
        try:
            name = pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(0))
        finally:
            pynvml.nvmlShutdown()
    except Exception:  # no driver, no library, no permission: the name is simply unknown
        return None
    return name.decode() if isinstance(name, bytes) else str(name)
