"""Figures of several engines and servers: of which of them they are, and that a part is never called the whole."""

from __future__ import annotations

import re

import pytest
from attach_helpers import SERVER, attached, folded, gauge, histogram, sample, silence
from attach_tui import MANIFEST, seen

from kvtop.engine.events import Event, RunStarted
from kvtop.state.attached_numbers import read_number
from kvtop.state.attached_sums import added_counter, added_gauge
from kvtop.state.findings import findings
from kvtop.state.model import RunState
from kvtop.state.numbers import NUMBERS

OTHER = "http://other"
BOTH = {**MANIFEST, "servers": [SERVER, OTHER]}
TTFT = "vllm:time_to_first_token_seconds"


def engine(n: int, look: int, *, leave_out: tuple[str, ...] = ()) -> str:
    """What engine ``n`` says at look number ``look``; counters grow by 10, 20 and 30 a look."""
    label, size = {"engine": str(n)}, {"num_gpu_blocks": "101", "block_size": "16"}
    says = {
        "usage": gauge("vllm:kv_cache_usage_perc", 0.1 * look, **label),
        "size": gauge("vllm:cache_config_info", 1.0, **label, **size),
        "running": gauge("vllm:num_requests_running", 2, **label),
        "prompt": gauge("vllm:prompt_tokens_total", 30 * look, **label),
        "generated": gauge("vllm:generation_tokens_total", 10 * look, **label),
        "queries": gauge("vllm:prefix_cache_queries_total", 20 * look, **label),
        "hits": gauge("vllm:prefix_cache_hits_total", 5 * look, **label),
        "preemptions": gauge("vllm:num_preemptions_total", look, **label),
        "ttft": histogram(TTFT, {"1": 20 * look, "+Inf": 20 * look}, **label),
    }
    return "".join(text for name, text in says.items() if name not in leave_out)


def looked(*leave_out: tuple[str, ...]) -> RunState:
    """Two looks at a server with an engine for each of ``leave_out``, which do not tell these."""
    return folded(
        sample(look, "".join(engine(n, look, leave_out=gone) for n, gone in enumerate(leave_out))) for look in (1, 2)
    )


SUMS = {
    "pool.num_blocks": ("size", 200), "pool.used_blocks": ("usage", 40), "pool.used_share": ("usage", 0.2),
    "runway.reclaimable_blocks": ("usage", 160), "runway.growth_blocks_s": ("usage", 20),
    "queue.running": ("running", 4), "run.preemptions": ("preemptions", 4),
    "cache.query_tokens": ("queries", 80), "cache.hit_tokens": ("hits", 20), "cache.hit_rate": ("hits", 0.25),
    "cache.recent_hit_rate": ("queries", 0.25), "throughput.decode_tokens_s": ("generated", 20),
    "throughput.prefill_tokens_s": ("hits", 50), "latency.ttft_n": ("ttft", 40), "latency.ttft_p50_ns": ("ttft", 1e9),
}  # fmt: skip
"""Number -> what an engine has to say for it, and its value over two engines."""


@pytest.mark.parametrize("name", SUMS)
def test_a_sum_without_some_engine_says_of_how_many_it_is(name: str) -> None:
    needed, value = SUMS[name]
    some = read_number(looked((), (needed,), ()), name)
    assert (some.value, some.truth) == (pytest.approx(value), "partial: 2 of 3 engines")
    every = read_number(looked((), ()), name)
    assert every.value == pytest.approx(value)
    assert every.truth in ("exact", "bucket", "estimate")


def test_a_ratio_has_both_its_sides_from_the_same_engines() -> None:
    """Of three engines one tells no hits: its lookups would make the rate of the others look worse."""
    assert read_number(looked((), ("hits",), ("queries",)), "cache.hit_rate").value == 0.25
    assert read_number(looked(("hits",), ("queries",)), "cache.hit_rate").missing


def test_a_mean_of_shares_is_no_share() -> None:
    found = read_number(looked(("size",), ("size",)), "pool.used_share")
    assert (found.value, found.missing) == (None, "the server does not report it")
    assert read_number(looked(("size",)), "pool.used_share").truth == "exact"


def test_a_runway_is_of_the_engines_whose_room_it_is() -> None:
    """One engine's growth would use up the room of both: that is no runway of anybody's."""
    texts = [engine(0, 1) + engine(1, 1, leave_out=("usage",)), engine(0, 2) + engine(1, 2)]
    state = folded(sample(step, text) for step, text in enumerate(texts, 1))
    assert read_number(state, "runway.reclaimable_blocks").truth == "exact"
    found = read_number(state, "runway.ns")
    assert (found.value, found.missing) == (None, "not all engines report their usage twice: 1 of 2 engines")


