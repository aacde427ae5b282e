"""What ``kvtop trace hit-rate`` prints: text, plain data, and the plot of its curves."""

from __future__ import annotations

from typing import Any

from kvtop.cli.text import harmless, percent, table
from kvtop.plots.curves import Curve, CurvePlot, render_text
from kvtop.workloads import words
from kvtop.workloads.formats.base import Trace
from kvtop.workloads.oracle.curves import POLICIES
from kvtop.workloads.oracle.hit_rate import HitRates, Share

IDS = "ids as recorded"
PARTIAL = {"ceil": "partial last ones too", "floor": "full blocks only"}
TOKENS = "tokens of whole blocks, at most prompt - 1"
RULES = (
    "Requests one after the other, in the trace's order; a hit is part of an unbroken chain from the first block on.",
    "A request looks up all its blocks, then touches them, the last one first; they stay while it runs.",
    "Only blocks without cached blocks behind them are evicted; of a request larger than the cache its head is kept.",
)


def render(found: HitRates, trace: Trace, name: str, width: int | None) -> str:
    """Everything as text: the infinite cache, the table of sizes, the plot, and the definitions."""
    lines = [
        f"{name} ({trace.format}): {words.counted(found.num_requests, 'request')}, {found.tokens.of:,} prompt tokens",
        "",
        _infinite(found, trace),
        "",
        f"cache of limited size, counted in {counted(found)}",
        f"{found.num_distinct:,} different ones are asked for, {found.largest:,} by the largest request",
        "",
        _sizes(found),
        "",
        render_text(curve_plot(found, name), width),
        "",
        *(f"{policy:<5} {POLICIES[policy].meaning}" for policy in found.curves),
        *RULES,
        *(f"note: {notice}" for notice in trace.notices),
    ]
    return harmless("\n".join(lines))


def counted(found: HitRates) -> str:
    """What the curves count, in words."""
    size = words.counted(found.block_size, "token")
    if found.counts_ids:
        return f"{IDS}, one for each {size}"
    return f"whole blocks of {size}{', answers in the cache too' if found.with_answers else ''}"


def _infinite(found: HitRates, trace: Trace) -> str:
    shares = [] if found.ids is None else [(f"{IDS}, {PARTIAL.get(trace.rounding or '', 'one a block')}", found.ids)]
    shares += [(f"whole blocks of {words.counted(found.block_size, 'token')}", found.blocks), (TOKENS, found.tokens)]
    rows = [(what, f"{share.hits:,}", f"{share.of:,}", _rate(share.rate)) for what, share in shares]
    return table(rows, header=("room for everything", "hits", "of", "hit rate"))


def _rate(rate: float | None) -> str:
    return "-" if rate is None else f"{rate:.5f}"


def _sizes(found: HitRates) -> str:
    """Sizes down, policies across: hits, and their share of all that is asked for."""
    header = ["blocks", "tokens", "of all"]
    for policy in found.curves:
        header += [policy, ""]
    rows = []
    for index, capacity in enumerate(found.capacities):
        row = [f"{capacity:,}", f"{capacity * found.block_size:,}", percent(capacity / max(1, found.num_distinct))]
        for hits in found.curves.values():
            share = Share(hits[index], found.num_asked)
            row += [f"{share.hits:,}", percent(share.rate)]
        rows.append(row)
    return table(rows, header=header)


def curve_plot(found: HitRates, name: str) -> CurvePlot:
    """Hit rate over the size of the cache, a curve a policy."""

    def shares(hits: list[int]) -> list[float]:
        return [Share(value, found.num_asked).rate or 0.0 for value in hits]

    infinite = found.ids if found.counts_ids and found.ids is not None else found.blocks
    return CurvePlot(
        title=f"{name}: prefix hit rate by the size of the cache",
        subtitle=f"{counted(found)} · {words.counted(found.num_requests, 'request')}, one after the other · no engine",
        across=f"cache, blocks of {words.counted(found.block_size, 'token')}",
        up="hit rate, share of blocks asked for",
        places=found.capacities,
        curves=[Curve(policy, POLICIES[policy].meaning, shares(hits)) for policy, hits in found.curves.items()],
        limit=Curve("infinite", f"room for everything, {percent(infinite.rate)}", shares([infinite.hits])),
    )


def as_json(found: HitRates, trace: Trace) -> dict[str, Any]:
    """Plain data with stable keys; counts are of blocks unless the name says tokens, rates are shares of 1."""
    return {
        "format": trace.format,
        "trace_sha256": trace.trace_sha256,
        "requests": found.num_requests,
        "block_size_tokens": found.block_size,
        "hash_block_tokens": found.hash_block_tokens,
        "infinite": {
            "recorded_ids": None if found.ids is None else _share(found.ids),
            "whole_blocks": _share(found.blocks),
            "tokens": _share(found.tokens),
        },
        "curves": {
            "counted": counted(found),
            "distinct_blocks": found.num_distinct,
            "largest_request_blocks": found.largest,
            "asked_blocks": found.num_asked,
            "capacity_blocks": found.capacities,
            "policies": {
                policy: {
                    "meaning": POLICIES[policy].meaning,
                    "hits": hits,
                    "rate": [Share(value, found.num_asked).rate for value in hits],
                }
                for policy, hits in found.curves.items()
            },
        },
        "rules": list(RULES),
        "notices": list(trace.notices),
    }


def _share(share: Share) -> dict[str, int | float | None]:
    return {"hits": share.hits, "of": share.of, "rate": share.rate}
