"""Cutting and stretching: the rules are exact, prefixes survive, and every changed request is counted."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtop.engine.errors import UnknownName, WorkloadError
from kvtop.workloads.load import load_workload
from kvtop.workloads.rows import Row
from kvtop.workloads.scale import check_factor, fit, scale_lengths, scale_time
from kvtop.workloads.spec import WorkloadSpec

VOCAB = 49_152


def hashed(prompt_tokens: int, output_tokens: int = 8, block: int = 512) -> Row:
    return Row(0, prompt_tokens, output_tokens, tuple(range(-(-prompt_tokens // block))), block)


def load(**changes: object):
    return load_workload(WorkloadSpec(**{"name": "mooncake-conversation", **changes}), vocab_size=VOCAB)  # type: ignore


@pytest.mark.parametrize("factor", ["0.5", "0.25", "0.0625", "0.03125", "2"])
def test_whole_scaled_blocks_scale_prompts_by_plain_ceiling(factor: str):
    recorded, scaled = load().rows, load(length_scale=float(factor)).rows
    for before, after in zip(recorded, scaled, strict=True):
        assert after.prompt_tokens == math.ceil(Fraction(factor) * before.prompt_tokens)
        assert after.output_tokens == math.ceil(Fraction(factor) * before.output_tokens)
        assert after.hash_ids == before.hash_ids
        assert after.hash_block_tokens == 512 * Fraction(factor)


@given(
    prompt=st.integers(1, 130_000),
    factor=st.floats(1e-5, 4, allow_nan=False),
    block=st.sampled_from([1, 16, 64, 512]),
)
@settings(deadline=None, max_examples=200)
def test_scaled_ids_always_fit_their_prompt(prompt: int, factor: float, block: int):
    (row,), _ = scale_lengths([hashed(prompt, block=block)], check_factor(factor, "length_scale"))
    assert row.prompt_tokens >= 1
    assert row.output_tokens >= 1
    assert len(row.hash_ids) == -(-row.prompt_tokens // row.hash_block_tokens)


def test_scaled_prompts_share_what_they_shared():
    maker_rows = load(length_scale=0.0625, limit=60)
    prompts = [spec.prompt for spec in maker_rows.source().pop_due(10**18)]
    rows = load(limit=60).rows
    for i in range(0, 60, 7):
        for j in range(i):
            ids = sum(1 for _ in _common(rows[i].hash_ids, rows[j].hash_ids))
            tokens = sum(1 for _ in _common(prompts[i], prompts[j]))
            assert tokens == min(ids * 32, len(prompts[i]), len(prompts[j]))


def _common(a, b):
    for x, y in zip(a, b, strict=False):
        if x != y:
            return
        yield x


def test_a_block_that_does_not_scale_evenly_is_announced():
    assert load(length_scale=0.0625).notices == []
    assert load(length_scale=0.1).notices == [
        "length_scale 0.1 makes a hash block of 512 tokens 51 tokens: prompts are scaled by 0.09961"
    ]


def test_a_written_decimal_is_taken_exactly():
    (row,), _ = scale_lengths([Row(0, 30, 70)], check_factor(0.1, "length_scale"))
    assert (row.prompt_tokens, row.output_tokens) == (3, 7)  # in floats 70 * 0.1 is 7.000000000000001


def test_the_shared_head_and_the_own_tail_are_scaled_apart():
    (row,), _ = scale_lengths([Row(0, 103, 8, shared_tokens=100)], Fraction(1, 10))
    assert (row.shared_tokens, row.prompt_tokens) == (10, 11)


def test_time_scale_multiplies_gaps_and_starts_at_zero():
    recorded, halved = load().rows, load(time_scale=0.5).rows
    assert halved[0].arrival_ns == 0
    assert [r.arrival_ns * 2 for r in halved] == [r.arrival_ns for r in recorded]


def test_a_long_schedule_does_not_drift():
    rows = [Row(i * 5_000_000, 1, 1) for i in range(36_000)]
    scaled = scale_time(rows, Fraction(1, 3))
    assert all(abs(r.arrival_ns - Fraction(i * 5_000_000, 3)) <= Fraction(1, 2) for i, r in enumerate(scaled))


def test_time_scale_zero_is_one_burst():
    assert {r.arrival_ns for r in load(time_scale=0.0).rows} == {0}


def test_limit_keeps_the_first_arrivals_and_says_when_there_are_fewer():
    assert load(limit=7).rows == load().rows[:7]
    assert load(limit=1001).num_requests == 1000
    assert load(limit=1001).notices == ["limit 1,001 is more than there is: 1,000 requests served"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"time_scale": float("nan")}, "time_scale is nan"),
        ({"time_scale": -1.0}, "time_scale is -1.0"),
        ({"time_scale": 1e300}, "beyond 292 years"),
        ({"length_scale": 0.0}, "length_scale is 0.0"),
        ({"length_scale": float("inf")}, "length_scale is inf"),
        ({"length_scale": 1e6}, "expected at most 10,000,000"),
        ({"limit": 0}, "limit is 0, expected at least 1"),
    ],
)
def test_impossible_scales_are_usage_errors(changes: dict, words: str):
    with pytest.raises(WorkloadError, match=words):
        load(**changes)


ROWS = [Row(0, 50, 10), Row(0, 95, 10), Row(0, 100, 10), Row(0, 300, 10), Row(0, 20, 500)]


def lengths(rows: list[Row]) -> list[tuple[int, int]]:
    return [(r.prompt_tokens, r.output_tokens) for r in rows]


def test_reject_changes_nothing_and_counts_both_kinds():
    rows, notices = fit(ROWS, "reject", 100)
    assert rows == ROWS
    assert notices == [
        "prompt of 100 tokens or more, will be rejected: 2 requests",
        "exceed 100 tokens with their output, will end early (length): 2 requests",
    ]


def test_clip_cuts_outputs_and_leaves_impossible_prompts_to_be_rejected():
    rows, notices = fit(ROWS, "clip", 100)
    assert lengths(rows) == [(50, 10), (95, 5), (100, 10), (300, 10), (20, 80)]
    assert notices == [
        "output clipped to fit 100 tokens: 2 requests",
        "prompt of 100 tokens or more, will be rejected: 2 requests",
    ]


def test_truncate_cuts_prompts_and_an_output_only_where_it_must():
    rows, notices = fit(ROWS, "truncate", 100)
    assert lengths(rows) == [(50, 10), (90, 10), (90, 10), (90, 10), (1, 99)]
    assert notices == [
        "prompt truncated to fit 100 tokens: 4 requests",
        "output clipped too, it alone did not fit 100 tokens: 1 request",
    ]


def test_truncate_keeps_the_head_so_that_prefixes_are_still_shared():
    (row,), _ = fit([hashed(2000, 8)], "truncate", 1000)
    assert (row.prompt_tokens, row.hash_ids) == (992, (0, 1))


def test_requests_that_fit_are_never_touched():
    for policy in ("reject", "clip", "truncate"):
        assert fit(ROWS[:1], policy, 60) == (ROWS[:1], [])
        assert fit(ROWS, policy, None) == (ROWS, [])


def test_an_unknown_policy_names_the_nearest():
    with pytest.raises(UnknownName) as caught:
        fit(ROWS, "clp", 100)
    assert caught.value.nearest == "clip"
