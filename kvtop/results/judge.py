"""``slo_ok`` of requests.parquet: the same requests can be judged again by other objectives, without a recording."""

from __future__ import annotations

import os
from pathlib import Path

import polars as pl

from kvtop.analysis.slo import COLUMNS, Slo
from kvtop.results.builder import disk_errors, write_table
from kvtop.results.files import replacing
from kvtop.results.load import open_run
from kvtop.results.manifest import write_manifest


def judge_run(run_dir: str | os.PathLike[str], slo: Slo) -> None:
    """Fill ``slo_ok`` of a finished run, and say in its manifest by which objectives.

    Raises:
        UsageError: not a run that can be opened.
        FileError: the disk refuses; the old table stays.
    """
    run = open_run(run_dir)
    table = run.requests.collect()
    verdicts = [slo.judge(row) for row in table.select("class", "status", *COLUMNS.values()).iter_rows(named=True)]
    judged = table.with_columns(pl.Series("slo_ok", verdicts, dtype=pl.Boolean))
    path = Path(run_dir) / "requests.parquet"
    with replacing(path) as temp, disk_errors(path):
        write_table(judged.lazy(), temp, run.run_id)
    write_manifest(Path(run_dir), {**run.manifest, "slo": slo.texts})
