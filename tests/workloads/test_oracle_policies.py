"""FIFO, LRU, LFU and OPT against caches that handle one block at a time, and OPT against every possible choice."""

from __future__ import annotations

from collections import OrderedDict

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from oracle_cases import chain_of, most_hits, plain_hits, row_lists, tokens_of

from kvtop.engine.errors import WorkloadError
from kvtop.workloads.builtins import MOONCAKE_SLICE
from kvtop.workloads.formats.registry import read_trace
from kvtop.workloads.oracle.chains import recorded_ids, whole_blocks
from kvtop.workloads.oracle.curves import POLICIES
from kvtop.workloads.oracle.ideal import ideal_hits
from kvtop.workloads.oracle.online import LRU, simulate
from kvtop.workloads.rows import Row

ONLINE = [name for name in POLICIES if name != "opt"]


@pytest.fixture(scope="module")
def conversations() -> list[Row]:
    return read_trace(MOONCAKE_SLICE, "mooncake").rows


@pytest.mark.parametrize("policy", ONLINE)
@settings(max_examples=120, deadline=None)
@given(rows=row_lists(), block_size=st.integers(1, 12), capacity=st.integers(1, 20))
def test_a_policy_is_its_order_of_eviction(policy: str, rows: list[Row], block_size: int, capacity: int) -> None:
    hits = POLICIES[policy].hits(whole_blocks(rows, block_size), [capacity])
    assert hits == [plain_hits(policy, rows, block_size, capacity)]


@settings(max_examples=200, deadline=None)
@given(rows=row_lists(max_rows=6), block_size=st.integers(3, 12), capacity=st.integers(1, 5))
def test_opt_is_the_best_of_all_choices(rows: list[Row], block_size: int, capacity: int) -> None:
    assume(len({block for tokens in tokens_of(rows) for block in chain_of(tokens.stored, block_size)}) <= 12)
    chains = whole_blocks(rows, block_size)
    assert POLICIES["opt"].hits(chains, [capacity]) == [most_hits(rows, block_size, capacity)]


