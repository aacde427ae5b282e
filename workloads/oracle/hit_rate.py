"""The hit rates that a workload allows: with an infinite cache, and with caches of given sizes by policy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from kvtop.engine.errors import WorkloadError
from kvtop.workloads.oracle.chains import recorded_ids, whole_blocks
from kvtop.workloads.oracle.curves import POLICIES, spread_capacities
from kvtop.workloads.rows import Row

DEFAULT_BLOCK_SIZE = 16  # the engine's, for workloads without hash ids


@dataclass(frozen=True, slots=True)
class Share:
    """Hits out of what was asked for, in the same unit."""

    hits: int
    of: int

    @property
    def rate(self) -> float | None:
        """None: nothing was asked for."""
        return self.hits / self.of if self.of else None


@dataclass(frozen=True, slots=True)
class HitRates:
    """All figures are of the rows in their order, one request after the other."""

    num_requests: int
    block_size: int
    hash_block_tokens: int | None  # of the recorded ids; None: there are none, or they differ
    counts_ids: bool  # the curves count recorded ids; otherwise whole blocks of ``block_size``
    with_answers: bool  # and answers take room in the cache
    ids: Share | None  # infinite cache: ids as recorded
    blocks: Share  # infinite cache: whole blocks
    tokens: Share  # infinite cache: tokens of whole blocks, at most each prompt less one
    num_distinct: int  # blocks, of what the curves count
    largest: int  # blocks of the largest request
    capacities: list[int]
    curves: dict[str, list[int]]  # by policy: hits at each capacity
    num_asked: int  # blocks: what the curves' hits are a share of


def hit_rates(
    rows: Sequence[Row],
    *,
    block_size: int | None = None,
    full_blocks: bool = False,
    with_answers: bool = False,
    capacities: Sequence[int] | None = None,
    policies: Sequence[str] = tuple(POLICIES),
) -> HitRates:
    """Figures of ``rows`` in their order. ``block_size`` in tokens; None: the recorded ids' own, or 16 without any.

    The curves count recorded ids where these are of blocks of ``block_size``, the partial last ones included; with
    ``full_blocks`` and everywhere else whole blocks. ``with_answers`` (whole blocks) keeps answers in the cache too, as
    an engine does. ``capacities`` in blocks; None: about 24 that span all that matters.

    Raises:
        WorkloadError: no row shares anything with another by what is recorded, or a block size below 1.
    """
    if not any(row.hash_ids or row.shared_tokens or row.conversation is not None for row in rows):
        raise WorkloadError("no prefix information: the rows hold lengths, but no block ids and no conversations")
    recorded = _recorded_block(rows)
    block_size = block_size or recorded or DEFAULT_BLOCK_SIZE
    whole = whole_blocks(rows, block_size, with_output=with_answers)
    ids = recorded_ids(rows) if recorded else None
    counts_ids = ids is not None and recorded == block_size and not (full_blocks or with_answers)
    chains = ids if ids is not None and counts_ids else whole
    wanted = sorted(set(capacities)) if capacities else spread_capacities(chains)
    blocks = Share(whole.infinite_hits(), whole.num_blocks)
    return HitRates(
        num_requests=len(rows),
        block_size=block_size,
        hash_block_tokens=recorded,
        counts_ids=counts_ids,
        with_answers=with_answers,
        ids=Share(ids.infinite_hits(), ids.num_blocks) if ids else None,
        blocks=blocks,
        tokens=Share(blocks.hits * block_size, sum(row.prompt_tokens for row in rows)),
        num_distinct=chains.num_distinct,
        largest=chains.largest,
        capacities=wanted,
        curves={name: POLICIES[name].hits(chains, wanted) for name in policies},
        num_asked=chains.num_blocks,
    )


def _recorded_block(rows: Sequence[Row]) -> int | None:
    """Tokens that a recorded id stands for, if the prompts are made of ids and all of one size."""
    sizes = Counter(row.hash_block_tokens for row in rows if row.hash_ids)
    if len(sizes) != 1 or any(row.shared_tokens for row in rows):
        return None
    return next(iter(sizes))
