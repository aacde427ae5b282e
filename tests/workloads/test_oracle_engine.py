"""The oracle against the engine itself: one request at a time, the same rows, no model."""

from __future__ import annotations

from functools import cache

import msgspec
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from oracle_cases import MAKER, row_lists, tokens_of

from kvtop.engine.api import Engine, EngineConfig, NullExecutor, RequestSpec, SamplingParams
from kvtop.engine.policies.future import FutureUses
from kvtop.workloads.builtins import MOONCAKE_SLICE
from kvtop.workloads.formats.registry import read_trace
from kvtop.workloads.oracle.chains import whole_blocks
from kvtop.workloads.oracle.curves import POLICIES
from kvtop.workloads.oracle.ideal import ideal_hits
from kvtop.workloads.oracle.runs import Chains
from kvtop.workloads.rows import Row
from kvtop.workloads.scale import check_factor, scale_lengths

BLOCK_SIZE = 16


@cache
def conversations() -> tuple[Row, ...]:
    """The trace's hash blocks of 512 tokens become the engine's of 16."""
    rows = read_trace(MOONCAKE_SLICE, "mooncake").rows[:150]
    return tuple(scale_lengths(rows, check_factor(1 / 32, "length_scale"))[0])


def filled(rows: list[Row] | tuple[Row, ...], block_size: int) -> list[Row]:
    """The same rows with answers that end where a block does; the last token of an answer is not stored."""
    return [msgspec.structs.replace(r, output_tokens=block_size - r.prompt_tokens % block_size + 1) for r in rows]


def served(rows: list[Row] | tuple[Row, ...], num_blocks: int, block_size: int, eviction: str = "lru") -> list[int]:
    """Tokens that the engine takes from its cache for each request, when each has ended before the next begins."""
    specs = [
        RequestSpec(tokens.prompt, SamplingParams(max_tokens=row.output_tokens, forced_output=answer), f"r{index}")
        for index, (row, tokens, answer) in enumerate(zip(rows, tokens_of(rows), map(MAKER.answer, rows), strict=True))
    ]
    engine = Engine(
        EngineConfig(
            num_blocks=num_blocks, block_size=block_size, max_num_seqs=1, max_batched_tokens=8192, eviction=eviction
        ),
        NullExecutor(),
        future=FutureUses(specs, block_size) if eviction == "belady" else None,
    )
    for spec in specs:
        engine.submit_spec(spec)
    engine.run()
    engine.check()
    return [engine.request(spec.request_id or "").cached_tokens for spec in specs]


def blocks_needed(rows: list[Row] | tuple[Row, ...], block_size: int) -> int:
    """The largest request and the block in which its last token is computed: no pool may be smaller."""
    return max((row.prompt_tokens + row.output_tokens) // block_size + 1 for row in rows)


def repeats(chains: Chains) -> bool:
    """Whether a request stores nothing that earlier ones had not stored: a turn of a conversation that comes again."""
    seen: set[int] = set()
    for request in chains.requests:
        if seen.issuperset(request.runs):
            return True
        seen.update(request.runs)
    return False


def test_with_room_for_everything_the_engine_serves_the_ideal_request_by_request() -> None:
    rows = conversations()
    hits = served(rows, 20_000, BLOCK_SIZE)
    assert hits == ideal_hits(rows, BLOCK_SIZE)
    assert sum(hits) == whole_blocks(rows, BLOCK_SIZE).infinite_hits() * BLOCK_SIZE > 0


@settings(max_examples=60, deadline=None)
@given(row_lists(), st.integers(1, 12))
def test_with_room_for_everything_the_engine_serves_the_ideal_of_any_rows(rows: list[Row], block_size: int) -> None:
    assert served(rows, 2000, block_size) == ideal_hits(rows, block_size)


@pytest.mark.parametrize("policy", ["fifo", "lru", "lfu"])
@pytest.mark.parametrize("num_blocks", [260, 600, 1500])
def test_where_answers_end_with_a_block_the_engine_has_the_hits_foretold(policy: str, num_blocks: int) -> None:
    rows = filled(conversations(), BLOCK_SIZE)
    assert num_blocks >= blocks_needed(rows, BLOCK_SIZE)
    chains = whole_blocks(rows, BLOCK_SIZE, with_output=True)
    (foretold,) = POLICIES[policy].hits(chains, [num_blocks])
    assert sum(served(rows, num_blocks, BLOCK_SIZE, policy)) // BLOCK_SIZE == foretold
    assert 0 < foretold < chains.infinite_hits(), "a pool that never evicts proves nothing"


@settings(max_examples=60, deadline=None)
@given(
    rows=row_lists(),
    block_size=st.integers(2, 12),
    room=st.integers(0, 12),
    policy=st.sampled_from(["fifo", "lru", "lfu"]),
)
def test_the_same_for_any_rows_that_store_something_new(
    rows: list[Row], block_size: int, room: int, policy: str
) -> None:
    rows = filled(rows, block_size)
    chains = whole_blocks(rows, block_size, with_output=True)
    assume(not repeats(chains))
    num_blocks = blocks_needed(rows, block_size) + room
    foretold = POLICIES[policy].hits(chains, [num_blocks])
    assert [sum(served(rows, num_blocks, block_size, policy)) // block_size] == foretold


@pytest.mark.parametrize("policy", ["fifo", "lru", "lfu"])
def test_a_turn_that_was_stored_whole_takes_a_block_for_a_moment(policy: str) -> None:
    """The third request's block is cached, but its last token is computed: in a block of its own, until it is full and
    its key is found to be there already. For that block the prefix of the first request goes, in a full pool of 11.
    """
    first = Row(0, 3, 2, (1,), 3)
    turns = [Row(0, 8, 3, conversation=0), Row(0, 1, 2, conversation=0)]
    rows = [first, Row(0, 9, 2), *turns, first]
    chains = whole_blocks(rows, 2, with_output=True)
    assert repeats(chains)
    for num_blocks, by_engine in ((11, 0), (12, 1)):
        assert POLICIES[policy].hits(chains, [num_blocks]) == [1]
        assert sum(served(rows, num_blocks, 2, policy)) // 2 == by_engine


@pytest.mark.parametrize("num_blocks", [260, 600, 1500])
def test_a_partly_filled_block_costs_lru_at_most_one_block_of_room(num_blocks: int) -> None:
    rows = conversations()
    chains = whole_blocks(rows, BLOCK_SIZE, with_output=True)
    less, more = POLICIES["lru"].hits(chains, [num_blocks - 1, num_blocks])
    assert less <= sum(served(rows, num_blocks, BLOCK_SIZE)) // BLOCK_SIZE <= more


@pytest.mark.parametrize("num_blocks", [260, 600])
def test_the_engines_belady_stays_below_opt_and_above_lru(num_blocks: int) -> None:
    rows = conversations()
    (opt,) = POLICIES["opt"].hits(whole_blocks(rows, BLOCK_SIZE, with_output=True), [num_blocks])
    belady = sum(served(rows, num_blocks, BLOCK_SIZE, "belady")) // BLOCK_SIZE
    assert sum(served(rows, num_blocks, BLOCK_SIZE)) // BLOCK_SIZE < belady <= opt
