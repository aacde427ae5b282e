"""What one recorded run amounts to: latency percentiles, throughput, goodput, hit rate, occupancy, from its tables.

TPOT, E2E and queue time count requests whose status is ``ok``. TTFT and ITL also count what requests cut off by the
end of the run had emitted by then: it was measured, and leaving it out would favour short answers. Failed, rejected
and aborted requests enter no latency; all are counted by status. Warm-up that was declared, and phases that were not
asked for, enter no latency either; throughput and hit rate are of the whole run.
Every figure is None where it was not measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvtop.analysis.hits import HitLoss
from kvtop.analysis.load_rates import Load, load_of
from kvtop.analysis.run_measures import ASKED_COLUMNS, asked, duration, hit_rates, peak, throughput, window_of
from kvtop.analysis.slo import Goodput, Slo, goodput
from kvtop.analysis.stats import Distribution, ratio
from kvtop.analysis.token_times import emissions, gaps_by_class
from kvtop.engine.errors import KvtopError
from kvtop.results.window import PHASES, WARMUP, Window, phases

if TYPE_CHECKING:
    import polars as pl

    from kvtop.results.load import Run

_REQUEST_COLUMNS = (
    "req_index", "request_id", "status", "prompt_tokens", "output_tokens", "t_sched_ns", "t_submit_ns", "t_done_ns",
    "t_first_token_ns", "lag_ns", "ttft_ns", "ttft_submit_ns", "tpot_ns", "e2e_ns", "itl_max_ns", "queue_total_ns",
    "hit_tokens", "host_hit_tokens", "ideal_hit_tokens", "miss_reason", "num_preemptions",
)  # fmt: skip
_MEASURED = ("ok", "cutoff")  # whose emitted tokens count for TTFT and ITL
_STEP_COLUMNS = ("t_start_ns", "t_done_ns", "used_blocks", "evictions", "preemptions", "num_running", "output_tokens")


@dataclass(frozen=True, slots=True)
class Selection:
    """Which requests enter the latencies. ``warmup``: of these by intended arrival none; None: as the run declares."""

    phases: tuple[str, ...] = PHASES
    warmup: int | None = None


EVERYTHING = Selection()


@dataclass(frozen=True, slots=True)
class ClassLatency:
    """TTFT and ITL (ns) of the requests of one class."""

    ttft: Distribution
    itl: Distribution


@dataclass(frozen=True, slots=True)
class RequestTimes:
    """What pairs a request with itself in another run, in ns; None where it has no such time or is left out."""

    request_id: str
    klass: str
    status: str
    phase: str | None
    ttft: int | None
    tpot: int | None
    e2e: int | None


@dataclass(frozen=True, slots=True)
class RunSummary:
    """One run. Times in ns, throughput per second of the run's clock, occupancy in blocks."""

    path: str
    manifest: dict[str, Any]
    status: str
    statuses: dict[str, int]  # requests by status
    phases: dict[str, int]  # requests by phase; empty without a window
    num_left_out: int  # requests that enter no latency because of their phase or as declared warm-up
    window: Window | None  # ns; the steady part (kvtop.results.window)
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
    steady_output_tokens_s: float | None  # in the window
    load: Load
    hit_rate: float | None
    hit_tokens: int | None
    host_hit_rate: float | None  # beside it: found in host memory; None without a host tier
    hits: HitLoss | None  # None: caching off, or the bound is not known
    preemptions: int
    evictions: int
    peak_used_blocks: int | None
    num_blocks: int | None
    asked: str  # the same for the same requests, token ids aside
    goodput: Goodput | None = None  # None: no objectives were given
    classes: dict[str, ClassLatency] = field(default_factory=dict)  # empty where all requests are of one class
    samples: dict[str, list[float]] = field(default_factory=dict, repr=False)  # ns, behind the distributions
    requests: list[RequestTimes] = field(default_factory=list, repr=False)  # by intended arrival

    @property
    def num_requests(self) -> int:
        return sum(self.statuses.values())

    @property
    def num_ok(self) -> int:
        return self.statuses.get("ok", 0)

    @property
    def peak_occupancy(self) -> float | None:
        return ratio(self.peak_used_blocks, self.num_blocks)

    @property
    def simulated(self) -> bool:
        return self.manifest.get("clock") == "virtual"

    def as_json(self) -> dict[str, Any]:
        """Plain data without NaN and without what stands for single requests; null where not measured."""
        data = asdict(replace(self, samples={}, requests=[]))
        del data["samples"], data["requests"]
        return data | {
            "num_requests": self.num_requests,
            "num_ok": self.num_ok,
            "peak_occupancy": self.peak_occupancy,
            "load": data["load"] | {"deviation": self.load.deviation},
            "hits": None if self.hits is None else self.hits.as_json(),
            "goodput": None if self.goodput is None else self.goodput.as_json(),
        }


