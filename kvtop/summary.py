"""What one recorded run amounts to: latency percentiles, throughput, hit rate, occupancy, from its tables.

TPOT, E2E and queue time count requests whose status is ``ok``. TTFT and ITL also count what requests cut off by the
end of the run had emitted by then: it was measured, and leaving it out would favour short answers. Failed, rejected
and aborted requests enter no latency; all are counted by status.
Every figure is None where it was not measured.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvtop.engine.errors import KvtopError
from kvtop.engine.events import StepEvent
from kvtop.results.recording import read_frames
from kvtop.stats import Distribution, ratio

if TYPE_CHECKING:
    import polars as pl

_S = 1_000_000_000

_REQUEST_COLUMNS = (
    "request_id", "status", "phase", "prompt_tokens", "output_tokens", "t_sched_ns", "t_done_ns", "t_first_token_ns",
    "ttft_ns", "tpot_ns", "e2e_ns", "queue_total_ns", "hit_tokens", "host_hit_tokens", "num_preemptions", "class",
)  # fmt: skip
_MEASURED = ("ok", "cutoff")  # whose emitted tokens count for TTFT and ITL
_STEP_COLUMNS = ("t_start_ns", "t_done_ns", "used_blocks", "evictions", "preemptions", "num_running")


@dataclass(frozen=True, slots=True)
class ClassLatency:
    """TTFT and ITL (ns) of the requests of one class."""

    ttft: Distribution
    itl: Distribution


@dataclass(frozen=True, slots=True)
class RunSummary:
    """One run. Times in ns, throughput per second of the run's clock, occupancy in blocks."""

    path: str
    manifest: dict[str, Any]
    status: str
    statuses: dict[str, int]  # requests by status
    ttft: Distribution
    itl: Distribution  # all gaps between tokens pooled: a long answer weighs more
    tpot: Distribution  # one value a request: every answer weighs the same
    e2e: Distribution
    queue: Distribution
    duration_ns: int | None  # first scheduled arrival to the last thing that happened
    output_tokens: int
    prompt_tokens: int  # of requests that got their first token
    output_tokens_s: float | None
    total_tokens_s: float | None
    requests_s: float | None
    steady_requests_s: float | None  # (n - 1) / (last - first completion): start-up and tail left out
    busy_output_tokens_s: float | None  # while at least half the peak number of sequences ran
    hit_rate: float | None
    hit_tokens: int | None
    host_hit_rate: float | None  # beside it: found in host memory; None without a host tier
    preemptions: int
    evictions: int
    peak_used_blocks: int | None
    num_blocks: int | None
    classes: dict[str, ClassLatency] = field(default_factory=dict)  # empty where all requests are of one class
    samples: dict[str, list[float]] = field(default_factory=dict, repr=False)  # ns, behind ttft, itl, tpot and e2e

    @property
    def num_requests(self) -> int:
        return sum(self.statuses.values())

    @property
    def num_ok(self) -> int:
        return self.statuses.get("ok", 0)

    @property
    def peak_occupancy(self) -> float | None:
        return ratio(self.peak_used_blocks, self.num_blocks)

    def as_json(self) -> dict[str, Any]:
        """Plain data without NaN and without the samples; null where not measured."""
        data = asdict(replace(self, samples={}))
        del data["samples"]
        return data | {
            "num_requests": self.num_requests,
            "num_ok": self.num_ok,
            "peak_occupancy": self.peak_occupancy,
        }


def load_run(run_dir: Path) -> RunSummary:
    """Summarise one run directory.

    Raises:
        UsageError: not a run's directory, or a run that is still going.
        KvtopError: a table that cannot be read.
    """
    import polars as pl

    from kvtop.results.load import open_run

    try:
        run = open_run(run_dir)
    except pl.exceptions.PolarsError as error:  # the tables of a killed run are made here, and the disk may refuse
        raise KvtopError(f"{run_dir}: its tables cannot be made ({str(error).splitlines()[0]})") from None
    manifest, frames = run.manifest, run.frames_path
    try:
        rows = _rows(run.requests, _REQUEST_COLUMNS).to_dicts()
        steps = _rows(run.steps, _STEP_COLUMNS)
    except KvtopError as error:
        raise KvtopError(f"{run_dir}: {error}") from None
    ok = [row for row in rows if row["status"] == "ok"]
    gaps, busy_tokens_s = _token_measures(frames, rows, _busy_part(steps))
    samples = {
        "ttft": _known(rows, "ttft_ns", _MEASURED),
        "itl": [gap for of_class in gaps.values() for gap in of_class],
        "tpot": _known(ok, "tpot_ns"),
        "e2e": _known(ok, "e2e_ns"),
    }
    duration = _duration(rows, steps)
    output = sum(row["output_tokens"] or 0 for row in rows)
    prompt = sum(row["prompt_tokens"] or 0 for row in rows if row["t_first_token_ns"] is not None)
    looked_up = (
        [row for row in rows if row["hit_tokens"] is not None] if manifest.get("prefix_caching") is not False else []
    )
    hits = sum(row["hit_tokens"] for row in looked_up) if looked_up else None
    host_hits = sum(row["host_hit_tokens"] or 0 for row in looked_up) if manifest.get("host_cache_blocks") else None
    per_second = ratio(_S, duration)
    return RunSummary(
        path=str(run_dir),
        manifest=manifest,
        status=str(manifest.get("status") or "unknown"),
        statuses=_count(str(row["status"]) for row in rows),
        ttft=Distribution.of(samples["ttft"]),
        itl=Distribution.of(samples["itl"]),
        tpot=Distribution.of(samples["tpot"]),
        e2e=Distribution.of(samples["e2e"]),
        queue=Distribution.of(row["queue_total_ns"] for row in ok),
        duration_ns=duration,
        output_tokens=output,
        prompt_tokens=prompt,
        output_tokens_s=_times(output, per_second),
        total_tokens_s=_times(output + prompt, per_second),
        requests_s=_times(len(ok), per_second),
        steady_requests_s=_steady_rate(ok),
        busy_output_tokens_s=busy_tokens_s,
        hit_rate=ratio(hits, sum(row["prompt_tokens"] for row in looked_up)),
        hit_tokens=hits,
        host_hit_rate=ratio(host_hits, sum(row["prompt_tokens"] for row in looked_up)),
        preemptions=int(steps["preemptions"].sum()),
        evictions=int(steps["evictions"].sum()),
        peak_used_blocks=_peak(steps, "used_blocks"),
        num_blocks=manifest.get("num_blocks"),
        classes=_classes(rows, gaps),
        samples=samples,
    )


