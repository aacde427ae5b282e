"""What a preemption cost: tokens, blocks, time; the way back; and the one it was done for."""

from __future__ import annotations

from typing import Any

from why_engine import STEP, Scenario, of_kind, one, stretches, tokens


def preempting(**config: Any) -> Scenario:
    """Four blocks: a and b hold two each; in step 2 a needs a third and b loses its two. a ends with step 5."""
    scenario = Scenario(4, **config)
    scenario.submit("a", tokens(7, 1), 6)
    scenario.submit("b", tokens(7, 2), 4)
    scenario.finish()
    return scenario


def test_recompute_throws_the_tokens_away() -> None:
    lines = preempting(prefix_caching=False).why("b")
    lost = one(lines, "preempted")
    assert (lost.step, lost.numbers["other"], lost.numbers["lost_tokens"]) == (2, "a", 8)
    assert (lost.numbers["released_blocks"], lost.numbers["swapped_tokens"]) == (2, 0)
    assert stretches(lines) == [("preempting", None, 2, 1, STEP), ("no_blocks", "a", 3, 3, 3 * STEP)]
    back = one(lines, "resumed").numbers
    assert (back["away_ns"], back["away_steps"]) == (4 * STEP, 4)
    assert (back["restored_tokens"], back["recomputed_tokens"], back["from_host"]) == (0, 8, False)
    assert (back["lost_ns"], back["lost_steps"]) == (4 * STEP, 4)
    assert one(lines, "resumed").text.endswith("8 computed again in 1 chunk; lost 8 tokens and 40.0 ms")
    end = one(lines, "ended")
    assert "of which 40.0 ms lost to 1 preemption; 8 tokens computed again" in end.text
    assert (end.numbers["lost_ns"], end.numbers["lost_tokens"]) == (4 * STEP, 8)


def test_what_is_still_in_the_cache_is_restored() -> None:
    back = one(preempting().why("b"), "resumed").numbers
    assert (back["restored_tokens"], back["recomputed_tokens"]) == (4, 4)


def test_swapping_keeps_them_in_host_memory() -> None:
    lines = preempting(prefix_caching=False, preemption="swap", host_blocks=4).why("b")
    lost = one(lines, "preempted")
    assert (lost.numbers["lost_tokens"], lost.numbers["swapped_tokens"]) == (0, 8)
    assert "8 computed tokens kept in host memory, 2 blocks given back" in lost.text
    back = one(lines, "resumed").numbers
    assert (back["restored_tokens"], back["recomputed_tokens"], back["from_host"]) == (8, 0, True)
    assert back["lost_ns"] == 4 * STEP
    assert one(lines, "resumed").text.endswith("0 computed again; lost 40.0 ms")


def test_the_one_it_was_done_for_says_so() -> None:
    numbers = one(preempting(prefix_caching=False).why("a"), "displaced").numbers
    assert numbers["preempted"] == [{"request_id": "b", "step": 2, "lost_tokens": 8}]
    assert numbers["released_blocks"] == 2


def test_the_decode_is_told_in_its_two_parts_without_the_gap_between() -> None:
    first, second = of_kind(preempting(prefix_caching=False).why("b"), "decode")
    assert (first.numbers["tokens"], second.numbers["tokens"]) == (1, 2)
    assert second.numbers["itl_max_ns"] == STEP
    end = one(preempting(prefix_caching=False).why("b"), "ended").numbers
    assert (end["itl_max_ns"], end["itl_max_step"], end["output_tokens"]) == (5 * STEP, 6, 4)


def test_who_ranks_last_gives_way_itself() -> None:
    """b needs the block in step 2 and is the last in order: it is its own victim."""
    scenario = Scenario(4, prefix_caching=False)
    scenario.submit("a", tokens(6, 1), 3)
    scenario.submit("b", tokens(7, 2), 4)
    scenario.finish()
    lost = one(scenario.why("b"), "preempted")
    assert lost.numbers["other"] == "b"
    assert lost.text.startswith("gave way itself, as the last in order")
    assert not of_kind(scenario.why("a"), "displaced")


def test_a_prefill_cut_in_two_counts_new_and_repeated_tokens_apart() -> None:
    """b computes 2 + 5 + 1 of 12 prompt tokens beside a, which takes the last block; after a it computes 6 + 6."""
    scenario = Scenario(4, prefix_caching=False, max_batched_tokens=6)
    scenario.submit("a", tokens(4, 1), 9)
    scenario.submit("b", tokens(12, 2), 1)
    scenario.finish()
    lines = scenario.why("b")
    lost = one(lines, "preempted")
    assert (lost.step, lost.numbers["lost_tokens"], lost.numbers["released_blocks"]) == (3, 8, 2)
    told = [(c["step"], c["start"], c["count"]) for x in of_kind(lines, "prefill") for c in x.numbers["chunks"]]
    assert told == [(0, 0, 2), (1, 2, 5), (2, 7, 1), (10, 8, 4)]
    back = one(lines, "resumed").numbers
    assert (back["recomputed_tokens"], back["restored_tokens"], back["away_steps"]) == (8, 0, 6)
    assert (back["lost_steps"], back["lost_ns"]) == (7, 7 * STEP)
