"""Headless runs: each point (workload, policy, allocator, replicate) in its own engine process, results on disk.

A finished point is never overwritten unasked; an interrupted or failed one is run again. Loads no Textual.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from kvtop.engine.config import EngineConfig
from kvtop.engine.errors import KvtopError, UsageError
from kvtop.engine.events import Event, Notice, RequestEvent, RunEnded, RunStarted, StepEvent
from kvtop.labels import setting
from kvtop.results.files import file_error
from kvtop.results.manifest import MANIFEST_NAME, read_manifest
from kvtop.results.rundir import check_not_in_use, prepare_run_dir, run_dir_name
from kvtop.run.session import RunSession
from kvtop.run.spec import RunSpec

POLL_S = 0.1
STOP_TIMEOUT_S = 10.0


@dataclass(slots=True)
class Progress:
    """What a progress line shows of the current run."""

    label: str
    step: int = 0
    t_ns: int = 0  # the run's clock
    num_ended: int = 0
    num_requests: int | None = None
    num_running: int = 0
    num_waiting: int = 0
    used_blocks: int = 0
    num_blocks: int | None = None
    notice: str = ""  # what is being done where no step is: loading, writing
    fraction: float | None = None

    def fold(self, event: Event) -> None:
        """Take in one event."""
        if isinstance(event, StepEvent):
            self.step, self.t_ns, self.notice = event.step, event.t_done_ns, ""
            self.num_running, self.num_waiting, self.used_blocks = (
                event.num_running,
                event.num_waiting,
                event.used_blocks,
            )
        elif isinstance(event, RequestEvent):
            self.num_ended += event.phase == "finished"
        elif isinstance(event, RunStarted):
            self.num_requests, self.num_blocks = event.manifest.get("num_requests"), event.manifest.get("num_blocks")
        elif isinstance(event, Notice) and (event.level == "info" or not self.step):
            self.notice, self.fraction = event.text, event.progress


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one point ended. ``status``: complete, interrupted, failed, or kept (it was complete already)."""

    label: str
    run_dir: Path | None
    status: str
    error: str = ""
    warnings: tuple[str, ...] = ()
    traceback: str = ""  # of the engine's process, when it died of a fault
    exit_code: int = 0  # 2 when the engine's process found something the user can correct


Observer = Callable[[Progress], None]

_FIELDS = msgspec.structs.fields(EngineConfig)


def point_label(spec: RunSpec) -> str:
    """``lpm mooncake-conversation [contiguous-max] [r1]``: short and unambiguous within one bench."""
    parts = [str(spec.engine.get("policy", "fcfs")), Path(spec.workload.name).name]
    if (allocator := spec.engine.get("allocator", "paged")) != "paged":
        parts.append(str(allocator))
    if spec.replicate:
        parts.append(f"r{spec.replicate}")
    return " ".join(parts)


def point_labels(specs: Sequence[RunSpec]) -> list[str]:
    """``point_label`` of each, and whatever else tells apart those of one policy, workload and allocator."""
    plain = [point_label(msgspec.structs.replace(spec, replicate=0)) for spec in specs]
    labels = []
    for spec, name in zip(specs, plain, strict=True):
        alike = [_settings(other) for other, label in zip(specs, plain, strict=True) if label == name]
        own = _settings(spec)
        told = [setting(key, own[key]) for key in own if any(other[key] != own[key] for other in alike)]
        labels.append(
            " ".join([name, *(text for text in told if text), *([f"r{spec.replicate}"] * (spec.replicate > 0))])
        )
    return labels


def _settings(spec: RunSpec) -> dict[str, Any]:
    """What a point is besides its policy, workload, allocator and replicate; the engine's defaults included."""
    defaults = {field.name: None if field.default is msgspec.NODEFAULT else field.default for field in _FIELDS}
    shown = {key: value for key, value in (defaults | spec.engine).items() if key not in ("policy", "allocator")}
    sizes = {"num_blocks": spec.num_blocks, "kv_memory_bytes": spec.kv_memory_bytes}
    return shown | sizes | {"executor": spec.executor, "model": spec.model, "device": spec.device}


