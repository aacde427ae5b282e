"""Where the hits went: from what earlier prompts would have allowed down to what was found, each loss with its cause.

    shared prefix - block rounding - capacity - concurrency - other + beyond = found

*Shared prefix* is what an infinite cache with blocks of one token would have served, with every earlier prompt (by
arrival) in it. A request's loss below the whole blocks of that is put down to why its match ended: *capacity*, the
block had been evicted; *concurrency*, the earlier prompt was still being computed or waiting; *other*, anything else.
*Beyond* is what was found on top: answers, which the bound does not know.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from kvtop.analysis.stats import ratio

CAUSES = {"evicted": "capacity", "not_yet_computed": "concurrency", "never_seen": "concurrency"}
"""Where a loss belongs, by ``miss_reason``; ``other`` for the rest."""


@dataclass(frozen=True, slots=True)
class HitLoss:
    """Tokens of the prompts of ``num_requests`` requests that were looked up and have a bound."""

    num_requests: int
    prompt_tokens: int
    shared_prefix: int
    block_rounding: int
    capacity: int
    concurrency: int
    other: int
    beyond: int
    found: int  # on the device and in host memory

    def share(self, name: str) -> float | None:
        """A field as a share of the prompt tokens."""
        return ratio(getattr(self, name), self.prompt_tokens)

    def as_json(self) -> dict[str, Any]:
        """Tokens by name, and their shares of the prompt tokens."""
        tokens = {field.name: getattr(self, field.name) for field in fields(self)}
        return tokens | {"shares": {name: self.share(name) for name in list(tokens)[2:]}}


def hit_loss(rows: Iterable[Mapping[str, Any]]) -> HitLoss | None:
    """From rows of requests.parquet; None where no request has both a lookup and a bound."""
    known = [row for row in rows if row["hit_tokens"] is not None and row["ideal_hit_tokens"] is not None]
    if not known:
        return None
    lost = {"capacity": 0, "concurrency": 0, "other": 0, "beyond": 0}
    found = 0
    for row in known:
        cached = row["hit_tokens"] + (row["host_hit_tokens"] or 0)
        found += cached
        missing = row["ideal_hit_tokens"] - cached
        lost["beyond" if missing < 0 else CAUSES.get(row["miss_reason"], "other")] += abs(missing)
    shared = sum(row["shared_prefix_tokens"] for row in known)
    return HitLoss(
        num_requests=len(known),
        prompt_tokens=sum(row["prompt_tokens"] for row in known),
        shared_prefix=shared,
        block_rounding=shared - sum(row["ideal_hit_tokens"] for row in known),
        **lost,
        found=found,
    )
