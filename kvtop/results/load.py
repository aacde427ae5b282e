"""Open a finished run: its manifest and its tables, scanned lazily."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from kvtop.engine.errors import UsageError
from kvtop.results.files import FileError
from kvtop.results.manifest import MANIFEST_NAME, RUNNING, read_manifest
from kvtop.results.recording import FRAMES_NAME, is_being_written
from kvtop.results.schema import OPTIONAL, SCHEMAS
from kvtop.results.tables import write_tables
from kvtop.results.versions import RESULTS_SCHEMA_VERSION
from kvtop.state.attached import EXECUTOR

FIRST_WITH_PHASES = 2  # definitions version; before it every request was called steady


@dataclass(frozen=True, slots=True)
class Run:
    """One run on disk. Every access scans anew: collect what you need."""

    path: Path
    manifest: dict[str, Any]

    @property
    def run_id(self) -> str:
        return str(self.manifest["run_id"])

    @property
    def requests(self) -> pl.LazyFrame:
        return self._scan("requests")

    @property
    def steps(self) -> pl.LazyFrame:
        return self._scan("steps")

    @property
    def events(self) -> pl.LazyFrame:
        return self._scan("events")

    @property
    def tokens(self) -> pl.LazyFrame | None:
        """When each token was emitted, where that was asked for (``kvtop.results.tokens``)."""
        return self._scan("tokens") if (self.path / "tokens.parquet").exists() else None

    @property
    def frames_path(self) -> Path | None:
        """The recording, when there is one."""
        path = self.path / FRAMES_NAME
        return path if path.exists() else None

    def _scan(self, name: str) -> pl.LazyFrame:
        """Columns that an older schema did not have are null, and so are those that meant nothing then."""
        table = pl.scan_parquet(self.path / f"{name}.parquet")
        if self.manifest.get("schema_version") == RESULTS_SCHEMA_VERSION:
            return table
        there, schema = table.collect_schema(), (SCHEMAS | OPTIONAL)[name]
        unknown = [column for column in schema if column not in there]
        if name == "requests" and (self.manifest.get("definitions_version") or 1) < FIRST_WITH_PHASES:
            unknown.append("phase")
        return table.with_columns(pl.lit(None, dtype=schema[column]).alias(column) for column in unknown)


def open_run(run_dir: str | os.PathLike[str]) -> Run:
    """A run by its directory. One whose process was killed gets its tables now, with status ``interrupted``.

    Raises:
        UsageError: not a directory, not a run (with the runs below it), a run still being written, a recording of an
            attached server, or a newer schema.
        FileError: a file that cannot be read or written.
    """
    path = Path(run_dir)
    frames = path / FRAMES_NAME
    if not (path / MANIFEST_NAME).exists() and not frames.exists():
        raise UsageError(_not_a_run(path))
    if is_being_written(frames):
        raise UsageError(f"{path}: this run is still being written; wait until it ends, or stop it")
    manifest = read_manifest(path) if (path / MANIFEST_NAME).exists() else {}
    if manifest.get("executor") == EXECUTOR:
        readers = ["`kvtop replay`", "`kvtop report`", "`kvtop once`"]
        readers += ["`kvtop trace convert`"] if manifest.get("kv_events") else []  # which are what it makes requests of
        raise UsageError(
            f"{path}: a recording of an attached server tells of no single request, so there are no tables to read; "
            f"{', '.join(readers[:-1])} and {readers[-1]} read it"
        )
    missing = [name for name in SCHEMAS if not (path / f"{name}.parquet").exists()]
    if missing or manifest.get("status", RUNNING) == RUNNING:
        if not frames.exists():
            raise UsageError(f"{path}: {missing[0] if missing else FRAMES_NAME} is missing and there is no recording")
        manifest = write_tables(path)
    version = manifest.get("schema_version")
    if not isinstance(version, int) or version > RESULTS_SCHEMA_VERSION:
        raise UsageError(f"{path}: schema version {version!r}, this kvtop reads up to {RESULTS_SCHEMA_VERSION}")
    return Run(path, manifest)


def find_runs(folder: str | os.PathLike[str]) -> list[Path]:
    """Run directories: ``folder`` itself, or those directly below it, by name."""
    path = Path(folder)
    if _is_run(path):
        return [path]
    if not path.is_dir():
        return []
    return sorted(child for child in path.iterdir() if child.is_dir() and _is_run(child))


def _is_run(path: Path) -> bool:
    return (path / MANIFEST_NAME).is_file() or (path / FRAMES_NAME).is_file()


def _not_a_run(path: Path) -> str:
    if not path.exists():
        return f"{path}: does not exist, expected a run directory (with {MANIFEST_NAME})"
    if not path.is_dir():
        return f"{path}: is a file, expected a run directory (with {MANIFEST_NAME})"
    runs = [run.name for run in find_runs(path)]
    if not runs:
        return f"{path}: is not a run (no {MANIFEST_NAME} in it), and there are no runs below it"
    shown = ", ".join(runs[:5]) + (f" and {len(runs) - 5} more" if len(runs) > 5 else "")
    return f"{path}: is not a run itself (no {MANIFEST_NAME}); runs below it: {shown}"


__all__ = ["FileError", "Run", "find_runs", "open_run"]
