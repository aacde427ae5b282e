"""Where a prefix match ended and why: every reason, and who evicted what from whom."""

from __future__ import annotations

from typing import Any

from why_engine import STEP, Scenario, of_kind, one, tokens

from kvtop.engine.api import SamplingParams


def missed(scenario: Scenario, name: str) -> tuple[Any, ...]:
    """(cached tokens, reason, other, steps ago) of the lookup."""
    numbers = one(scenario.why(name), "prefix").numbers
    return tuple(numbers[key] for key in ("cached_tokens", "miss_reason", "other", "evicted_steps_ago"))


def served(prompt: list[int], **config: Any) -> Scenario:
    scenario = Scenario(**config)
    scenario.submit("a", prompt, 1)
    scenario.finish()
    return scenario


def test_everything_that_may_be_cached_was() -> None:
    scenario = served(tokens(8, 1))
    scenario.submit("b", tokens(9, 1), 1)
    scenario.finish()
    assert missed(scenario, "b") == (8, "last_token", None, None)
    assert one(scenario.why("b"), "admitted").numbers["cached_tokens"] == 8
    assert one(scenario.why("b"), "admitted").numbers["shared_blocks"] == 2
    assert one(scenario.why("b"), "prefill").numbers["computed_tokens"] == 1


def test_a_prompt_without_a_full_block_has_nothing_to_find() -> None:
    assert "no full block of 4" in one(served(tokens(4, 1)).why("a"), "prefix").text


def test_never_seen_after_the_part_that_was() -> None:
    scenario = served(tokens(8, 1))
    scenario.submit("b", tokens(4, 1) + tokens(8, 2), 1)
    scenario.finish()
    assert missed(scenario, "b") == (4, "never_seen", None, None)
    assert one(scenario.why("b"), "prefix").text == (
        "prefix: 4 of 12 prompt tokens found in the cache: the next block had never been seen before"
    )


def evicting() -> Scenario:
    """Four blocks: a leaves two in the cache, b takes one in step 1 and one in step 2, a comes again in step 3."""
    scenario = served(tokens(9, 1), num_blocks=4)
    scenario.submit("b", tokens(12, 2), 2)
    scenario.finish()
    scenario.submit("again", tokens(9, 1), 1)
    scenario.finish()
    return scenario


def test_an_evicted_block_names_who_took_it_and_when() -> None:
    scenario = evicting()
    assert missed(scenario, "again") == (0, "evicted", "b", 1)
    assert "the first block had been evicted 1 step before, for b" in one(scenario.why("again"), "prefix").text


def test_the_one_who_evicted_says_whose_blocks_and_who_missed_them() -> None:
    numbers = one(evicting().why("b"), "evicted").numbers
    assert (numbers["blocks"], numbers["first_step"], numbers["last_step"]) == (2, 1, 2)
    assert numbers["owners"] == {"a": 2}
    assert numbers["missed_by"] == [{"request_id": "again", "step": 3}]


def test_a_reset_is_not_called_an_eviction() -> None:
    scenario = served(tokens(9, 1))
    scenario.engine.reset_prefix_cache()
    scenario.submit("b", tokens(9, 1), 1)
    scenario.finish()
    assert "a reset of the cache had dropped the first block" in one(scenario.why("b"), "prefix").text


def test_another_salt() -> None:
    scenario = served(tokens(9, 1))
    scenario.submit("b", tokens(9, 1), 1, extra_key={"salt": "x"})
    scenario.finish()
    assert missed(scenario, "b") == (0, "other_salt", None, None)


def test_not_yet_computed_names_who_was_at_it_and_the_block_is_shared_afterwards() -> None:
    scenario = Scenario()
    scenario.submit("a", tokens(12, 1), 2)
    scenario.submit("b", tokens(12, 1), 2)
    scenario.finish()
    assert missed(scenario, "b") == (0, "not_yet_computed", "a", None)
    assert one(scenario.why("b"), "deduplicated").numbers["blocks"] == 3
    assert not of_kind(scenario.why("a"), "deduplicated")


def test_a_prompt_whose_logprobs_are_asked_for() -> None:
    scenario = Scenario(8)
    scenario.submit("a", tokens(9, 1), 1)
    scenario.steps(1)
    scenario.engine.submit(tokens(9, 1), SamplingParams(max_tokens=1, prompt_logprobs=True), request_id="b")
    scenario.finish()
    assert missed(scenario, "b") == (0, "prompt_logprobs", None, None)
    assert "logprobs are asked for" in one(scenario.why("b"), "prefix").text


def test_caching_off() -> None:
    scenario = served(tokens(9, 1), prefix_caching=False)
    assert missed(scenario, "a") == (0, "cache_off", None, None)


def test_the_first_token_splits_into_lateness_queue_and_prefill() -> None:
    """Due at 5 ms, submitted at 20, behind one that runs until 30; three chunks of at most 4 tokens."""
    scenario = Scenario(max_num_seqs=1, max_batched_tokens=4)
    scenario.submit("a", tokens(3, 1), 3)
    scenario.steps(2)
    scenario.submit("b", tokens(10, 2), 2, arrival_ns=5_000_000)
    scenario.finish()
    lines = scenario.why("b")
    assert dict(one(lines, "first_token").numbers) == {
        "lag_ns": 15_000_000,
        "queue_ns": STEP,
        "prefill_ns": 3 * STEP,
        "ttft_ns": 55_000_000,
    }
    chunks = one(lines, "prefill").numbers["chunks"]
    assert [(c["step"], c["start"], c["count"]) for c in chunks] == [(3, 0, 4), (4, 4, 4), (5, 8, 2)]
    decode = one(lines, "decode").numbers
    assert (decode["tokens"], decode["itl_mean_ns"], decode["itl_max_ns"]) == (1, STEP, STEP)


def test_what_host_memory_had_is_told_apart() -> None:
    scenario = served(tokens(9, 1), num_blocks=4, host_cache_blocks=8)
    scenario.submit("b", tokens(9, 2), 1)  # one block is fresh beside the two of a, and one of them goes
    scenario.finish()
    for name, prompt in (("c", tokens(9, 1)), ("x", tokens(15, 3)), ("d", tokens(9, 1))):
        scenario.submit(name, prompt, 1)
        scenario.finish()
    assert one(scenario.why("c"), "prefix").text == (
        "prefix: 8 of 9 prompt tokens found in the cache, 4 of them in host memory, which is all that may be: "
        "whole blocks, and the last token is always computed"
    )
    assert one(scenario.why("c"), "prefix").numbers["host_hit_tokens"] == 4
    assert "found in the cache, all of them in host memory, which" in one(scenario.why("d"), "prefix").text