def load_run(
    run_dir: Path, *, slo: Slo | None = None, selection: Selection = EVERYTHING, gaps: bool = True
) -> RunSummary:
    """Summarise one run directory. With ``slo`` its requests are judged, whatever its manifest says.

    Without ``gaps`` the recording is not read, which is most of the work, and ITL stays empty.

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
    try:
        rows = _rows(run.requests, tuple(dict.fromkeys((*_REQUEST_COLUMNS, *ASKED_COLUMNS)))).to_dicts()
        steps = _rows(run.steps, _STEP_COLUMNS)
    except KvtopError as error:
        raise KvtopError(f"{run_dir}: {error}") from None
    return _summarise(run_dir, run, rows, steps, slo, selection, gaps)


def _summarise(
    run_dir: Path,
    run: Run,
    rows: list[dict[str, Any]],
    steps: pl.DataFrame,
    slo: Slo | None,
    selection: Selection,
    with_gaps: bool,
) -> RunSummary:
    manifest, window = run.manifest, window_of(steps)
    kept = _select(rows, window, selection, manifest)
    ok = [row for row in kept if row["status"] == "ok"]
    classes = {row["request_id"]: row["class"] or "" for row in kept if row["status"] in _MEASURED}
    found = emissions(run, {row["req_index"]: row["request_id"] for row in rows}) if with_gaps else None
    gaps = {} if found is None else gaps_by_class(found, classes)
    samples = {
        "ttft": _known(kept, "ttft_ns", _MEASURED),
        "itl": [gap for of_class in gaps.values() for gap in of_class],
        "tpot": _known(ok, "tpot_ns"),
        "e2e": _known(ok, "e2e_ns"),
        "queue": _known(ok, "queue_total_ns"),
    }
    duration_ns = duration(rows, steps)
    return RunSummary(
        path=str(run_dir),
        manifest=manifest,
        status=str(manifest.get("status") or "unknown"),
        statuses=_count(str(row["status"]) for row in rows),
        phases=_count(row["phase"] for row in rows if row["phase"] is not None),
        num_left_out=len(rows) - len(kept),
        window=window,
        **{name: Distribution.of(values) for name, values in samples.items()},
        duration_ns=duration_ns,
        **throughput(rows, steps, window, duration_ns),
        load=load_of(rows, _longest_step(steps), manifest.get("loop")),
        **hit_rates(rows, manifest),
        preemptions=int(steps["preemptions"].sum()),
        evictions=int(steps["evictions"].sum()),
        peak_used_blocks=peak(steps, "used_blocks"),
        num_blocks=manifest.get("num_blocks"),
        asked=asked(rows),
        goodput=None if slo is None else goodput(kept, slo, duration_ns),
        classes=_classes(kept, gaps),
        samples=samples,
        requests=[_times_of(row) for row in sorted(kept, key=lambda row: (row["t_sched_ns"], row["req_index"]))],
    )


def _longest_step(steps: pl.DataFrame) -> int | None:
    return None if steps.is_empty() else max((steps["t_done_ns"] - steps["t_start_ns"]).to_list())


def _select(
    rows: list[dict[str, Any]], window: Window | None, selection: Selection, manifest: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Give every row its phase; the rows that enter the latencies."""
    declared = selection.warmup if selection.warmup is not None else int(manifest.get("warmup_requests") or 0)
    for row, phase, told in zip(rows, phases(rows, window, declared), phases(rows, None, declared), strict=True):
        row["phase"], row["declared"] = phase, told == WARMUP
    wanted = (*selection.phases, None) if selection.phases == PHASES else selection.phases
    return [row for row in rows if row["phase"] in wanted and not row["declared"]]


def _times_of(row: Mapping[str, Any]) -> RequestTimes:
    ok = row["status"] == "ok"
    return RequestTimes(
        row["request_id"],
        row["class"] or "",
        row["status"],
        row["phase"],
        row["ttft_ns"] if row["status"] in _MEASURED else None,
        row["tpot_ns"] if ok else None,
        row["e2e_ns"] if ok else None,
    )


def _known(rows: Sequence[dict[str, Any]], column: str, statuses: tuple[str, ...] | None = None) -> list[float]:
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
