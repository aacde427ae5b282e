"""Configuration: sizes that do not fit, names that do not exist, ties that must not be left to chance."""

from __future__ import annotations

import pytest
from engine_helpers import distinct, make_engine, serve, steps_until_idle, submit

from kvtop.engine.api import ConfigError, EngineConfig, FinishReason, RequestTooLong, SamplingParams, UnknownName
from kvtop.engine.policies.registry import queue_policies


def test_the_context_length_is_clipped_to_the_pool_and_says_so() -> None:  # N2
    engine = make_engine(4, 4, max_model_len=64)
    assert engine.config.effective_len == 17
    with pytest.raises(RequestTooLong, match=r"prompt of 17 tokens.*at most 16.*effective length 17"):
        submit(engine, distinct(17, 0))
    view = serve(engine, distinct(16, 1), m=5)
    assert len(view.output) == 1
    assert view.finish_reason is FinishReason.CAPACITY  # the pool, not the model, was the limit


@pytest.mark.parametrize("policy", sorted(queue_policies()))
def test_equal_requests_run_in_the_order_of_submission(policy: str) -> None:  # N3
    engine = make_engine(8, 4, max_num_seqs=1, policy=policy)
    for i in (3, 1, 4, 0, 2):
        submit(engine, distinct(5, i), m=2, rid=f"q{i}", arrival_ns=0)
    admitted = [rid for out in steps_until_idle(engine) for rid in out.admitted]
    assert admitted == ["q3", "q1", "q4", "q0", "q2"]


@pytest.mark.parametrize(
    ("key", "wrong", "nearest"),
    [
        ("policy", "fcsf", "fcfs"),
        ("eviction", "lur", "lru"),
        ("allocator", "page", "paged"),
        ("preemption", "recomputed", "recompute"),
        ("victim", "last_arrived", "last-arrived"),
        ("batch_policy", "decode", "decode-first"),
    ],
)
def test_an_unknown_name_is_an_error_that_lists_the_valid_ones(key: str, wrong: str, nearest: str) -> None:  # N5
    with pytest.raises(UnknownName) as caught:
        make_engine(8, 4, **{key: wrong})
    assert caught.value.nearest == nearest
    assert nearest in caught.value.valid
    message = str(caught.value)
    assert repr(wrong) in message
    assert f"did you mean {nearest!r}" in message
    assert all(name in message for name in caught.value.valid)
    assert "\n" not in message


def test_an_unknown_parameter_of_a_policy_names_the_nearest() -> None:
    with pytest.raises(UnknownName, match=r"aging_step'.*did you mean 'aging_steps'"):
        make_engine(8, 4, policy="lpm", policy_params={"aging_step": 5})


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"num_blocks": 0}, "num_blocks is 0, expected an integer >= 1"),
        ({"block_size": -4}, "block_size is -4"),
        ({"max_num_seqs": 0}, "max_num_seqs is 0"),
        ({"max_model_len": 1}, "max_model_len is 1, expected at least 2"),
        ({"allocator": "contiguous-max", "prefix_caching": True}, "prefix_caching needs the paged allocator"),
        ({"chunked_prefill": False, "max_batched_tokens": 8}, "max_batched_tokens is 8, prompts can have 32 tokens"),
        ({"deferred_free_steps": 0.5}, "deferred_free_steps is 0.5"),
    ],
)
def test_values_that_cannot_work_are_refused_with_the_numbers(values: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        EngineConfig(**{"num_blocks": 8, "block_size": 4, **values})


def test_an_unknown_config_key_names_the_nearest() -> None:
    with pytest.raises(UnknownName, match=r"'num_block'.*did you mean 'num_blocks'"):
        EngineConfig.from_mapping({"num_block": 8})
    with pytest.raises(ConfigError, match="num_blocks"):
        EngineConfig.from_mapping({"num_blocks": "eight"})


def test_without_chunks_a_prompt_is_computed_in_one_step_or_waits() -> None:
    engine = make_engine(8, 4, chunked_prefill=False, max_batched_tokens=32)
    submit(engine, distinct(20, 0), m=2, rid="a")
    submit(engine, distinct(10, 1), m=2, rid="b")
    submit(engine, distinct(5, 2), m=1, rid="c")
    outs = steps_until_idle(engine)
    prompts = [(chunk.request_id, chunk.start, chunk.count) for out in outs for chunk in out.plan if chunk.start == 0]
    assert prompts == [("a", 0, 20), ("b", 0, 10), ("c", 0, 5)]
    assert engine.counters().computed_tokens == 20 + 10 + 5 + 2


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"max_tokens": -1}, "max_tokens is -1"),
        ({"n": 0}, "n is 0"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"top_p": 0.0}, "top_p is 0.0"),
        ({"max_tokens": 3, "min_tokens": 4}, "min_tokens 4 is above max_tokens 3"),
        ({"max_tokens": 3, "forced_output": (1, 2)}, "forced_output has 2 tokens, max_tokens is 3"),
    ],
)
def test_sampling_values_out_of_range_are_refused(values: dict, message: str) -> None:
    with pytest.raises(Exception, match=message):
        SamplingParams(**values)
