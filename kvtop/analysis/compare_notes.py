"""What a reader must know before believing a comparison: replicates, simulation, load, requests missing in it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from kvtop.analysis.load_rates import ON_TIME, SAME_LOAD
from kvtop.analysis.replicates import FOR_A_VERDICT, pairs, same_requests, why_no_interval
from kvtop.analysis.summary import RunSummary, Selection
from kvtop.cli.text import signed
from kvtop.results.window import PHASES
from kvtop.workloads.words import counted, was

if TYPE_CHECKING:
    from kvtop.analysis.compare import Column

CUTOFF_SHARE = 0.01
"""A larger share of requests that the run cut off is worth a warning: the slowest are missing."""


def comparison_notes(columns: list[Column], selection: Selection) -> list[str]:
    """Sentences for the reader, the most general first."""
    notes = [*_chance(columns), *_load(columns)]
    if any(run.simulated for column in columns for run in column.runs):
        notes.append("simulated: the clock is virtual, so times say nothing about this machine")
    if selection.phases != PHASES:
        notes.append(f"latencies are of the {' and '.join(selection.phases)} phase only; rates are of the whole run")
    for column in columns:
        for run in column.runs:
            where = f"{column.label} ({Path(run.path).name})" if len(column.runs) > 1 else column.label
            notes += [f"{where}: {text}" for text in _run_notes(run)]
        notes += [f"{column.label}: {text}" for text in (*_request_notes(column, selection), *_slo_notes(column))]
    return notes


def _chance(columns: list[Column]) -> Iterator[str]:
    """How many replicates there are, and what that allows."""
    counts = {len(column.runs) for column in columns}
    if counts == {1}:
        yield (
            "one replicate each: no interval over replicates, a difference may be chance"
            if len(columns) > 1
            else "one replicate: no interval over replicates"
        )
        return
    numbers = ", ".join(f"{column.label} {len(column.runs)}" for column in columns)
    yield f"means over replicates ({numbers})"
    for column in columns[1:]:
        num_pairs = len(pairs(columns[0].runs, column.runs))
        if reason := why_no_interval(columns[0].runs, column.runs):
            yield f"{column.label}: no interval: {reason}"
        elif num_pairs < FOR_A_VERDICT:
            yield (
                f"{column.label}: intervals of {num_pairs} pairs are wide and lean on the normal law; "
                f"p-values need {FOR_A_VERDICT}"
            )
    if any(same_requests(column.runs) and not column.runs[0].simulated for column in columns):
        yield "replicates repeat the same requests: intervals cover this machine's noise, not other workloads"


def _load(columns: list[Column]) -> Iterator[str]:
    """Whether the columns got the same load, as far as it is known."""
    for column in columns[1:]:
        for first, other in pairs(columns[0].runs, column.runs):
            before, after = first.load.realised_s, other.load.realised_s
            if before and after and abs(after / before - 1) > SAME_LOAD:
                yield (
                    f"not the same load: {after:.4g} requests/s arrived under {column.label}, "
                    f"{before:.4g} under {columns[0].label} ({signed(100 * (after / before - 1))} %)"
                )
                break
    if any(run.load.closed_loop for column in columns for run in column.runs):
        yield "closed loop: the next turn waits for an answer, so the offered rate follows from how fast answers came"


def _run_notes(run: RunSummary) -> Iterator[str]:
    """What is particular to one run."""
    if run.status != "complete":
        error = run.manifest.get("error") if run.status == "failed" else None
        yield f"{run.status}{f' ({error})' if error else ''}, figures cover what was finished"
    if run.num_requests and not run.num_ok:
        yield "no request succeeded"
    if run.num_ok and run.itl.n == 0 and run.tpot.n:
        yield "ITL not reported (no recording and no tokens.parquet beside the tables)"
    if (deviation := run.load.deviation) is not None and abs(deviation) > ON_TIME:
        yield f"requests were handed in at {100 * (1 + deviation):.1f} % of the rate that was asked for"
    if run.load.num_late:
        yield (
            f"{run.load.num_late} of {counted(run.num_requests, 'request')} {was(run.load.num_late)} handed in later "
            "than the longest step explains: "
            f"the generator was held up (lag p99 {_ms(run.load.lag.p99)}, longest step {_ms(run.load.longest_step_ns)})"
        )
    if changes := run.manifest.get("config_changes"):
        told = ", ".join(f"{row['key']} {row['old']} -> {row['new']} after step {row['step']:,}" for row in changes)
        yield f"changed by hand while it ran, its figures are of no one configuration: {told}"
    if dropped := run.manifest.get("events_dropped"):
        yield f"{counted(dropped, 'event')} {was(dropped)} dropped while recording"


def _ms(value_ns: float | None) -> str:
    return "not reported" if value_ns is None else f"{value_ns / 1e6:.3g} ms"


def _request_notes(column: Column, selection: Selection) -> Iterator[str]:
    """Requests that some figures do not contain, over all replicates."""
    statuses = summed(run.statuses for run in column.runs)
    num_requests, cut = sum(statuses.values()), statuses.pop("cutoff", 0)
    statuses.pop("ok", None)
    if statuses:
        told = ", ".join(f"{count} {status}" for status, count in statuses.items())
        yield f"{told} of {counted(num_requests, 'request')} {_enter(sum(statuses.values()))} no latency"
    if cut:
        effect = ", so their high percentiles are too low" if cut / num_requests > CUTOFF_SHARE else ""
        yield (
            f"{cut} of {counted(num_requests, 'request')} {was(cut)} cut off by the end of the run: "
            f"in TTFT and ITL as far as they got, not in TPOT and E2E{effect}"
        )
    if left_out := sum(run.num_left_out for run in column.runs):
        why = "as warm-up" if selection.phases == PHASES else "by their phase or as warm-up"
        yield f"{left_out} of {counted(num_requests, 'request')} {_enter(left_out)} no latency {why}"


def _enter(count: int) -> str:
    return "enters" if count == 1 else "enter"


def _slo_notes(column: Column) -> Iterator[str]:
    """What became of the objectives, over all replicates."""
    found = [run.goodput for run in column.runs if run.goodput is not None]
    if not found:
        return
    num_judged = counted(sum(g.judged for g in found), "request")
    parts = [f"{sum(g.met for g in found)} of {num_judged} met {'; '.join(found[0].slo)}"]
    if missed := summed(g.missed for g in found):
        parts.append("missed: " + ", ".join(f"{name} {count}" for name, count in missed.items()))
    if no_objective := sum(g.no_objective for g in found):
        parts.append(f"{no_objective} have no objective that applies")
    if not_applicable := summed(g.not_applicable for g in found):
        told = ", ".join(f"{name} to {count}" for name, count in not_applicable.items())
        parts.append(f"does not apply: {told} (answers of one token)")
    if cutoff := sum(g.cutoff for g in found):
        parts.append(f"{cutoff} cut off by the end of the run are not judged")
    yield "; ".join(parts)
    met = summed({name: share.met for name, share in g.classes.items()} for g in found)
    judged = summed({name: share.judged for name, share in g.classes.items()} for g in found)
    if judged:
        yield "by class: " + ", ".join(f"{name or '(no class)'} {met[name]}/{judged[name]}" for name in judged)


def summed(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Key by key, in order of first appearance."""
    found: dict[str, int] = {}
    for each in counts:
        for name, count in each.items():
            found[name] = found.get(name, 0) + count
    return found
