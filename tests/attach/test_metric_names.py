"""vLLM's names, old and new, and SGLang's, under one name; engines kept apart and nothing counted twice."""

from __future__ import annotations

import pytest
from attach_helpers import attached, folded, gauge, histogram, sample

from kvtop.attach.metric_names import COUNTERS, GAUGES, LABELS, spelled
from kvtop.engine.events import EngineSample
from kvtop.state.attached import block_size, capacity
from kvtop.state.attached_numbers import read_number
from kvtop.state.attached_sums import added_counter, added_gauge, used_share
from kvtop.state.numbers import NUMBERS
from kvtop.tui.meaning import meaning


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
    assert used_share(seen).value == (10 + 20 + 30 + 240) / 600
    assert added_gauge(seen, "running").value == 6


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
    assert added_gauge(attached(state), "running").value == 3
    assert added_counter(attached(state), "hit_tokens").value == 250
    assert read_number(state, "cache.hit_rate")[:2] == (0.25, "exact")
    assert found.engines[0].histograms["ttft"].counts == [1, 2]


def test_sglangs_ranks_with_attention_in_data_parallel_are_all_there() -> None:
    """There ``tp_rank`` counts on over the ranks: rank 3's lowest is 3, and each reports its own engine."""
    text = "".join(
        gauge("sglang:num_running_reqs", dp + 1, model_name="m", dp_rank=str(dp), tp_rank=str(tp), pp_rank="0")
        for dp, tp in ((0, 0), (0, 1), (1, 2), (1, 3))
    )
    text += gauge("sglang:num_running_reqs", 9, model_name="m", dp_rank="1", tp_rank="2", pp_rank="1")
    found = engines(text)
    assert [(engine.engine, engine.gauges["running"]) for engine in found] == [("0", 1), ("1", 2)]


def test_sglangs_gauges_by_priority_are_not_added_to_their_own_sum() -> None:
    text = "".join(
        gauge("sglang:num_running_reqs", value, model_name="m", tp_rank="0", priority=priority)
        for priority, value in (("", 14), ("-1", 4), ("0", 10))
    )
    text += gauge("sglang:num_queue_reqs", 2, model_name="m", priority="1")  # no sum of them is told
    text += gauge("sglang:num_queue_reqs", 3, model_name="m", priority="2")
    (engine,) = engines(text)
    assert (engine.gauges["running"], engine.gauges["waiting"]) == (14, 5)


def test_sglangs_pool_is_told_by_labels_or_since_by_gauges() -> None:
    usage = gauge("sglang:token_usage", 0.5, model_name="m")
    old = usage + gauge("sglang:cache_config_info", 1.0, page_size="64", num_pages="100")
    new = usage + gauge("sglang:page_size", 64.0, model_name="m") + gauge("sglang:num_pages", 100.0, model_name="m")
    for text in (old, new):
        seen = attached(folded([sample(1, text)]))
        assert (capacity(seen.engines[0]), block_size(seen)) == (100, 64)
    (broken,) = engines(usage + gauge("sglang:num_pages", "NaN", model_name="m"))
    assert "num_pages" not in broken.info


def test_a_gateway_of_sglangs_is_read_server_by_server() -> None:
    text = "".join(
        gauge("sglang_token_usage", share, model_name="m", tp_rank="0", worker_addr=worker)
        + gauge("sglang_num_running_reqs", 2, model_name="m", tp_rank="0", worker_addr=worker)
        for worker, share in (("grpc://a:1", 0.25), ("grpc://b:1", 0.75))
    )
    found = sample(1, text)
    assert found.kind == "sglang"
    assert [(e.engine, e.gauges["usage"]) for e in found.engines] == [("grpc://a:1", 0.25), ("grpc://b:1", 0.75)]
    assert added_gauge(attached(folded([found])), "running").value == 4


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


def test_series_of_one_metric_are_told_apart_by_its_label_and_added_up() -> None:
    text = "".join(
        gauge("kvtop_evictions_total", count, engine="0", cause=cause)
        for cause, count in (("prefill", 3), ("decode", 4))
    )
    (engine,) = engines(text)
    assert engine.counters == {"evictions": 7, "evictions/prefill": 3, "evictions/decode": 4}


def test_of_two_metrics_by_label_the_first_one_counts() -> None:
    old = gauge("vllm:num_requests_waiting_by_reason", 5, engine="0", reason="capacity")
    new = gauge("kvtop_requests_waiting", 5, engine="0", reason="no_blocks")
    assert engines(old)[0].gauges == {"waiting/capacity": 5}
    assert engines(old + new)[0].gauges == {"waiting/no_blocks": 5}


def test_a_label_whose_value_is_no_number_breaks_itself_and_the_sum() -> None:
    text = gauge("kvtop_blocks", 3, engine="0", state="used") + gauge("kvtop_blocks", "NaN", engine="0", state="idle")
    (engine,) = engines(text)
    assert (engine.gauges, engine.broken) == ({"blocks/used": 3}, {"blocks/idle": "NaN"})


def test_every_metric_by_label_is_in_a_row_of_its_own() -> None:
    """Else its label is lost, or nothing reads it."""
    tables = (GAUGES, COUNTERS)
    families = {name for table in tables for ours, names in table.items() if ours.endswith("/") for name in names}
    assert families == set(LABELS)
    assert spelled("blocks/idle", "kvtop") == 'kvtop_blocks{state="idle"}'
    assert spelled("usage", "vllm") == "vllm:kv_cache_usage_perc or vllm:gpu_cache_usage_perc"
    assert (spelled("usage", "kvtop"), spelled("tpot", "sglang")) == ("vllm:kv_cache_usage_perc", "")


def test_every_metric_of_kvtops_that_is_read_is_one_that_it_exports() -> None:
    from kvtop.exporter.metrics import METRICS

    exported = {metric.name for metric in METRICS}
    read = {name for table in (GAUGES, COUNTERS) for names in table.values() for name in names}
    assert {name for name in read if name.startswith("kvtop_")} <= exported


@pytest.mark.parametrize(
    ("says", "size"),
    [
        (gauge("sglang:cache_config_info", 1, page_size="64", num_pages="100"),
         "sglang:cache_config_info or sglang:num_pages"),
        (gauge("sglang:page_size", 64) + gauge("sglang:num_pages", 100),
         "sglang:cache_config_info or sglang:num_pages"),
        (gauge("sglang:cache_config_info", 1, page_size="64") + gauge("sglang:max_total_num_tokens", 6400),
         "sglang:max_total_num_tokens"),
    ],
)  # fmt: skip
def test_e_names_the_metrics_that_tell_sglangs_pool(says: str, size: str) -> None:
    state = folded([sample(1, gauge("sglang:token_usage", 0.25, model_name="m") + says)])
    values = {"pool.num_blocks": 100, "pool.used_blocks": 25, "runway.reclaimable_blocks": 75}
    assert {name: read_number(state, name).value for name in values} == values
    assert meaning(state, NUMBERS["pool.num_blocks"])[1] == f"exact, {size}"
    for name in ("pool.used_blocks", "runway.reclaimable_blocks"):
        assert meaning(state, NUMBERS[name])[1] == f"exact, sglang:token_usage and {size}"