def _known(rows: list[dict[str, Any]], column: str, statuses: tuple[str, ...] | None = None) -> list[float]:
    """The values of a column that are not null."""
    return [row[column] for row in rows if row[column] is not None and (statuses is None or row["status"] in statuses)]


def _classes(rows: list[dict[str, Any]], gaps: dict[str, list[float]]) -> dict[str, ClassLatency]:
    """By class, in alphabetical order; nothing where there are not two of them."""
    names = sorted({row["class"] or "" for row in rows})
    if len(names) < 2:
        return {}
    return {
        name: ClassLatency(
            Distribution.of(_known([row for row in rows if (row["class"] or "") == name], "ttft_ns", _MEASURED)),
            Distribution.of(gaps.get(name, ())),
        )
        for name in names
    }


def _rows(table: pl.LazyFrame, columns: tuple[str, ...]) -> pl.DataFrame:
    import polars as pl

    try:
        return table.select(columns).collect()
    except (pl.exceptions.PolarsError, OSError) as error:
        raise KvtopError(f"a table cannot be read: {str(error).splitlines()[0]}") from None


def _count(names: Iterator[str]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for name in names:
        counts[name] = counts.get(name, 0) + 1
    return dict(sorted(counts.items()))


def _times(amount: float, per_second: float | None) -> float | None:
    return None if per_second is None else amount * per_second


def _peak(table: pl.DataFrame, column: str) -> int | None:
    values = table[column].drop_nulls().to_list()
    return max(values) if values else None


def _duration(rows: list[dict[str, Any]], steps: pl.DataFrame) -> int | None:
    """First scheduled arrival to the last thing that happened: set-up before the first arrival does not count."""
    ends = [row["t_done_ns"] for row in rows if row["t_done_ns"] is not None]
    last_step = _peak(steps, "t_done_ns")
    if last_step is not None:
        ends.append(last_step)
    starts = [row["t_sched_ns"] for row in rows if row["t_sched_ns"] is not None]
    return max(ends) - min(starts) if ends and starts else None


def _steady_rate(ok: list[dict[str, Any]]) -> float | None:
    done = sorted(row["t_done_ns"] for row in ok if row["t_done_ns"] is not None)
    return ratio((len(done) - 1) * _S, done[-1] - done[0]) if len(done) > 1 else None


def _busy_part(steps: pl.DataFrame) -> tuple[int, int] | None:
    """Start and end of the part in which at least half the peak number of sequences ran: no ramp, no lone tail."""
    peak = _peak(steps, "num_running")
    if not peak:
        return None
    busy = steps.filter(steps["num_running"] * 2 >= peak)
    start, end = busy["t_start_ns"][0], busy["t_done_ns"][-1]
    return (start, end) if end > start else None


def _token_measures(
    frames: Path | None, rows: list[dict[str, Any]], busy: tuple[int, int] | None
) -> tuple[dict[str, list[float]], float | None]:
    """Gaps between tokens (ns) by class, of requests that did not fail, and output tokens per second in the busy part;
    nothing without a recording."""
    if frames is None:
        return {}, None
    measured = {row["request_id"]: row["class"] or "" for row in rows if row["status"] in _MEASURED}
    gaps: dict[str, list[float]] = {}
    last: dict[str, int] = {}
    busy_tokens = 0
    for sequence, request, t_ns, num_tokens in _emissions(frames, {row["request_id"] for row in rows}):
        if busy is not None and busy[0] <= t_ns <= busy[1]:
            busy_tokens += num_tokens
        before, last[sequence] = last.get(sequence), t_ns
        if before is not None and request in measured:
            # k tokens in one step make k gaps of gap / k: their sum stays last - first
            gaps.setdefault(measured[request], []).extend([(t_ns - before) / num_tokens] * num_tokens)
    return gaps, None if busy is None else ratio(busy_tokens * _S, busy[1] - busy[0])


def _emissions(frames: Path, request_ids: set[str]) -> Iterator[tuple[str, str, int, int]]:
    """(sequence, request, time, tokens) of every step that emitted."""
    for events in read_frames(frames):
        for event in events:
            if isinstance(event, StepEvent):
                for sequence, num_tokens in event.emitted:
                    # branch k of request "a" is the sequence "a#k"
                    request = sequence if sequence in request_ids else sequence.rpartition("#")[0]
                    if num_tokens:
                        yield sequence, request, event.t_done_ns, num_tokens
