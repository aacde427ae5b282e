"""Figures of the peers' runs, as one Markdown table."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from kvtop.analysis.stats import percentile


@dataclass
class Run:
    """Tokens of every request and the times (s since all requests were there) each was known at."""

    tokens: list[list[int]]
    times: list[list[float]]

    @property
    def seconds(self) -> float:
        return max(times[-1] for times in self.times)

    def ttft(self) -> list[float]:
        return sorted(times[0] for times in self.times)

    def itl(self) -> list[float]:
        return sorted(b - a for times in self.times for a, b in pairwise(times))


def table(
    requests: list[dict],
    peers: dict[str, tuple[str, str]],
    runs: dict[str, list[Run]],
    limits: dict[str, float],
) -> str:
    """One row a peer; the ratio is kvtop's tokens/s over the peer's, of medians."""
    prompt = sum(len(r["prompt"]) for r in requests)
    output = sum(r["num_tokens"] for r in requests)
    bound = bound_seconds(prompt + output, limits)
    lines = [
        f"{len(requests)} requests, {prompt:,} prompt and {output:,} output tokens. Limits of this machine: "
        + ", ".join(f"{key.replace('_', ' ')} {value:,.1f}" for key, value in limits.items() if key != "num_params")
        + f". All tokens at the best GEMM rate: {bound:.1f} s.",
        "",
        "| peer | n | prompt + output tokens/s | output tokens/s | kvtop is | of the limit"
        " | TTFT p50 / p99 s | ITL p50 / p99 ms |",
        "|---|---|---|---|---|---|---|---|",
    ]
    mine = _seconds(runs["kvtop"]) if "kvtop" in runs else None
    for name, (version, setting) in peers.items():
        kept, seconds = runs[name], _seconds(runs[name])
        spread = f"{min(r.seconds for r in kept):.1f}-{max(r.seconds for r in kept):.1f} s"
        faster = "-" if mine is None or name == "kvtop" else f"{seconds / mine:.2f} x"
        ttft = [_median(kept, lambda r, q=q: percentile(r.ttft(), q)) for q in (50, 99)]
        itl = [_median(kept, lambda r, q=q: percentile(r.itl(), q)) for q in (50, 99)]
        lines.append(
            f"| {name} {version} ({setting}) | {len(kept)} ({spread}) | {(prompt + output) / seconds:.0f} "
            f"| {output / seconds:.0f} | {faster} | {bound / seconds:.0%} "
            f"| {ttft[0]:.2f} / {ttft[1]:.2f} | {itl[0] * 1e3:.0f} / {itl[1] * 1e3:.0f} |"
        )
    return "\n".join(lines)


def bound_seconds(num_tokens: int, limits: dict[str, float]) -> float:
    """Least time for that many tokens, none from a prefix cache: two operations a parameter at the GEMM rate."""
    return 2 * limits["num_params"] * num_tokens / (limits["gemm_gflops"] * 1e9)


def _seconds(kept: list[Run]) -> float:
    return median(r.seconds for r in kept)


def _median(kept: list[Run], figure) -> float:
    return median(figure(r) for r in kept)
