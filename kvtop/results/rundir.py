"""The directory of one run: its name, and whether it can be used. Checked before anything expensive is loaded."""

from __future__ import annotations

import os
import re
import tempfile
from contextlib import suppress
from pathlib import Path

from kvtop.engine.errors import KvtopError, UsageError
from kvtop.engine.policies.registry import with_labels
from kvtop.results.files import file_error
from kvtop.results.identity import point_identity
from kvtop.results.manifest import MANIFEST_NAME, content_hash, read_manifest
from kvtop.results.recording import FRAMES_NAME, is_being_written
from kvtop.run.spec import RunSpec
from kvtop.state.attached import EXECUTOR

TABLE_NAMES = ("requests.parquet", "steps.parquet", "events.parquet")  # of every run
OPTIONAL_NAMES = ("tokens.parquet",)  # of a run that was asked for it
PARQUET_END = b"PAR1"


def run_dir_name(spec: RunSpec) -> str:
    """``<policy>-<workload>[-<allocator>][-r<replicate>]-<short id>``: the same for the same content, no timestamps.

    The id is of ``point_identity``: a trace, workload spec or policy file counts by what is in it, not by its place.
    """
    engine = with_labels(spec.engine)
    parts = [str(engine.get("policy", "fcfs")), Path(spec.workload.name).name.split(".")[0]]
    allocator = spec.engine.get("allocator", "paged")
    if allocator != "paged":
        parts.append(str(allocator))
    if spec.replicate:
        parts.append(f"r{spec.replicate}")
    parts.append(content_hash(point_identity(spec), 8))
    return "-".join(re.sub(r"[^A-Za-z0-9_.-]+", "_", part).strip("_.-") or "x" for part in parts)


def is_complete(run_dir: Path) -> bool:
    """A run that ended and whose tables are all there and whole. Never raises."""
    try:
        whole = all(_ends_like_parquet(run_dir / name) for name in TABLE_NAMES)
        return whole and read_manifest(run_dir).get("status") == "complete"
    except (KvtopError, OSError):
        return False


def is_observed(run_dir: Path) -> bool:
    """A recording of attached servers, ended or not: it has no tables, and cannot be made again. Never raises."""
    try:
        return read_manifest(run_dir).get("executor") == EXECUTOR
    except (KvtopError, OSError):
        return False


def _ends_like_parquet(path: Path) -> bool:
    """A Parquet file ends with its footer and these four bytes; a cut one does not."""
    with open(path, "rb") as file:
        file.seek(-min(len(PARQUET_END), path.stat().st_size), os.SEEK_END)
        return file.read() == PARQUET_END


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


def is_in_use(run_dir: Path) -> bool:
    """True while another process records its run in ``run_dir``."""
    return is_being_written(run_dir / FRAMES_NAME)


def check_not_in_use(run_dir: Path) -> None:
    """Raise UsageError while another process records its run in ``run_dir``."""
    if is_in_use(run_dir):
        raise UsageError(f"{run_dir}: another run is being written here; choose another directory")


def _make_room(path: Path) -> None:
    check_not_in_use(path)
    if not (path / MANIFEST_NAME).exists() and not (path / FRAMES_NAME).exists():
        return
    if is_observed(path):
        raise UsageError(f"{path}: already holds a recording of attached servers; choose another directory")
    if is_complete(path):
        run_id = read_manifest(path).get("run_id")
        raise UsageError(f"{path}: already holds a complete run ({run_id}); choose another directory")
    for name in (*TABLE_NAMES, *OPTIONAL_NAMES, FRAMES_NAME, MANIFEST_NAME):
        with suppress(OSError):
            (path / name).unlink(missing_ok=True)
