"""The rows of a comparison: what each is called, its unit, and how it is read from a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvtop.analysis.stats import Distribution
from kvtop.analysis.summary import RunSummary

PARTS = ("mean", "p50", "p95", "p99", "max")
LOAD, HITS, GOODPUT = "Load", "Hits of prompt tokens", "Objectives"


@dataclass(frozen=True, slots=True)
class Measure:
    """One row: how to read it from a run. ``n`` counts the values behind it, where that is not the whole run."""

    key: str
    label: str
    unit: str  # ns, /s, ratio, count
    read: Callable[[RunSummary], float | None]
    n: Callable[[RunSummary], int] | None = None
    section: str = ""  # the table it stands in; "": the first one
    optional: bool = False  # left out of a table where no run has a value; the others say that there is none


Find = Callable[[RunSummary], Distribution]


def _latency(key: str, label: str, find: Find, parts: Sequence[str] = PARTS, section: str = "") -> list[Measure]:
    def reader(part: str) -> Callable[[RunSummary], float | None]:
        return lambda run: getattr(find(run), part)

    def count(run: RunSummary) -> int:
        return find(run).n

    return [Measure(f"{key}_{part}_ns", f"{label} {part}", "ns", reader(part), count, section) for part in parts]


def _hits(field: str, key: str, label: str) -> Measure:
    def read(run: RunSummary) -> float | None:
        return None if run.hits is None else run.hits.share(field)

    return Measure(key, label, "ratio", read, section=HITS, optional=True)


MEASURES: tuple[Measure, ...] = (
    *_latency("ttft", "TTFT", lambda run: run.ttft),
    *_latency("queue", "queue", lambda run: run.queue, ("p50", "p99", "max")),
    *_latency("itl", "ITL", lambda run: run.itl),
    *_latency("tpot", "TPOT", lambda run: run.tpot),
    *_latency("e2e", "E2E", lambda run: run.e2e),
    Measure("output_tokens_s", "output tokens/s", "/s", lambda run: run.output_tokens_s),
    Measure("steady_output_tokens_s", "output tokens/s, steady", "/s", lambda run: run.steady_output_tokens_s),
    Measure("total_tokens_s", "prompt + output tokens/s", "/s", lambda run: run.total_tokens_s),
    Measure("requests_s", "requests/s", "/s", lambda run: run.requests_s),
    Measure("steady_requests_s", "requests/s, steady", "/s", lambda run: run.steady_requests_s),
    Measure("hit_rate", "prefix hit rate", "ratio", lambda run: run.hit_rate),
    Measure("host_hit_rate", "host hit rate", "ratio", lambda run: run.host_hit_rate, optional=True),
    Measure("preemptions", "preemptions", "count", lambda run: run.preemptions),
    Measure("evictions", "evictions", "count", lambda run: run.evictions),
    Measure("peak_used_blocks", "peak used blocks", "count", lambda run: run.peak_used_blocks),
    Measure("peak_occupancy", "peak occupancy", "ratio", lambda run: run.peak_occupancy),
    Measure("duration_ns", "duration", "ns", lambda run: run.duration_ns),
    Measure("offered_requests_s", "offered requests/s", "/s", lambda run: run.load.offered_s, section=LOAD),
    Measure("realised_requests_s", "realised requests/s", "/s", lambda run: run.load.realised_s, section=LOAD),
    *_latency("lag", "lag", lambda run: run.load.lag, ("p50", "p99", "max"), LOAD),
    _hits("shared_prefix", "shared_prefix_rate", "shared with earlier prompts"),
    _hits("block_rounding", "lost_block_rounding", "- block rounding"),
    _hits("capacity", "lost_capacity", "- capacity (evicted)"),
    _hits("concurrency", "lost_concurrency", "- concurrency"),
    _hits("other", "lost_other", "- other reasons"),
    _hits("beyond", "found_beyond", "+ answers, not in the bound"),
    _hits("found", "found_rate", "= found"),
    Measure(
        "slo_attainment", "attainment", "ratio", lambda run: run.goodput and run.goodput.attainment,
        lambda run: run.goodput.judged if run.goodput else 0, GOODPUT, True,
    ),
    Measure(
        "goodput_s", "goodput, requests/s", "/s", lambda run: run.goodput and run.goodput.requests_s,
        section=GOODPUT, optional=True,
    ),
)  # fmt: skip

BY_KEY = {measure.key: measure for measure in MEASURES}

PRIMARY = ("ttft_p50_ns", "ttft_p99_ns", "tpot_p50_ns", "output_tokens_s")
"""What a comparison is declared to be about, unless it is told otherwise: the metrics that are tested."""


def class_measures(runs: Sequence[RunSummary]) -> dict[str, list[Measure]]:
    """TTFT and ITL of each class of requests, where the workload has several."""

    def of(name: str, key: str) -> Find:
        return lambda run: getattr(run.classes[name], key) if name in run.classes else Distribution(0)

    names = dict.fromkeys(name for run in runs for name in run.classes)
    return {
        name: [
            *_latency("ttft", f"{name or '(no class)'} TTFT", of(name, "ttft"), ("p50", "p99", "max")),
            *_latency("itl", f"{name or '(no class)'} ITL", of(name, "itl"), ("p50", "p99", "max")),
        ]
        for name in names
    }
