"""KV groups: what falls out of a sliding window goes back to the pool, and prefix hits follow the window."""

from __future__ import annotations

from typing import Any

import pytest
from engine_helpers import decisions, distinct, expected_output, serve, steps_until_idle, submit
from windowed_scenario import WindowedScenario, longest_hit, windowed_engine

from kvtop.engine.api import BlockState, ConfigError, Engine, EngineConfig, FinishReason, MissReason, RequestTooLong
from kvtop.engine.types import NULL_BLOCK, ResetResult
from kvtop.engine.windows import first_kept, longest_that_fits, span_blocks

SEEDS_A_TEST = 60


def held(engine: Engine, rid: str) -> list[list[int]]:
    """Blocks of each group's table."""
    return [[block for block in table if block != NULL_BLOCK] for table in engine.request(rid).block_tables]


def published(engine: Engine, group: int) -> list[int]:
    """Blocks of a group in the order in which they were published; drains the recorder."""
    return [row["block"] for row in decisions(engine, "publish") if row["group"] == group]


def test_leading_blocks_are_dropped_and_null_is_never_free() -> None:
    engine = windowed_engine(8, 4, (8,), max_model_len=64, prefix_caching=False)
    rid = submit(engine, distinct(20, 0), 2)
    engine.step()
    # The next query, at 20, sees 13..20: of five blocks, floor(13 / 4) = 3 are dropped.
    table = engine.request(rid).block_table
    assert table[:3] == (NULL_BLOCK,) * 3
    assert len(table) == 5
    assert all(engine.block(b).owners == (rid,) for b in table[3:])
    assert (engine.counters().used, engine.counters().fresh) == (2, 6)
    dropped = [row for row in decisions(engine, "free") if row["reason"] == "window"]
    assert len({row["block"] for row in dropped}) == 3
    engine.run()
    engine.check()
    assert sorted(engine.allocator.pool.fresh) == list(range(8))


