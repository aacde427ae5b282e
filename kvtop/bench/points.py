"""The points of a bench: what each is called, where it goes, which are there already, which cannot be compared."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from kvtop.analysis.labels import setting
from kvtop.engine.config import EngineConfig
from kvtop.engine.errors import UsageError
from kvtop.results.files import file_error
from kvtop.results.rundir import check_not_in_use, is_complete, is_in_use, run_dir_name
from kvtop.run.spec import RunSpec

VIRTUAL_EXECUTORS = ("null", "sim")
ORPHAN_S = 5.0  # a run whose bench was killed writes its last rows, and is gone
POLL_S = 0.1

WORKLOAD_SETTINGS = ("limit", "time_scale", "length_scale", "too_long", "replay", "arrival_rate")
"""What makes another workload of one of the same name; keys of run.json too."""

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
    """``point_label`` of each, and whatever else tells apart those of one policy, workload and allocator.

    Two labels are equal only where the points are: what no setting tells apart (a cost model's constants) has the id
    of its run's directory.
    """
    plain = [point_label(msgspec.structs.replace(spec, replicate=0)) for spec in specs]
    labels = []
    for spec, name in zip(specs, plain, strict=True):
        alike = [_settings(other) for other, label in zip(specs, plain, strict=True) if label == name]
        own = _settings(spec)
        told = [setting(key, own[key]) for key in own if any(other[key] != own[key] for other in alike)]
        labels.append(
            " ".join([name, *(text for text in told if text), *([f"r{spec.replicate}"] * (spec.replicate > 0))])
        )
    ids = [run_dir_name(spec).rpartition("-")[2] for spec in specs]
    owners: dict[str, set[str]] = {}
    for label, own_id in zip(labels, ids, strict=True):
        owners.setdefault(label, set()).add(own_id)
    return [f"{label} {own_id}" if len(owners[label]) > 1 else label for label, own_id in zip(labels, ids, strict=True)]


def _settings(spec: RunSpec) -> dict[str, Any]:
    """What a point is besides its policy, workload, allocator and replicate; the engine's defaults included."""
    defaults = {field.name: None if field.default is msgspec.NODEFAULT else field.default for field in _FIELDS}
    shown = {key: value for key, value in (defaults | spec.engine).items() if key not in ("policy", "allocator")}
    sizes = {"num_blocks": spec.num_blocks, "kv_memory_bytes": spec.kv_memory_bytes}
    workload = {key: getattr(spec.workload, key) for key in WORKLOAD_SETTINGS}
    return shown | sizes | workload | {"executor": spec.executor, "model": spec.model, "device": spec.device}


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
            "clock kind": ["virtual" if is_virtual(spec) else "real" for spec in group],
            "block size": [_settings(spec)["block_size"] for spec in group],
        }
        if not by_workload:
            kinds |= {key: [getattr(spec.workload, key) for spec in group] for key in WORKLOAD_SETTINGS}
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


def is_virtual(spec: RunSpec) -> bool:
    """Whether its clock is simulated: then its times do not depend on what else the machine does."""
    return spec.virtual_time or spec.executor in VIRTUAL_EXECUTORS


def plan_points(specs: Sequence[RunSpec], out_dir: Path, *, resume: bool, force: bool) -> list[tuple[RunSpec, bool]]:
    """Give every point its directory below ``out_dir``; True for those that are already complete and kept.

    Raises:
        UsageError: the directory cannot be used, holds a complete run of a point without ``resume`` or ``force``, or a
            point is being written by another bench.
    """
    points = [(msgspec.structs.replace(spec, run_dir=str(out_dir / run_dir_name(spec))), False) for spec in specs]
    points = list({spec.run_dir: (spec, kept) for spec, kept in points}.values())  # the same point asked for twice
    _await_orphans([Path(spec.run_dir or "") for spec, _ in points])
    done = [spec for spec, _ in points if is_complete(Path(spec.run_dir or ""))]
    if done and not resume and not force:
        raise UsageError(already_complete(done[0].run_dir, len(done)))
    _check_writable(out_dir)
    return [(spec, spec in done and not force) for spec, _ in points]


def already_complete(first: object, num: int) -> str:
    """The line that refuses ``num`` complete points, the first of them named."""
    others = f" and {num - 1} more" if num > 1 else ""
    return f"{first}{others}: already complete (--resume keeps it and runs the rest, --force runs it again)"


def _await_orphans(run_dirs: Sequence[Path]) -> None:
    """A run that outlived its bench ends by itself: wait for its last rows, and refuse a run that goes on."""
    deadline_s = time.monotonic() + ORPHAN_S
    for run_dir in run_dirs:
        while is_in_use(run_dir) and time.monotonic() < deadline_s:
            time.sleep(POLL_S)
        check_not_in_use(run_dir)


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
