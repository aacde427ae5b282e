"""Where the KV memory went, allocator by allocator: tokens, reservations, holes. Definitions: docs/memory-baselines.md.

Every figure weighs a step by its duration. Blocks are those at the end of the step, when finished sequences have given
theirs back. Figures are None where nothing was measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvtop.analysis.stats import mean, ratio
from kvtop.engine.errors import KvtopError

if TYPE_CHECKING:
    import polars as pl

    from kvtop.analysis.compare import Column
    from kvtop.analysis.summary import RunSummary

NO_ROOM = ("no_blocks", "no_hole")
"""Reasons of a refusal that are about memory."""


@dataclass(frozen=True, slots=True)
class Memory:
    """One run. Ratios are of slots unless said otherwise."""

    utilisation: float | None  # slots that hold a token / slots of the pool
    waste: float | None  # (reserved but unused + unusable) / (those + slots that hold a token)
    internal_waste: float | None  # reserved but unused / reserved
    external_waste: float | None  # unusable (fresh, contiguous allocator, head of the queue refused) / pool
    blocked_fresh: float | None  # fresh while the head of the queue is refused / pool, whatever the allocator
    blocked_time: float | None  # share of the steps' time with the head of the queue refused for want of room
    mean_running: float | None  # sequences
    peak_running: int | None
    refusals: int  # `skipped` decisions for want of room
    output_tokens_s: float | None
    preemptions: int


ROWS: tuple[tuple[str, str, str], ...] = (
    ("utilisation", "slots that hold a token", "ratio"),
    ("waste", "waste", "ratio"),
    ("internal_waste", "internal waste", "ratio"),
    ("external_waste", "external waste", "ratio"),
    ("blocked_fresh", "fresh while the head waits", "ratio"),
    ("blocked_time", "time the head waits for room", "ratio"),
    ("mean_running", "running, mean", "count"),
    ("peak_running", "running, peak", "count"),
    ("refusals", "refused for want of room", "count"),
    ("output_tokens_s", "output tokens/s", "/s"),
    ("preemptions", "preemptions", "count"),
)
"""Fields of ``Memory`` as rows of the report: key, label, unit (as in ``compare.Measure``)."""


def load_memory(run: RunSummary) -> Memory:
    """Measure one run from its tables.

    Raises:
        KvtopError: a table that cannot be read.
    """
    import polars as pl

    from kvtop.results.load import open_run

    tables = open_run(Path(run.path))
    try:
        steps = tables.steps.select(_totals()).collect().row(0, named=True)
        refused = (pl.col("kind") == "skipped") & pl.col("reason").is_in(NO_ROOM)
        refusals = int(tables.events.select(refused.sum()).collect().item())
    except (pl.exceptions.PolarsError, OSError) as error:
        raise KvtopError(f"{run.path}: a table cannot be read: {str(error).splitlines()[0]}") from None
    return _measure(run, steps, refusals)


def _totals() -> list[pl.Expr]:
    """Sums over steps, each times its duration."""
    import polars as pl

    # Float: slots times nanoseconds would leave 64-bit integers within hours of a large pool's time.
    duration = (pl.col("t_done_ns") - pl.col("t_start_ns")).cast(pl.Float64)
    refused = pl.col("waiting_reason").is_in(NO_ROOM).fill_null(False)
    return [
        duration.sum().alias("time"),
        (duration * pl.col("filled_slots")).sum().alias("filled"),
        (duration * pl.col("reserved_unused_slots")).sum().alias("unused"),
        (duration * pl.col("fresh_blocks")).filter(refused).sum().alias("fresh_refused"),
        duration.filter(refused).sum().alias("time_refused"),
        (duration * pl.col("num_running")).sum().alias("running"),
        pl.col("num_running").max().alias("peak"),
    ]


def _measure(run: RunSummary, steps: dict[str, Any], refusals: int) -> Memory:
    block_size, num_blocks = run.manifest.get("block_size_tokens"), run.num_blocks
    pool = steps["time"] * num_blocks * block_size if num_blocks and block_size else None
    filled, unused = steps["filled"], steps["unused"]
    blocked = steps["fresh_refused"] * block_size if block_size else None
    unusable = blocked if str(run.manifest.get("allocator")).startswith("contiguous") else 0.0
    wasted = None if unusable is None else unused + unusable
    return Memory(
        utilisation=ratio(filled, pool),
        waste=None if wasted is None else ratio(wasted, filled + wasted),
        internal_waste=ratio(unused, filled + unused),
        external_waste=ratio(unusable, pool),
        blocked_fresh=ratio(blocked, pool),
        blocked_time=ratio(steps["time_refused"], steps["time"]),
        mean_running=ratio(steps["running"], steps["time"]),
        peak_running=steps["peak"],
        refusals=refusals,
        output_tokens_s=run.output_tokens_s,
        preemptions=run.preemptions,
    )


def memory_by_column(columns: Sequence[Column]) -> list[dict[str, float | None]]:
    """``Memory`` of each column by field name, means over replicates; empty where all share one allocator."""
    allocators = {str(run.manifest.get("allocator")) for column in columns for run in column.runs}
    return [_mean_of([load_memory(run) for run in column.runs]) for column in columns] if len(allocators) > 1 else []


def _mean_of(memories: list[Memory]) -> dict[str, float | None]:
    found: dict[str, float | None] = {}
    rows = [asdict(memory) for memory in memories]
    for key, _, _ in ROWS:
        values = [row[key] for row in rows]
        known = [value for value in values if value is not None]
        found[key] = mean(known) if len(known) == len(values) else None
    return found