@settings(max_examples=60, deadline=None)
@given(rows=row_lists(max_rows=40), block_size=st.integers(1, 12))
def test_no_policy_exceeds_opt_and_none_the_infinite_cache(rows: list[Row], block_size: int) -> None:
    chains = whole_blocks(rows, block_size)
    end = chains.num_distinct + 1
    capacities = [*range(1, end, -(-end // 24)), end]
    opt = POLICIES["opt"].hits(chains, capacities)
    infinite = sum(tokens or 0 for tokens in ideal_hits(rows, block_size)) // block_size
    assert opt == sorted(opt), "more room is never worse"
    for name, policy in POLICIES.items():
        hits = policy.hits(chains, capacities)
        assert all(found <= best for found, best in zip(hits, opt, strict=True)), name
        assert hits[-1] == chains.infinite_hits() == infinite, name


def test_opt_is_more_than_the_others_on_a_real_trace(conversations: list[Row]) -> None:
    chains = whole_blocks(conversations, 512)
    hits = {name: policy.hits(chains, [200, 1000, 5000]) for name, policy in POLICIES.items()}
    for at_one_size in zip(*hits.values(), strict=True):
        found = dict(zip(hits, at_one_size, strict=True))
        assert all(found[name] < found["opt"] for name in ONLINE), found


@pytest.mark.parametrize("capacity", [100, 1000, 5000])
def test_lru_in_one_pass_is_lru_by_simulation_is_an_ordered_dict(conversations: list[Row], capacity: int) -> None:
    chains = recorded_ids(conversations)
    cached: OrderedDict[int, None] = OrderedDict()
    hits = 0
    for row in conversations:
        hits += sum(hash_id in cached for hash_id in row.hash_ids)  # all are looked up, then all are touched
        for hash_id in reversed(row.hash_ids):
            cached[hash_id] = None
            cached.move_to_end(hash_id)
        while len(cached) > capacity:
            cached.popitem(last=False)
    assert hits > 0
    assert POLICIES["lru"].hits(chains, [capacity]) == [simulate(LRU, chains, capacity)] == [hits]


def test_an_infinite_cache_on_recorded_ids_is_a_set(conversations: list[Row]) -> None:
    seen: set[int] = set()
    hits = 0
    for row in conversations:
        hits += sum(hash_id in seen for hash_id in row.hash_ids)
        seen.update(row.hash_ids)
    chains = recorded_ids(conversations)
    assert (chains.infinite_hits(), chains.num_distinct) == (hits, len(seen))
    assert chains.num_blocks == sum(len(row.hash_ids) for row in conversations)


def test_policies_by_hand() -> None:
    # Two blocks of 4 and one more token each; a and b have their first block in common.
    a, b, c = (Row(0, 9, 1, ids, 4) for ids in ((1, 2), (1, 3), (4, 5)))
    chains = whole_blocks([a, b, c, a, b], 4)
    # Three blocks. b hits 1. c needs two, so the leaves 2 and 3 go. Then a hits 1 and b hits 1.
    assert {name: policy.hits(chains, [3]) for name, policy in POLICIES.items()} == {key: [3] for key in POLICIES}
    # Four blocks. c lets go of 2, which came in and was used before 3; a, in need of 2, lets 3 go. With foresight c
    # lets go of 3, which is wanted last, and a hits 1 and 2.
    expected = {"fifo": [3], "lru": [3], "lfu": [3], "opt": [4]}
    assert {name: policy.hits(chains, [4]) for name, policy in POLICIES.items()} == expected


def test_policies_differ_where_they_should() -> None:
    # One block a prompt, two blocks of room. x was hit, so lfu keeps it; it came in first, so fifo lets it go.
    def row(hash_id: int) -> Row:
        return Row(0, 5, 1, (hash_id,), 4)

    x, y, z = row(1), row(2), row(3)
    chains = whole_blocks([x, x, y, z, x], 4)  # z: fifo and lru let x go, lfu and opt y
    assert {name: policy.hits(chains, [2])[0] for name, policy in POLICIES.items()} == {
        "fifo": 1, "lru": 1, "lfu": 2, "opt": 2,
    }  # fmt: skip
    chains = whole_blocks([x, y, x, z, x], 4)  # z: fifo lets x go, all others y
    assert {name: policy.hits(chains, [2])[0] for name, policy in POLICIES.items()} == {
        "fifo": 1, "lru": 2, "lfu": 2, "opt": 2,
    }  # fmt: skip


def test_lfu_counts_hits_since_a_block_came_in() -> None:
    def row(hash_id: int) -> Row:
        return Row(0, 5, 1, (hash_id,), 4)

    x, y, z, w = map(row, range(4))
    # Room for two. z lets x go, the older of two that were hit once. x comes back for z, with no hits, so that w lets x
    # go again and y is a hit; were the old hit remembered, y would be the older of two.
    assert POLICIES["lfu"].hits(whole_blocks([x, x, y, y, z, x, w, y], 4), [2]) == [3]


def test_a_request_larger_than_the_cache_leaves_its_head() -> None:
    long = Row(0, 41, 1, tuple(range(10)), 4)
    chains = whole_blocks([long, long], 4)
    for name, policy in POLICIES.items():
        assert policy.hits(chains, [1, 4, 10, 11]) == [1, 4, 10, 10], name


def test_ids_as_recorded_need_one_block_size() -> None:
    with pytest.raises(WorkloadError, match="blocks of 4 and 8 tokens, expected one size"):
        recorded_ids([Row(0, 9, 1, (1, 2, 3), 4), Row(0, 9, 1, (1, 2), 8)])
    with pytest.raises(WorkloadError, match="blocks of no tokens"):
        recorded_ids([Row(0, 9, 1)])


def test_runs_are_few_whatever_the_block_size(conversations: list[Row]) -> None:
    fine, coarse = whole_blocks(conversations, 16), whole_blocks(conversations, 512)
    assert fine.num_blocks > 30 * coarse.num_blocks
    assert len(fine.size) < 2 * len(coarse.size) < coarse.num_blocks
