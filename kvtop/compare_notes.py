"""What a reader must know before believing a comparison: replicates, simulation, requests that are missing in it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from kvtop.summary import RunSummary

if TYPE_CHECKING:
    from kvtop.compare import Column


def comparison_notes(columns: list[Column]) -> list[str]:
    """Sentences for the reader, the most general first."""
    notes = []
    counts = {len(column.runs) for column in columns}
    if counts == {1}:
        notes.append(
            "one replicate each: no interval, a difference may be chance"
            if len(columns) > 1
            else "one replicate: no interval"
        )
    else:
        numbers = ", ".join(f"{column.label} {len(column.runs)}" for column in columns)
        notes.append(f"means over replicates ({numbers}): no interval is computed")
    runs = [(column, run) for column in columns for run in column.runs]
    if any(run.manifest.get("clock") == "virtual" for _, run in runs):
        notes.append("simulated: the clock is virtual, so times say nothing about this machine")
    for column, run in runs:
        where = f"{column.label} ({Path(run.path).name})" if len(column.runs) > 1 else column.label
        notes += [f"{where}: {text}" for text in _run_notes(run)]
    return notes


def _run_notes(run: RunSummary) -> list[str]:
    notes = []
    if run.status != "complete":
        error = run.manifest.get("error") if run.status == "failed" else None
        notes.append(f"{run.status}{f' ({error})' if error else ''}, figures cover what was finished")
    left_out = {status: count for status, count in run.statuses.items() if status not in ("ok", "cutoff")}
    if left_out:
        counted = ", ".join(f"{count} {status}" for status, count in left_out.items())
        notes.append(f"{counted} of {run.num_requests} requests enter no latency")
    if cut := run.statuses.get("cutoff", 0):
        effect = ", so their high percentiles are too low" if cut / run.num_requests > 0.01 else ""
        notes.append(
            f"{cut} of {run.num_requests} requests were cut off by the end of the run: "
            f"in TTFT and ITL as far as they got, not in TPOT and E2E{effect}"
        )
    if run.num_requests and not run.num_ok:
        notes.append("no request succeeded")
    if run.num_ok and run.itl.n == 0 and run.tpot.n:
        notes.append("ITL not reported (no recording beside the tables)")
    if dropped := run.manifest.get("events_dropped"):
        notes.append(f"{dropped:,} events were dropped while recording")
    return notes
