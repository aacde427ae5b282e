"""``runs.parquet`` beside the run directories: one row a run, the columns of its manifest."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import polars as pl

from kvtop.engine.errors import KvtopError
from kvtop.results.builder import disk_errors, write_table
from kvtop.results.files import replacing
from kvtop.results.load import find_runs
from kvtop.results.manifest import read_manifest
from kvtop.results.schema import RUNS

RUNS_NAME = "runs.parquet"


def write_runs(folder: str | os.PathLike[str]) -> int:
    """Replace ``runs.parquet`` in ``folder`` by a row for each run directly below it, by name; returns how many.

    A run whose manifest cannot be read has no row.

    Raises:
        FileError: the disk refuses; the old file stays.
    """
    folder = Path(folder)
    rows = [row for path in find_runs(folder) if path != folder and (row := _row(path)) is not None]
    table = pl.DataFrame(rows, schema=RUNS, orient="row").lazy()
    path = folder / RUNS_NAME
    with replacing(path) as temp, disk_errors(path):
        write_table(table, temp, "")
    return len(rows)


def read_runs(folder: str | os.PathLike[str]) -> pl.DataFrame:
    """The runs of ``folder``; columns that an older file does not have are null.

    Raises:
        polars' own errors: there is no such file, or it is none of Parquet.
    """
    table = pl.scan_parquet(Path(folder) / RUNS_NAME)
    there = table.collect_schema()
    absent = {name: kind for name, kind in RUNS.items() if name not in there}
    return table.with_columns(pl.lit(None, dtype=kind).alias(name) for name, kind in absent.items()).collect()


def _row(run_dir: Path) -> tuple[Any, ...] | None:
    try:
        manifest = read_manifest(run_dir)
    except KvtopError:
        return None
    manifest = manifest | {"run_dir": run_dir.name, "error": manifest.get("error") or None}
    return tuple(_typed(manifest.get(name), kind) for name, kind in RUNS.items())


def _typed(value: Any, kind: Any) -> Any:
    """A manifest's value as its column has it: what is no text (parameters of a policy) becomes JSON there."""
    if value is None:
        return None
    if kind == pl.String:
        return value if isinstance(value, str) else json.dumps(value, sort_keys=True)
    if kind == pl.Float64:
        return float(value)
    return bool(value) if kind == pl.Boolean else int(value)