def test_a_rate_after_one_engines_restart_is_of_the_others() -> None:
    texts = [engine(0, 5) + engine(1, 5), engine(0, 6) + engine(1, 1)]
    state = folded(sample(step, text) for step, text in enumerate(texts, 1))
    found = read_number(state, "throughput.decode_tokens_s")
    assert (found.value, found.truth) == (10, "partial: 1 of 2 engines")


@pytest.mark.parametrize("name", SUMS)
def test_a_server_that_never_answered_is_in_no_sum(name: str) -> None:
    looks: list[Event] = [sample(look, engine(0, look)) for look in (1, 2)]
    for last in ([], [silence(3, "unreachable: connection refused", t_s=2, server=OTHER)]):
        state = folded([RunStarted(run_id="x", manifest=BOTH), *looks, *last])
        assert read_number(state, name).truth == "partial: 1 of 2 servers"


def test_every_number_of_a_part_of_the_servers_says_so() -> None:
    looks: list[Event] = [sample(look, engine(0, look)) for look in (1, 2)]
    state = folded([RunStarted(run_id="x", manifest=BOTH), *looks])
    for name in NUMBERS:
        found = read_number(state, name)
        assert found.value is None or found.truth == "partial: 1 of 2 servers", name


def test_what_is_old_and_of_a_part_says_both() -> None:
    events: list[Event] = [sample(1, engine(0, 1)), silence(2, "slow: no answer in 5 s", t_s=9)]
    state = folded([RunStarted(run_id="x", manifest=BOTH), *events])
    assert read_number(state, "queue.running").truth == "stale 8 s, partial: 1 of 2 servers"


def test_what_a_server_tells_once_for_all_its_engines_is_whole() -> None:
    """SGLang's counters are of its front end, which has no ranks; its gauges are of each rank."""

    def says(look: int) -> str:
        ranks = "".join(
            gauge("sglang:num_running_reqs", 2, model_name="m", dp_rank=str(n), tp_rank="0") for n in (0, 1)
        )
        counters = gauge("sglang:prompt_tokens_total", 100 * look, model_name="m")
        counters += gauge("sglang:cached_tokens_total", 25 * look, model_name="m")
        return ranks + counters + histogram("sglang:time_to_first_token_seconds", {"1": look, "+Inf": look})

    state = folded(sample(look, says(look)) for look in (1, 2))
    assert added_gauge(attached(state), "running")[:2] == ((4.0,), "")
    assert added_counter(attached(state), "query_tokens", "hit_tokens")[:2] == ((200.0, 50.0), "")
    for name in ("queue.running", "cache.hit_rate", "cache.recent_hit_rate", "latency.ttft_n"):
        assert read_number(state, name).truth == "exact", name


def test_what_is_told_once_for_all_is_put_beside_nothing_that_one_of_them_tells() -> None:
    """One rank's own hits, and the lookups of both: their ratio would be of nothing."""
    rank = {"model_name": "m", "tp_rank": "0"}
    looks: list[Event] = []
    for look in (1, 2):
        ranks = "".join(gauge("sglang:num_running_reqs", 2, **rank, dp_rank=n) for n in ("0", "1"))
        hits = gauge("sglang:cached_tokens_total", 25 * look, **rank, dp_rank="0")
        looks.append(sample(look, ranks + hits + gauge("sglang:prompt_tokens_total", 100 * look, model_name="m")))
    state = folded(looks)
    assert "query_tokens" in {name for engine in attached(state).engines for name in engine.last.whole}
    assert added_counter(attached(state), "query_tokens", "hit_tokens").values is None
    assert read_number(state, "cache.hit_rate").value is None


def test_findings_say_of_which_part_they_are() -> None:
    (found,) = findings(looked((), ("preemptions",)))
    assert (
        found.text == "1 preemption in the last minute (partial: 1 of 2 engines): the pool is too small for what runs"
    )


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 50)])
def test_a_part_is_told_beside_the_figure_at_every_size(size: tuple[int, int]) -> None:
    texts = [engine(0, look) + engine(1, look, leave_out=("running", "ttft")) for look in (1, 2)]
    text = seen([sample(step, text) for step, text in enumerate(texts, 1)], size=size)
    (row,) = [line for line in text.splitlines() if "running   " in line and "step" not in line]
    assert "partial" in row
    assert "partial: 1 of 2 engines: ttft" in text
    assert ("blocks  exact" in text) == (size[0] > 80)  # in a crowded panel it goes without saying
    assert re.search(r"\bblocks +200\b", text)


def test_the_title_tells_of_servers_that_never_answered() -> None:
    looks: list[Event] = [sample(look, engine(0, look)) for look in (1, 2)]
    text = seen(looks, size=(160, 50), manifest=BOTH)
    assert text.count("partial: 1 of 2 servers") > 5
