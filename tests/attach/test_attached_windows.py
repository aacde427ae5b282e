"""Rates, quantiles and truth labels from looks that are written by hand: a second apart unless they say otherwise."""

from __future__ import annotations

import numpy as np
import pytest
from attach_helpers import SERVER, S, attached, folded, gauge, histogram, sample, silence

from kvtop.state.attached import rate
from kvtop.state.attached_findings import gauges_stand_still, server_silent
from kvtop.state.attached_json import to_json
from kvtop.state.attached_numbers import read_number
from kvtop.state.attached_sums import merged, quantile
from kvtop.state.findings import findings
from kvtop.state.model import RunState
from kvtop.state.numbers import NUMBERS
from kvtop.state.reduce import reduce

TOKENS = "vllm:generation_tokens_total"
TTFT = "vllm:time_to_first_token_seconds"


def counts(*values: int, **labels: str) -> list[str]:
    return [gauge(TOKENS, value, **(labels or {"engine": "0"})) for value in values]


def test_a_counter_that_falls_back_is_a_restart_and_never_a_negative_rate() -> None:
    state = RunState()
    rates = []
    for step, text in enumerate(counts(1000, 1100, 5, 45), 1):
        reduce(state, sample(step, text))
        rates.append(read_number(state, "throughput.decode_tokens_s").value)
    assert rates == [None, 100.0, None, 40.0]
    engine = attached(state).engines[0]
    assert engine.num_restarts == 1
    assert [row.generation_tokens for row in attached(state).rows] == [None, 100.0, None, 40.0]


def test_a_restart_is_news() -> None:
    state = folded(sample(step, text) for step, text in enumerate(counts(1000, 5), 1))
    assert attached(state).news == [f"{SERVER}: engine 0 was restarted, its counters begin anew"]


def test_only_the_engine_that_restarted_begins_a_new_window() -> None:
    looks = [(100, 1000), (150, 1100), (200, 10), (250, 40)]
    texts = [gauge(TOKENS, a, engine="0") + gauge(TOKENS, b, engine="1") for a, b in looks]
    state = folded(sample(step, text) for step, text in enumerate(texts, 1))
    first, second = attached(state).engines
    assert (first.num_restarts, len(first.points), second.num_restarts, len(second.points)) == (0, 4, 1, 2)
    assert (rate(first, "generation_tokens", 4 * S, 5 * S), rate(second, "generation_tokens", 4 * S, 5 * S)) == (50, 30)


def test_a_new_process_with_higher_counters_is_a_restart_too() -> None:
    texts = [
        gauge("process_start_time_seconds", start) + gauge(TOKENS, n) for start, n in ((7, 10), (9, 500), (9, 600))
    ]
    state = folded(sample(step, text) for step, text in enumerate(texts, 1))
    assert attached(state).engines[0].num_restarts == 1
    assert read_number(state, "throughput.decode_tokens_s").value == 100.0


def test_a_quantile_in_the_first_bucket_is_an_upper_bound_and_in_the_last_a_lower_one() -> None:
    first = {"0.3": 0, "60": 0, "+Inf": 0}
    low, high = {"0.3": 40, "60": 40, "+Inf": 40}, {"0.3": 0, "60": 0, "+Inf": 40}
    for last, ends in ((low, (0.0, 0.3 * S)), (high, (60.0 * S, None))):
        state = folded([sample(1, histogram(TTFT, first)), sample(2, histogram(TTFT, last))])
        reading = read_number(state, "latency.ttft_p99_ns")
        assert (reading.truth, reading.lo, reading.hi) == ("bucket", *ends)
        told = to_json(state, ["latency.ttft_p99_ns"])["latency.ttft_p99_ns"]
        assert (told["value"], told["lo"], told["hi"]) == (None, *ends)


def test_engines_are_merged_by_buckets_and_not_by_means_of_quantiles() -> None:
    """95 of 100 requests of one engine take 100 ms, all of the other's 1 s: the merged p95 is that of all samples."""
    bounds = ["0.05", "0.1", "0.5", "1", "+Inf"]
    fast, slow = np.full(100, 0.1), np.full(10, 1.0)

    def cumulative(samples: np.ndarray) -> dict[str, int]:
        return {bound: int((samples <= float(bound)).sum()) for bound in bounds}

    nothing = np.array([])
    looks = [(nothing, nothing), (fast, slow)]
    texts = [histogram(TTFT, cumulative(a), engine="0") + histogram(TTFT, cumulative(b), engine="1") for a, b in looks]
    state = folded(sample(step, text) for step, text in enumerate(texts, 1))
    for q in (0.5, 0.9, 0.95, 0.99):
        found = merged(attached(state), "ttft", state.t_ns).histogram
        assert found is not None
        ends = quantile(found, q)
        true = np.quantile(np.concatenate([fast, slow]), q, method="inverted_cdf")
        assert ends is not None
        assert ends[0] < true <= (ends[1] or np.inf), q


def test_engines_with_other_buckets_are_not_merged() -> None:
    one, other = {"1": 0, "+Inf": 0}, {"2": 0, "+Inf": 0}
    text = histogram(TTFT, one, engine="0") + histogram(TTFT, other, engine="1")
    state = folded([sample(1, text), sample(2, text)])
    assert read_number(state, "latency.ttft_p50_ns").missing == "engines have different buckets"