@pytest.mark.parametrize(("window", "block_size"), [(8, 4), (9, 4), (2, 4), (8, 1), (5, 16)])
def test_a_window_never_holds_more_than_it_can_touch(window: int, block_size: int) -> None:
    most = -(-(window - 1) // block_size) + 1
    engine = windowed_engine(most, block_size, (window,), max_model_len=2000)
    rid = submit(engine, distinct(3, 0), 1000)
    steps = 0
    while engine.has_requests:
        engine.step()
        engine.check()
        steps += 1
        assert engine.allocator.pool.num_used <= most
    assert steps == 1000
    assert engine.request(rid).finish_reason is FinishReason.LENGTH
    assert list(engine.request(rid).output) == expected_output(distinct(3, 0), 1000)


def test_a_prompt_much_longer_than_the_pool_is_served_through_the_window() -> None:
    engine = windowed_engine(4, 4, (8,), max_model_len=500)
    view = serve(engine, distinct(400, 0), 5)
    assert list(view.output) == expected_output(distinct(400, 0), 5)
    assert engine.counters().preemptions == 0
    assert engine.counters().computed_tokens == 404


def test_a_long_chunk_uses_what_nobody_is_promised() -> None:
    engine = windowed_engine(40, 4, (8,), max_model_len=500, max_batched_tokens=64)
    submit(engine, distinct(200, 0), 2)
    chunks = [out.plan.num_tokens for out in steps_until_idle(engine)]
    assert chunks == [64, 64, 64, 8, 1]  # enough free blocks: the budget is the only limit


def test_a_long_chunk_leaves_to_others_what_they_are_promised() -> None:
    engine = windowed_engine(12, 4, (8,), max_model_len=500, max_batched_tokens=64)
    for rid in ("a", "b"):
        submit(engine, distinct(150, ord(rid)), 2, rid)
    outs = steps_until_idle(engine)
    assert engine.counters().preemptions == 0
    together = [out for out in outs if len(out.plan) == 2]
    assert len(together) > 2
    assert all(chunk.count > 0 for out in together for chunk in out.plan)


def test_sequences_that_decode_keep_their_span_and_never_preempt_each_other() -> None:
    # Each alternates between two and three blocks; a fourth would fit for a moment and then be in the way.
    engine = windowed_engine(9, 4, (8,), max_model_len=500, prefix_caching=False)
    for number in range(5):
        submit(engine, distinct(9, number), 60, f"r{number}")
    steps_until_idle(engine)
    assert engine.counters().preemptions == 0


def test_groups_that_disagree_use_the_longest_prefix_that_all_can_serve() -> None:
    engine = windowed_engine(16, 4, (None, 8))
    prompt = distinct(13, 0)
    serve(engine, prompt)
    windowed = published(engine, 1)
    engine.evict(windowed[2])  # the query at 12 looks back to 5; the query at 8 to 1
    view = serve(engine, prompt)
    assert view.cached_tokens == 8
    assert list(view.output) == expected_output(prompt, 1)
    assert (view.miss_reason, decisions(engine, "lookup")[-1]["other"]) == (MissReason.EVICTED, "forced")


def test_a_hit_needs_only_the_blocks_that_its_window_sees() -> None:
    engine = windowed_engine(16, 4, (None, 8))
    prompt = distinct(13, 0)
    serve(engine, prompt)
    engine.evict(published(engine, 1)[0])  # positions 0..3, which the query at 12 does not see
    rid = submit(engine, prompt)
    engine.step()
    shared = [(row["group"], row["num_tokens"]) for row in decisions(engine, "share")]
    assert shared == [(0, 0), (0, 4), (0, 8), (1, 4), (1, 8)]
    assert engine.request(rid).cached_tokens == 12


def test_a_group_that_keeps_all_needs_an_unbroken_chain() -> None:
    engine = windowed_engine(16, 4, (None, 8))
    prompt = distinct(13, 0)
    serve(engine, prompt)
    full = published(engine, 0)
    with pytest.raises(Exception, match="has published children"):
        engine.evict(full[0])
    for block in reversed(full[1:]):
        engine.evict(block)
    assert serve(engine, prompt).cached_tokens == 4


def test_windows_alone_hit_behind_a_gap_and_tokens_are_compared_all_the_way() -> None:
    engine = windowed_engine(16, 4, (8,), max_model_len=64)
    prompt = distinct(21, 0)
    serve(engine, prompt)
    first, second, *_ = published(engine, 0)
    engine.evict(first)
    engine.evict(second)
    assert serve(engine, prompt).cached_tokens == 20
    other = [1, *prompt[1:]]  # the same last blocks behind another first token
    view = serve(engine, other)
    assert view.cached_tokens == 0
    assert list(view.output) == expected_output(other, 1)


def test_the_longest_hit_by_definition() -> None:
    keys = [10, 11, 12, 13]
    everything = {(g, k) for g in range(2) for k in keys}
    assert longest_hit(everything, (None, 8), keys, 4, 17) == 4
    assert longest_hit(everything, (None, 8), keys, 4, 16) == 3
    assert longest_hit(everything - {(1, 10)}, (None, 8), keys, 4, 17) == 4
    assert longest_hit(everything - {(1, 12)}, (None, 8), keys, 4, 17) == 2
    assert longest_hit(everything - {(0, 12)}, (None, 8), keys, 4, 17) == 2
    assert longest_hit(everything - {(0, 10)}, (None, 8), keys, 4, 17) == 0


def test_branches_share_and_copy_in_every_group() -> None:
    engine = windowed_engine(40, 4, (None, 6))
    submit(engine, distinct(10, 0), 6, "a", n=3)
    engine.step()
    # Ten tokens stored: three blocks of the first group; of the second, positions 5..9 are kept.
    assert [len(t) for t in held(engine, "a")] == [3, 2]
    assert held(engine, "a") == held(engine, "a#1") == held(engine, "a#2")
    engine.step()
    copies = decisions(engine, "copy")
    assert sorted(row["group"] for row in copies) == [0, 0, 1, 1]  # all but one branch, in both groups
    steps_until_idle(engine)
    for branch, rid in enumerate(("a", "a#1", "a#2")):
        assert list(engine.request(rid).output) == expected_output(distinct(10, 0), 6, branch)


def test_equal_prompts_of_one_step_are_switched_to_one_block_in_every_group() -> None:
    engine = windowed_engine(24, 4, (None, 8))
    for rid in ("a", "b"):
        submit(engine, distinct(9, 0), 3, rid)
    engine.step()
    assert [t[:2] for t in held(engine, "a")] == [t[:2] for t in held(engine, "b")]
    freed = [(row["group"], row["request_id"]) for row in decisions(engine, "free") if row["reason"] == "dedup"]
    assert sorted(freed) == [(0, "b"), (0, "b"), (1, "b"), (1, "b")]
    steps_until_idle(engine)


def test_an_abort_in_a_prefill_gives_everything_back() -> None:
    engine = windowed_engine(16, 4, (None, 8), max_batched_tokens=8)
    rid = submit(engine, distinct(24, 0), 4)
    engine.step()
    engine.step()
    assert engine.abort(rid)
    engine.check()
    counters = engine.counters()
    assert (counters.used, counters.idle, engine.allocator.promised) == (0, 8, 0)
    assert serve(engine, distinct(24, 0)).cached_tokens == 16


def test_nothing_computed_before_a_reset_is_found_after_it() -> None:
    engine = windowed_engine(24, 4, (None, 8))
    submit(engine, distinct(13, 0), 8, "a")
    engine.step()
    assert engine.reset_prefix_cache() is ResetResult.PARTIAL
    engine.check()
    assert engine.allocator.cache.leaves_first() == engine.allocator.cache._nodes() == []  # pyright: ignore
    engine.run()
    assert engine.counters().idle == 0
    assert serve(engine, distinct(13, 0)).cached_tokens == 0
    assert engine.reset_prefix_cache() is ResetResult.DONE


def test_a_pinned_block_outlives_its_window() -> None:
    engine = windowed_engine(8, 4, (8,), max_model_len=64, prefix_caching=False)
    rid = submit(engine, distinct(8, 0), 8)
    engine.step()
    block = engine.request(rid).block_table[0]
    engine.pin(block)
    engine.run()
    engine.check()
    assert engine.block(block).state is BlockState.USED
    assert engine.block(block).owners == ()
    engine.unpin(block)
    assert engine.counters().fresh == 8


def test_what_is_dropped_waits_for_its_deferred_free() -> None:
    engine = windowed_engine(8, 4, (8,), max_model_len=64, prefix_caching=False, deferred_free_steps=1)
    submit(engine, distinct(20, 0), 2)
    engine.step()
    assert engine.counters().in_transfer == 3
    engine.step()
    engine.step()
    assert engine.counters().fresh == 8


@pytest.mark.parametrize("windows", [(None, 6), (6, None), (6,)])
def test_a_swapped_sequence_comes_back_with_what_its_windows_kept(windows: Any) -> None:
    engine = windowed_engine(
        14 if None in windows else 6, 4, windows, max_model_len=60, preemption="swap", host_blocks=20,
        prefix_caching=False, max_batched_tokens=16,
    )  # fmt: skip
    # With windows alone, only what is shorter than its window grows beyond what admission counted.
    prompts = {f"r{i}": distinct(15 if None in windows else 3, i) for i in range(3)}
    for rid, prompt in prompts.items():
        submit(engine, prompt, 20, rid)
    outs = steps_until_idle(engine)
    for rid, prompt in prompts.items():
        assert list(engine.request(rid).output) == expected_output(prompt, 20)
    assert sum(len(out.preempted) for out in outs) > 0
    moved = decisions(engine, "swap_out", "swap_in")
    assert {row["group"] for row in moved} == set(range(len(windows)))
    assert (engine.counters().host_used, engine.counters().recomputed_tokens) == (0, 0)


def test_the_effective_length_is_what_a_lone_request_can_reach() -> None:
    assert EngineConfig(num_blocks=10, block_size=4, kv_groups=(None, 8)).effective_len == 29  # 7 + 3 blocks
    assert EngineConfig(num_blocks=10, block_size=4, kv_groups=(None, None)).effective_len == 21
    assert EngineConfig(num_blocks=3, block_size=4, kv_groups=(8,), max_model_len=900).effective_len == 900
    assert EngineConfig(num_blocks=2, block_size=4, kv_groups=(8,), max_model_len=900).effective_len == 9
    whole = {"chunked_prefill": False, "max_batched_tokens": 64}
    assert EngineConfig(num_blocks=3, block_size=4, kv_groups=(8,), max_model_len=900, **whole).effective_len == 13


@pytest.mark.parametrize("windows", [(None, 8), (None, 5, 9), (8,), (3, 8), (None, None)])
@pytest.mark.parametrize("num_blocks", [3, 4, 7, 10])
def test_a_lone_request_reaches_exactly_the_effective_length(windows: Any, num_blocks: int) -> None:
    engine = windowed_engine(num_blocks, 4, windows, max_model_len=200, max_batched_tokens=7)
    limit = engine.config.effective_len
    view = serve(engine, distinct(limit - 2, 0), 100)
    assert len(view.prompt) + len(view.output) == limit
    assert view.finish_reason is (FinishReason.LENGTH if limit == 200 else FinishReason.CAPACITY)
    assert engine.counters().preemptions == 0
    with pytest.raises(RequestTooLong):
        submit(engine, distinct(limit, 1))


def test_admission_counts_the_span_of_a_window_and_not_the_whole_prompt() -> None:
    engine = windowed_engine(8, 4, (8,), max_model_len=400, max_batched_tokens=8)
    for number in range(3):
        submit(engine, distinct(100, number), 2, f"r{number}")
    engine.step()
    admitted = decisions(engine, "admitted")
    assert [row["need_blocks"] for row in admitted] == [3]  # not 25
    engine.step()
    steps_until_idle(engine)
    assert engine.counters().preemptions == 0


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"kv_groups": ()}, "expected at least one group"),
        ({"kv_groups": (1,)}, "a window >= 2 tokens"),
        ({"kv_groups": (8,)}, "give max_model_len"),
        ({"kv_groups": (None, 8), "allocator": "contiguous-max"}, "contiguous-max keeps every token"),
        ({"kv_groups": (None, 8), "num_blocks": 1}, "num_blocks is 1, 2 KV groups need a block each"),
        ({"kv_groups": (None, 8), "eviction": "belady"}, "belady is no bound"),
    ],
)
def test_groups_that_cannot_work_are_refused_in_one_line(config: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        EngineConfig(**{"num_blocks": 8, **config})
    assert "\n" not in str(caught.value)


def test_block_arithmetic_of_windows_by_counting_positions() -> None:
    for window in (2, 3, 7, 8, 9, 17):
        for size in (1, 3, 4, 16):
            seen = [{p // size for p in range(max(0, at - window + 1), at + 1)} for at in range(120)]
            assert [first_kept(at, window, size) for at in range(120)] == [min(blocks) for blocks in seen]
            assert span_blocks(window, size) == max(map(len, seen))
    assert longest_that_fits(9, (None,), 4) == 9


def _run(seeds: range) -> list[WindowedScenario]:
    scenarios: list[WindowedScenario] = []
    for seed in seeds:
        scenarios.append(WindowedScenario(seed))
        try:
            scenarios[-1].run()
        except Exception as error:
            error.add_note(f"seed {seed}: {scenarios[-1].config}")
            raise
    return scenarios


@pytest.mark.parametrize("start", range(0, 5 * SEEDS_A_TEST, SEEDS_A_TEST))
def test_every_request_ends_with_its_own_output_whatever_happens(start: int) -> None:
    """Reads stay inside the windows, hits are the longest there are, and every invariant holds after every step."""
    _run(range(start, start + SEEDS_A_TEST))


def test_the_random_lives_reach_what_they_are_to_check() -> None:
    # A generator that never preempts, shares or leaves gaps would let every fault pass.
    scenarios = _run(range(1000, 1080))
    for name in ("preemptions", "hit_tokens", "copies", "evictions", "restored_tokens", "recomputed_tokens"):
        assert sum(getattr(s.engine.counters(), name) > 0 for s in scenarios) >= 3, name
    assert sum(s.by_key.num_gaps for s in scenarios) >= 1


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_every_request_ends_with_its_own_output_in_many_lives() -> None:
    for start in range(100_000, 115_000, 100):
        _run(range(start, start + 100))