def conflicts(specs: Sequence[RunSpec], *, by_workload: bool = True) -> list[str]:
    """What makes runs that cannot be compared with each other, as far as that is known before they run; a phrase each.

    ``by_workload``: only runs of one workload are to be compared. Models are not read here: runs of two whose
    vocabularies differ have other prompts, which only their results tell.
    """
    groups: dict[str, list[RunSpec]] = {}
    for spec in specs:
        groups.setdefault(spec.workload.name if by_workload else "", []).append(spec)
    found: dict[str, None] = {}
    for group in groups.values():
        kinds = {
            "workload": [spec.workload.name for spec in group],
            "clock kind": ["virtual" if spec.virtual_time or spec.executor == "null" else "real" for spec in group],
            "block size": [_settings(spec)["block_size"] for spec in group],
        }
        for name, values in kinds.items():
            if len(seen := list(dict.fromkeys(values))) > 1:
                found[f"{name} is {seen[0]} and {seen[1]}"] = None
    return list(found)


def replicates(spec: RunSpec, count: int) -> list[RunSpec]:
    """``spec`` with seeds seed, seed + 1, ...: replicate r has the same workload under every policy."""
    return [
        msgspec.structs.replace(
            spec,
            seed=spec.seed + r,
            replicate=r,
            workload=msgspec.structs.replace(spec.workload, seed=spec.workload.seed + r),
        )
        for r in range(count)
    ]


def plan_points(specs: Sequence[RunSpec], out_dir: Path, *, resume: bool, force: bool) -> list[tuple[RunSpec, bool]]:
    """Give every point its directory below ``out_dir``; True for those that are already complete and kept.

    Raises:
        UsageError: the directory cannot be used, or holds a complete run of a point without ``resume`` or ``force``.
    """
    points = [(msgspec.structs.replace(spec, run_dir=str(out_dir / run_dir_name(spec))), False) for spec in specs]
    points = list({spec.run_dir: (spec, kept) for spec, kept in points}.values())  # the same point asked for twice
    done = [spec for spec, _ in points if _is_complete(Path(spec.run_dir or ""))]
    if done and not resume and not force:
        others = f" and {len(done) - 1} more" if len(done) > 1 else ""
        raise UsageError(
            f"{done[0].run_dir}{others}: already complete (--resume keeps it and runs the rest, --force runs it again)"
        )
    _check_writable(out_dir)
    return [(spec, spec in done and not force) for spec, _ in points]


def _is_complete(run_dir: Path) -> bool:
    if not (run_dir / MANIFEST_NAME).exists():
        return False
    try:
        return read_manifest(run_dir).get("status") == "complete"
    except KvtopError:
        return False


def _check_writable(out_dir: Path) -> None:
    """Fail before a model is loaded, not after it has run."""
    in_the_way = next((path for path in (out_dir, *out_dir.parents) if path.exists() and not path.is_dir()), None)
    if in_the_way is not None:
        raise UsageError(f"{in_the_way}: is a file, expected a directory for the results")
    try:
        out_dir.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=out_dir) as probe:
            probe.write(bytes(4096))
    except OSError as error:
        raise UsageError(str(file_error(out_dir, error))) from None


def run_point(spec: RunSpec, observe: Observer, *, label: str | None = None, force: bool = False) -> Outcome:
    """Run one point to its end in a child process. A failure is an outcome, not an exception.

    ``label`` is what it is called (default: ``point_label``).

    Raises:
        KeyboardInterrupt: after the child was stopped in good order; its finished rows are on disk.
    """
    label = point_label(spec) if label is None else label
    run_dir = None if spec.run_dir is None else Path(spec.run_dir)
    try:
        if run_dir is not None:
            if force and run_dir.exists():
                check_not_in_use(run_dir)
                shutil.rmtree(run_dir)
            prepare_run_dir(run_dir)
        session = RunSession(spec)
        session.start()
    except (KvtopError, OSError) as error:
        return Outcome(label, run_dir, "failed", _one_line(str(error)), exit_code=getattr(error, "exit_code", 1))
    ended, warnings = _follow(session, Progress(label), observe)
    if run_dir is not None and ended.status != "complete":
        with suppress(OSError):
            run_dir.rmdir()  # only when nothing was written: a model that does not load leaves no trace
    return Outcome(
        label, run_dir, ended.status, _one_line(ended.error), tuple(warnings), ended.traceback, ended.exit_code
    )


def _follow(session: RunSession, progress: Progress, observe: Observer) -> tuple[RunEnded, list[str]]:
    """Poll until the run ends. Always leaves with the child gone."""
    warnings: list[str] = []
    try:
        while True:
            for event in session.poll(POLL_S):
                progress.fold(event)
                if isinstance(event, RunEnded):
                    return event, warnings
                if isinstance(event, Notice) and event.level in ("warning", "error") and event.text not in warnings:
                    warnings.append(event.text)
            observe(progress)
    finally:
        session.stop(STOP_TIMEOUT_S)


def _one_line(text: str) -> str:
    return " ".join(text.split())
