"""vLLM's names, old and new, and SGLang's, under one name; engines kept apart and nothing counted twice."""

from __future__ import annotations

from attach_helpers import attached, folded, gauge, histogram, sample

from kvtop.engine.events import EngineSample
from kvtop.state.attached import added_counter, added_gauge, capacity, used_share
from kvtop.state.attached_numbers import read_number


def engines(text: str) -> list[EngineSample]:
    return sample(1, text).engines


def test_the_old_name_beside_the_new_one_is_used_once() -> None:
    text = gauge("vllm:gpu_cache_usage_perc", 0.5, engine="0") + gauge("vllm:kv_cache_usage_perc", 0.4, engine="0")
    text += gauge("vllm:gpu_prefix_cache_queries_total", 70, engine="0")
    text += gauge("vllm:prefix_cache_queries_total", 100, engine="0")
    (engine,) = engines(text)
    assert (engine.gauges["usage"], engine.counters["query_tokens"]) == (0.4, 100)
    (old,) = engines(gauge("vllm:gpu_cache_usage_perc", 0.5, model_name="m"))
    assert old.gauges["usage"] == 0.5


def test_engines_of_data_parallel_ranks_are_kept_apart_and_weighted_by_their_pools() -> None:
    shares, sizes = (0.1, 0.2, 0.3, 0.8), (101, 101, 101, 301)
    text = "".join(
        gauge("vllm:kv_cache_usage_perc", share, engine=str(n))
        + gauge("vllm:cache_config_info", 1.0, engine=str(n), num_gpu_blocks=str(size), block_size="16")
        + gauge("vllm:num_requests_running", n, engine=str(n))
        for n, (share, size) in enumerate(zip(shares, sizes, strict=True))
    )
    seen = attached(folded([sample(1, text)]))
    assert [engine.last.gauges["usage"] for engine in seen.engines] == list(shares)
    assert [capacity(engine) for engine in seen.engines] == [100, 100, 100, 300]  # without the null blocks
    assert used_share(seen) == (10 + 20 + 30 + 240) / 600
    assert added_gauge(seen, "running") == 6


def test_sglang_counts_each_rank_group_once() -> None:
    text = "".join(
        gauge("sglang:token_usage", 0.25, model_name="m", tp_rank=str(tp), dp_rank="0")
        + gauge("sglang:num_running_reqs", 3, model_name="m", tp_rank=str(tp), dp_rank="0")
        + gauge("sglang:max_total_num_tokens", 1600, model_name="m", tp_rank=str(tp), dp_rank="0")
        for tp in (0, 1)
    )
    text += gauge("sglang:prompt_tokens_total", 1000, model_name="m")  # of the front end: it has no ranks
    text += gauge("sglang:cached_tokens_total", 250, model_name="m", cache_source="device")
    text += histogram("sglang:time_to_first_token_seconds", {"0.1": 1, "+Inf": 2}, model_name="m")
    found = sample(1, text)
    assert (found.kind, len(found.engines)) == ("sglang", 1)
    state = folded([found])
    assert (added_gauge(attached(state), "running"), added_counter(attached(state), "hit_tokens")) == (3, 250)
    assert read_number(state, "cache.hit_rate")[:2] == (0.25, "exact")
    assert found.engines[0].histograms["ttft"].counts == [1, 2]


def test_a_value_that_is_no_number_is_named_and_the_others_still_count() -> None:
    for text in ("NaN", "+Inf", "1e400"):
        state = folded([sample(1, gauge("vllm:kv_cache_usage_perc", text) + gauge("vllm:num_requests_running", 2))])
        usage = read_number(state, "pool.used_share")
        assert (usage.value, usage.truth, usage.missing) == (None, "n/a", f"the server says {text}")
        assert read_number(state, "queue.running").value == 2


def test_an_absent_metric_is_not_reported_and_never_zero() -> None:
    state = folded([sample(1, gauge("vllm:num_requests_running", 0))])
    assert read_number(state, "queue.running")[:2] == (0, "exact")
    for name in ("pool.used_share", "pool.used_blocks", "run.preemptions", "cache.hit_rate", "latency.ttft_p50_ns"):
        reading = read_number(state, name)
        assert (reading.value, reading.truth) == (None, "n/a"), name
        assert reading.missing


def test_buckets_that_are_not_cumulative_are_no_histogram() -> None:
    (engine,) = engines(histogram("vllm:time_to_first_token_seconds", {"1": 5, "2": 3, "+Inf": 6}, engine="0"))
    assert "ttft" not in engine.histograms


def test_the_null_block_is_left_out_where_the_usage_shows_that_it_is() -> None:
    """6 of 109 usable blocks, as the recorded server said; a server that counts all 110 shows it by its fractions."""
    info = gauge("vllm:cache_config_info", 1.0, engine="0", num_gpu_blocks="110", block_size="32")
    for usage, size in ((6 / 109, 109), (6 / 110, 110), (0.0, 109)):
        state = folded([sample(1, info + gauge("vllm:kv_cache_usage_perc", usage, engine="0"))])
        assert capacity(attached(state).engines[0]) == size
