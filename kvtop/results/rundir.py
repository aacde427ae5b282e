"""The directory of one run: its name, and whether it can be used. Checked before anything expensive is loaded."""

from __future__ import annotations

import os
import re
import tempfile
from contextlib import suppress
from pathlib import Path

import msgspec

from kvtop.engine.errors import UsageError
from kvtop.engine.policies.registry import with_labels
from kvtop.results.files import FileError, file_error
from kvtop.results.manifest import MANIFEST_NAME, content_hash, read_manifest
from kvtop.results.recording import FRAMES_NAME, is_being_written
from kvtop.run.spec import RunSpec

TABLE_NAMES = ("requests.parquet", "steps.parquet", "events.parquet")


def run_dir_name(spec: RunSpec) -> str:
    """``<policy>-<workload>[-<allocator>][-r<replicate>]-<short id>``: the same for the same spec, no timestamps."""
    engine = with_labels(spec.engine)
    parts = [str(engine.get("policy", "fcfs")), Path(spec.workload.name).name.split(".")[0]]
    allocator = spec.engine.get("allocator", "paged")
    if allocator != "paged":
        parts.append(str(allocator))
    if spec.replicate:
        parts.append(f"r{spec.replicate}")
    plain = msgspec.to_builtins(msgspec.structs.replace(spec, engine=engine, run_dir=None, start_paused=False))
    parts.append(content_hash(plain, 8))
    return "-".join(re.sub(r"[^A-Za-z0-9_.-]+", "_", part).strip("_.-") or "x" for part in parts)


def prepare_run_dir(run_dir: str | os.PathLike[str]) -> Path:
    """Create ``run_dir`` where needed and make sure that a run can be written there.

    An interrupted or failed run in it is removed; a complete one never is.

    Raises:
        UsageError: a file in the way, no permission, a full disk, a complete run, or a run being written right now.
    """
    path = Path(run_dir)
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path) as probe:
            probe.write(b"\0" * 4096)
            probe.flush()
    except (FileExistsError, NotADirectoryError):
        raise UsageError(f"{_first_file(path)}: is a file, expected a directory for the results") from None
    except OSError as error:
        raise UsageError(str(file_error(path, error))) from None
    _make_room(path)
    return path


def _first_file(path: Path) -> Path:
    """The existing non-directory among ``path`` and its parents that is in the way."""
    return next((p for p in (path, *path.parents) if p.exists() and not p.is_dir()), path)


def check_not_in_use(run_dir: Path) -> None:
    """Raise UsageError while another process records its run in ``run_dir``."""
    if is_being_written(run_dir / FRAMES_NAME):
        raise UsageError(f"{run_dir}: another run is being written here; choose another directory")


def _make_room(path: Path) -> None:
    check_not_in_use(path)
    if not (path / MANIFEST_NAME).exists() and not (path / FRAMES_NAME).exists():
        return
    with suppress(FileError):
        manifest = read_manifest(path)
        if manifest.get("status") == "complete":
            run_id = manifest.get("run_id")
            raise UsageError(f"{path}: already holds a complete run ({run_id}); choose another directory")
    for name in (*TABLE_NAMES, FRAMES_NAME, MANIFEST_NAME):
        with suppress(OSError):
            (path / name).unlink(missing_ok=True)