def test_few_samples_have_no_high_percentile_but_say_how_many_they_are() -> None:
    state = folded([sample(1, histogram(TTFT, {"1": 0, "+Inf": 0})), sample(2, histogram(TTFT, {"1": 3, "+Inf": 3}))])
    assert read_number(state, "latency.ttft_n").value == 3
    assert read_number(state, "latency.ttft_p99_ns").missing == "only 3 samples in the window"
    assert read_number(state, "latency.ttft_p50_ns").hi == S


def test_what_is_shown_is_of_the_last_minute_and_not_since_the_start() -> None:
    """Latency doubles after an hour of 100 ms: a minute later nothing of the old is left in the window."""
    state = RunState()
    fast = slow = 0
    for second in range(0, 3700):
        fast, slow = (fast + 10, slow) if second < 3600 else (fast, slow + 10)
        if second < 3590 and second % 100:
            continue  # looks may be far apart
        text = histogram(TTFT, {"0.1": fast, "0.2": fast + slow, "+Inf": fast + slow})
        reduce(state, sample(second + 1, text, t_s=second))
    reading = read_number(state, "latency.ttft_p50_ns")
    assert (reading.lo, reading.hi) == (0.1 * S, 0.2 * S)
    found = merged(attached(state), "ttft", state.t_ns).histogram
    assert found is not None
    assert found.counts == [0, 600, 600]


def test_gauges_left_over_after_their_requests_are_gone_are_told_and_take_no_part_in_estimates() -> None:
    text = gauge("vllm:num_requests_running", 4) + gauge("vllm:kv_cache_usage_perc", 0.5) + gauge(TOKENS, 900)
    text += gauge("vllm:cache_config_info", 1.0, num_gpu_blocks="101", block_size="16")
    state = RunState()
    for step in range(1, 8):
        reduce(state, sample(step, text))
        assert attached(state).engines[0].stands_still == (step >= 6)
    assert read_number(state, "queue.running").truth == "still"
    assert read_number(state, "runway.ns").value is None
    assert gauges_stand_still(state) is not None
    reduce(state, sample(8, text.replace("900", "901")))
    assert not attached(state).engines[0].stands_still


def test_an_idle_server_does_not_stand_still() -> None:
    state = folded(sample(step, gauge("vllm:num_requests_running", 0) + gauge(TOKENS, 9)) for step in range(1, 20))
    assert not attached(state).engines[0].stands_still
    assert findings(state) == []


def test_old_answers_are_stale_with_their_age_and_kept() -> None:
    text = gauge("vllm:num_requests_running", 4)
    state = folded([sample(1, text), silence(2, "unreachable: connection refused", t_s=8)])
    reading = read_number(state, "queue.running")
    assert (reading.value, reading.truth) == (4, "stale 7 s")
    found = server_silent(state)
    assert found is not None
    assert found[2] == f"{SERVER}: unreachable: connection refused (last good 7 s ago)"
    reduce(state, sample(3, text, t_s=9))
    assert read_number(state, "queue.running").truth == "exact"
    assert attached(state).news == [f"{SERVER}: answers again"]


def test_a_server_that_never_answered_says_why_for_every_number() -> None:
    state = folded([silence(1, "HTTP 401: needs --api-key, or another one", t_s=1)])
    assert read_number(state, "queue.running").missing == "HTTP 401: needs --api-key, or another one"


def test_no_age_is_negative_whatever_the_moment_looked_from() -> None:
    state = folded([sample(1, gauge("vllm:num_requests_running", 4), t_s=100)])
    assert attached(state).age_ns(0) == 0
    assert read_number(state, "queue.running").truth == "exact"


def test_the_runway_is_the_slope_of_the_used_blocks() -> None:
    """100 blocks, 10 more in use each second: 60 are left at 40, which is six seconds."""
    info = gauge("vllm:cache_config_info", 1.0, num_gpu_blocks="101", block_size="16")
    state = folded(sample(n, info + gauge("vllm:kv_cache_usage_perc", n / 10)) for n in range(1, 5))
    assert read_number(state, "pool.used_blocks").value == 40
    runway = read_number(state, "runway.ns")
    assert runway.truth == "estimate"
    assert runway.value == pytest.approx(6 * S)


def test_tokens_computed_are_prompts_less_hits() -> None:
    texts = [
        gauge("vllm:prompt_tokens_total", p) + gauge("vllm:prefix_cache_hits_total", h) for p, h in ((0, 0), (900, 300))
    ]
    state = folded(sample(step, text, t_s=2 * step) for step, text in enumerate(texts, 1))
    assert read_number(state, "throughput.prefill_tokens_s")[:2] == (300.0, "estimate")


def test_every_number_of_an_attached_run_has_a_truth_or_a_reason() -> None:
    state = folded([sample(1, gauge("vllm:num_requests_running", 4))])
    for name in NUMBERS:
        reading = read_number(state, name)
        assert (reading.value is None) == (reading.truth == "n/a") == bool(reading.missing), name
