"""Recorded tables of step times as measured steps. CSV, gzip-compressed or not; which kind is told by its columns.

tokens, batch, context, ms [, tp]     one step a row: ``tokens`` computed in it by ``batch`` sequences alike, each
                                      with ``context`` tokens before them; no context: attention is not in ms
Splitwise                             prompt_size, batch_size, token_size, prompt_time, token_time, tensor_parallel
Vidur                                 time_stats.*.median of one layer's operations, num_tokens
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl

from kvtop.cost.steps import Steps
from kvtop.engine.errors import UsageError

PLAIN = ("tokens", "batch", "ms")
SPLITWISE = ("prompt_size", "batch_size", "token_size", "prompt_time", "token_time", "tensor_parallel")
VIDUR = ("num_tokens", "num_tensor_parallel_workers", "time_stats.mlp_up_proj.median")
TWICE = ("time_stats.add.median",)  # of Vidur's operations, those that a layer has two of
ONCE = ("time_stats.emb.median",)  # before the first layer


def read_table(path: Path, *, tp: int, num_layers: int) -> Steps:
    """Rows measured on ``tp`` GPUs, as steps.

    Raises:
        UsageError: not a CSV, other columns, a row that makes no sense, or no row for ``tp``.
    """
    try:
        table = pl.read_csv(path, infer_schema_length=None)
    except (pl.exceptions.PolarsError, OSError) as error:
        raise UsageError(f"{path}: cannot be read as CSV ({' '.join(str(error).split())[:120]})") from None
    if all(name in table.columns for name in PLAIN):
        rows = _plain(table)
    elif all(name in table.columns for name in SPLITWISE):
        rows = _splitwise(table)
    elif all(name in table.columns for name in VIDUR):
        rows = _vidur(table, num_layers)
    else:
        raise UsageError(
            f"{path}: columns are {', '.join(table.columns[:6])}{', ...' if len(table.columns) > 6 else ''}, expected "
            f"{', '.join(PLAIN)} and context (or those of a Splitwise or Vidur table)"
        )
    found = sorted(rows["tp"].drop_nulls().unique().to_list())
    if found:
        rows = rows.filter(pl.col("tp") == tp)
        if not len(rows):
            raise UsageError(f"{path}: no row for --tp {tp}; there are rows for {', '.join(map(str, found))}")
    _check(rows, path)
    return _steps(rows)


def _plain(table: pl.DataFrame) -> pl.DataFrame:
    have = set(table.columns)
    return table.select(
        pl.col("tokens").cast(pl.Int64, strict=False),
        pl.col("batch").cast(pl.Int64, strict=False),
        (pl.col("context").cast(pl.Int64, strict=False) if "context" in have else pl.lit(None, pl.Int64)).alias(
            "context"
        ),
        pl.col("ms").cast(pl.Float64, strict=False),
        (pl.col("tp").cast(pl.Int64, strict=False) if "tp" in have else pl.lit(None, pl.Int64)).alias("tp"),
    )


def _splitwise(table: pl.DataFrame) -> pl.DataFrame:
    """A prompt phase is one step from nothing; a token's time is that of a decode half way through the answer."""
    batch, prompt = pl.col("batch_size"), pl.col("prompt_size")
    tp = pl.col("tensor_parallel").alias("tp")
    prefill = table.select(
        (batch * prompt).alias("tokens"), batch.alias("batch"), pl.lit(0, pl.Int64).alias("context"),
        pl.col("prompt_time").alias("ms"), tp,
    )  # fmt: skip
    decode = table.select(
        batch.alias("tokens"), batch.alias("batch"), (prompt + pl.col("token_size") // 2).alias("context"),
        pl.col("token_time").alias("ms"), tp,
    )  # fmt: skip
    return pl.concat([prefill, decode])


def _vidur(table: pl.DataFrame, num_layers: int) -> pl.DataFrame:
    """Operations of one layer but attention, in ms; every layer takes as long."""
    names = [name for name in table.columns if name.startswith("time_stats.") and name.endswith(".median")]
    layer = pl.sum_horizontal([pl.col(n) * (2 if n in TWICE else 1) for n in names if n not in ONCE])
    once = pl.sum_horizontal([pl.col(n) for n in names if n in ONCE])
    return table.select(
        pl.col("num_tokens").alias("tokens"),
        pl.lit(0, pl.Int64).alias("batch"),
        pl.lit(None, pl.Int64).alias("context"),
        (layer * num_layers + once).alias("ms"),
        pl.col("num_tensor_parallel_workers").alias("tp"),
    )


def _check(rows: pl.DataFrame, path: Path) -> None:
    tokens, batch, context, ms = (rows[name] for name in ("tokens", "batch", "context", "ms"))
    fine = (tokens >= 1) & (batch >= 0) & (context.fill_null(0) >= 0) & (ms > 0) & ms.is_finite()
    fine &= (batch == 0) | (tokens % batch.replace(0, 1) == 0)
    bad = (~fine.fill_null(False)).arg_true()
    if len(bad):
        row = rows.row(bad[0], named=True)
        shown = ", ".join(f"{name} {row[name]}" for name in ("tokens", "batch", "context", "ms"))
        raise UsageError(
            f"{path}: a row has {shown}; expected tokens >= 1 that batch divides, context >= 0 and ms above 0"
        )


def _steps(rows: pl.DataFrame) -> Steps:
    tokens, batch = rows["tokens"].to_numpy(), rows["batch"].to_numpy()
    attends = rows["context"].is_not_null().to_numpy() & (batch > 0)
    number = np.where(attends, batch, 0)
    chunk_step = np.repeat(np.arange(len(rows)), number)
    counts = np.repeat(tokens // np.maximum(batch, 1), number)
    starts = np.repeat(rows["context"].fill_null(0).to_numpy(), number)
    nothing = np.zeros(len(rows), dtype=np.int64)
    return Steps(rows["ms"].to_numpy() * 1e6, tokens, batch, nothing, chunk_step, starts, counts)
