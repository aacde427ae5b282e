"""The rows of a comparison: what each is called, its unit, and how it is read from a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvtop.stats import Distribution
from kvtop.summary import RunSummary

PARTS = ("mean", "p50", "p95", "p99", "max")


@dataclass(frozen=True, slots=True)
class Measure:
    """One row: how to read it from a run. ``n`` counts the values behind it, where that is not the whole run."""

    key: str
    label: str
    unit: str  # ns, /s, ratio, count
    read: Callable[[RunSummary], float | None]
    n: Callable[[RunSummary], int] | None = None


Find = Callable[[RunSummary], Distribution]


def _latency(key: str, label: str, find: Find, parts: Sequence[str] = PARTS) -> list[Measure]:
    def reader(part: str) -> Callable[[RunSummary], float | None]:
        return lambda run: getattr(find(run), part)

    def count(run: RunSummary) -> int:
        return find(run).n

    return [Measure(f"{key}_{part}_ns", f"{label} {part}", "ns", reader(part), count) for part in parts]


MEASURES: tuple[Measure, ...] = (
    *_latency("ttft", "TTFT", lambda run: run.ttft),
    *_latency("queue", "queue", lambda run: run.queue, ("p50", "p99", "max")),
    *_latency("itl", "ITL", lambda run: run.itl),
    *_latency("tpot", "TPOT", lambda run: run.tpot),
    *_latency("e2e", "E2E", lambda run: run.e2e),
    Measure("output_tokens_s", "output tokens/s", "/s", lambda run: run.output_tokens_s),
    Measure("total_tokens_s", "prompt + output tokens/s", "/s", lambda run: run.total_tokens_s),
    Measure("busy_output_tokens_s", "output tokens/s, busy part", "/s", lambda run: run.busy_output_tokens_s),
    Measure("requests_s", "requests/s", "/s", lambda run: run.requests_s),
    Measure("steady_requests_s", "requests/s, first to last done", "/s", lambda run: run.steady_requests_s),
    Measure("hit_rate", "prefix hit rate", "ratio", lambda run: run.hit_rate),
    Measure("host_hit_rate", "host hit rate", "ratio", lambda run: run.host_hit_rate),
    Measure("preemptions", "preemptions", "count", lambda run: run.preemptions),
    Measure("evictions", "evictions", "count", lambda run: run.evictions),
    Measure("peak_used_blocks", "peak used blocks", "count", lambda run: run.peak_used_blocks),
    Measure("peak_occupancy", "peak occupancy", "ratio", lambda run: run.peak_occupancy),
    Measure("duration_ns", "duration", "ns", lambda run: run.duration_ns),
)


def class_measures(runs: Sequence[RunSummary]) -> dict[str, list[Measure]]:
    """TTFT and ITL of each class of requests, where the workload has several."""

    def of(name: str, key: str) -> Find:
        return lambda run: getattr(run.classes[name], key) if name in run.classes else Distribution(0)

    names = dict.fromkeys(name for run in runs for name in run.classes)
    return {
        name: [
            *_latency("ttft", f"{name or '(no class)'} TTFT", of(name, "ttft"), ("p50", "max")),
            *_latency("itl", f"{name or '(no class)'} ITL", of(name, "itl"), ("p50", "p99", "max")),
        ]
        for name in names
    }
