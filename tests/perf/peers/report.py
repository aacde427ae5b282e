"""Figures of the peers' runs, as one Markdown table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median

from kvtop.analysis.stats import percentile

NOT_REPORTED = "not reported"
KV_BYTES_PER_TOKEN = 2 * 30 * 3 * 64 * 4  # K and V, SmolLM2's layers, KV heads, head size, fp32
WEIGHT_BYTES = 4


@dataclass
class Run:
    """Tokens of every request and the times (s since all requests were there) each was known at."""

    tokens: list[list[int]]
    times: list[list[float]]

    @property
    def seconds(self) -> float:
        return max(times[-1] for times in self.times)

    @property
    def is_timed(self) -> bool:
        """Whether the time of every token is known: with one missing no gap can be trusted, nor which is the first."""
        return all(len(times) == len(tokens) for times, tokens in zip(self.times, self.tokens, strict=True))

    def ttft(self) -> list[float]:
        return sorted(times[0] for times in self.times) if self.is_timed else []

    def itl(self) -> list[float]:
        return sorted(b - a for times in self.times for a, b in pairwise(times)) if self.is_timed else []


@dataclass
class Result:
    """What a peer did: complete runs by repeat (from 1), and why there are not more of them, if there are not."""

    version: str = ""
    setting: str = ""
    runs: dict[int, Run] = field(default_factory=dict)
    problem: str | None = None


def table(requests: list[dict], results: dict[str, Result], limits: dict[str, float]) -> str:
    """A row for every peer: its figures over complete runs, and why it has none or fewer."""
    prompt = sum(len(r["prompt"]) for r in requests)
    output = sum(r["num_tokens"] for r in requests)
    bounds = (gemm_seconds(prompt + output, limits), read_seconds(requests, limits))
    lines = [
        f"{len(requests)} requests, {prompt:,} prompt and {output:,} output tokens. Limits of this machine: "
        f"{limits['gemm_gflops']:,.1f} GFLOP/s in matrix products, {limits['read_gb_per_s']:,.1f} GB/s read. At these, "
        f"all tokens take {bounds[0]:.1f} s of arithmetic, and {bounds[1]:.1f} s of reading.",
        "",
        "| peer | runs | s (min - max) | prompt + output tokens/s | output tokens/s | kvtop is faster by (min - max)"
        " | of the GEMM rate | of the read rate | TTFT p50 / p99 s | ITL p50 / p99 ms |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    mine = results["kvtop"].runs if "kvtop" in results else {}
    for name, result in results.items():
        if result.runs:
            lines.append(_row(name, result, mine, (prompt, output), bounds))
        if result.problem is not None:
            text = f"{name}: {result.problem}".replace("|", "/")
            lines.append(f"| {text} |" + " - |" * 9)
    return "\n".join(lines)


def _row(name: str, result: Result, mine: dict[int, Run], tokens: tuple[int, int], bounds: tuple[float, float]) -> str:
    runs = list(result.runs.values())
    each = [r.seconds for r in runs]
    seconds = median(each)
    cells = [
        f"{name} {result.version} ({result.setting})",
        str(len(runs)),
        f"{seconds:.1f}{_spread(each, '.1f')}",
        f"{sum(tokens) / seconds:.0f}",
        f"{tokens[1] / seconds:.0f}",
        "-" if name == "kvtop" else faster(result.runs, mine),
        *(f"{bound / seconds:.0%}" for bound in bounds),
        _percentiles(runs, Run.ttft, 1, ".2f"),
        _percentiles(runs, Run.itl, 1e3, ".0f"),
    ]
    return "| " + " | ".join(cells) + " |"


def faster(theirs: dict[int, Run], mine: dict[int, Run]) -> str:
    """The peer's seconds over kvtop's of the same repeat, so that what slows the machine slows both: median, spread."""
    ratios = [run.seconds / mine[repeat].seconds for repeat, run in theirs.items() if repeat in mine]
    return f"{median(ratios):.2f} x{_spread(ratios, '.2f')}" if ratios else "-"


def gemm_seconds(num_tokens: int, limits: dict[str, float]) -> float:
    """Least time for that many tokens, none from a prefix cache: two operations a parameter at the GEMM rate."""
    return 2 * limits["num_params"] * num_tokens / (limits["gemm_gflops"] * 1e9)


def read_seconds(requests: list[dict], limits: dict[str, float]) -> float:
    """Least time for reading: all weights once for every token of the longest answer, K and V before every token."""
    weights = max(r["num_tokens"] for r in requests) * limits["num_params"] * WEIGHT_BYTES
    contexts = sum(len(r["prompt"]) + i for r in requests for i in range(r["num_tokens"]))
    return (weights + contexts * KV_BYTES_PER_TOKEN) / (limits["read_gb_per_s"] * 1e9)


def _percentiles(runs: list[Run], figure: Callable[[Run], list[float]], scale: float, form: str) -> str:
    """p50 and p99 of each run; of these the median over the runs that have them."""
    texts = []
    for q in (50, 99):
        known = [value for run in runs if (value := percentile(figure(run), q)) is not None]
        if not known:
            return NOT_REPORTED
        texts.append(f"{median(known) * scale:{form}}")
    return " / ".join(texts)


def _spread(values: list[float], form: str) -> str:
    return f" ({min(values):{form}} - {max(values):{form}})" if len(values) > 1 else ""
