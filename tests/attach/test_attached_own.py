"""kvtop's own servers, attached: what only they tell is shown, and is what they show of themselves at that moment."""

from __future__ import annotations

import json
import re

import pytest
from attach_helpers import SERVER, attached, folded, gauge, sample
from attach_tui import MANIFEST, seen
from fake_server import Answer, FakeMetrics, recorded_metrics
from own_server import moments

from kvtop.cli.main import main
from kvtop.engine.events import Event, RunStarted
from kvtop.engine.types import MissReason
from kvtop.state.attached_json import servers_json, to_json
from kvtop.state.attached_numbers import read_number
from kvtop.state.attached_reading import NO_CAUSE, NO_FREE, NO_REFS, NOT_REPORTED
from kvtop.state.model import RunState
from kvtop.state.numbers import NUMBERS
from kvtop.tui.meaning import meaning

BY_LOOKUPS = "prefix lookups whose match ended for this reason / all lookups"
NAMED = {**MANIFEST, "servers": [SERVER]}
EQUAL = (
    "pool.num_blocks", "pool.used_blocks", "pool.used_share", "pool.shared_blocks", "pool.idle_blocks",
    "pool.fresh_blocks", "pool.in_transfer_blocks", "pool.withheld_blocks", "pool.token_fill", "pool.tail_waste_slots",
    "runway.reclaimable_blocks", "queue.running", "cache.hit_rate", "cache.query_tokens",
    "cache.hit_tokens", "cache.evictions", "cache.regretted_tokens", "run.preemptions", "run.recomputed_tokens",
    "run.copies", "run.finished", "run.rejected",
)  # fmt: skip
"""Numbers that mean the same of a server as of an engine of our own."""
OWN = (
    "pool.shared_blocks", "pool.idle_blocks", "pool.fresh_blocks", "pool.in_transfer_blocks", "pool.withheld_blocks",
    "pool.token_fill", "pool.tail_waste_slots", "cache.regretted_tokens", "run.recomputed_tokens", "run.copies",
    *(f"cache.missed_{reason}" for reason in MissReason),
)  # fmt: skip
"""Numbers that no other server reports in its metrics."""


def looks() -> list[Event]:
    first, last = moments()
    return [sample(1, first.text), sample(2, last.text)]


def looked() -> RunState:
    return folded([RunStarted(run_id="x", manifest=NAMED), *looks()])


@pytest.mark.parametrize("name", EQUAL)
def test_a_figure_is_the_one_the_server_shows_of_itself(name: str) -> None:
    reading = read_number(looked(), name)
    assert (reading.value, reading.truth) == (pytest.approx(moments()[1].numbers[name]), "exact")


def test_causes_of_misses_are_shares_of_the_lookups_between_two_looks() -> None:
    first, last = moments()
    ended, state = last.lookup_ends - first.lookup_ends, looked()
    assert ended.total() > 10
    for reason in MissReason:
        reading = read_number(state, f"cache.missed_{reason}")
        assert reading[:2] == (pytest.approx(ended[reason] / ended.total()), "lookups")
        formula, source = meaning(state, NUMBERS[f"cache.missed_{reason}"])
        assert formula == BY_LOOKUPS
        assert source == "lookups, kvtop_lookup_ends_total"
    one = folded([sample(1, last.text)])
    assert read_number(one, "cache.missed_evicted").missing == "two looks are needed"
    idle = folded([sample(1, last.text), sample(2, last.text)])
    assert read_number(idle, "cache.missed_evicted").missing == "no lookups in the window"


def test_the_mean_step_is_told_of_the_steps_between_two_looks() -> None:
    state = looked()
    assert read_number(state, "throughput.step_ns")[:2] == (pytest.approx(12_000_000), "estimate")
    formula, source = meaning(state, NUMBERS["throughput.step_ns"])
    assert formula == "time in steps / steps, of the last 5 s: a mean"
    assert source == "estimate, kvtop_step_part_seconds_total and kvtop_steps_total"
    last = moments()[1].text
    assert read_number(folded([sample(1, last)]), "throughput.step_ns").missing == "two looks are needed"
    idle = folded([sample(1, last), sample(2, last)])
    assert read_number(idle, "throughput.step_ns").missing == "no step in the window"
    other = folded([sample(1, recorded_metrics()[-1][1])])
    assert read_number(other, "throughput.step_ns").missing == NOT_REPORTED


def test_who_waits_is_told_by_reason() -> None:
    reading = read_number(looked(), "queue.waiting")
    assert dict(reading.by) == moments()[1].waiting
    assert reading.value == sum(moments()[1].waiting.values())


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("pool.idle_blocks", 'exact, kvtop_blocks{state="idle"}'),
        ("pool.used_blocks", 'exact, kvtop_blocks{state="used"}'),
        ("pool.used_share", "exact, vllm:kv_cache_usage_perc"),
        ("pool.num_blocks", "exact, vllm:cache_config_info"),
        ("pool.token_fill", 'exact, kvtop_block_slots{content="filled"} and kvtop_block_slots{content="empty"}'),
        ("runway.reclaimable_blocks", 'exact, kvtop_blocks{state="fresh"} and kvtop_blocks{state="idle"}'),
        ("cache.hit_rate", "exact, vllm:prefix_cache_hits_total and vllm:prefix_cache_queries_total"),
        ("latency.ttft_n", "exact, vllm:time_to_first_token_seconds"),
    ],
)
def test_a_figure_names_the_metric_it_is_from(name: str, source: str) -> None:
    assert meaning(looked(), NUMBERS[name]) == (NUMBERS[name].formula, source)


def test_evictions_say_what_the_room_was_for() -> None:
    reading = read_number(looked(), "cache.evictions")
    assert sum(count for _, count in reading.by) == reading.value
    assert {cause for cause, _ in reading.by} <= {"prefill", "decode", "forced"}
    _, source = meaning(looked(), NUMBERS["cache.evictions"])
    assert re.fullmatch(r"exact, kvtop_evictions_total; (prefill|decode) \d+(, (prefill|decode) \d+)?", source)


def test_of_other_servers_the_words_stay() -> None:
    state = folded(sample(look, text) for look, (_, text) in enumerate(recorded_metrics()[:3], 1))
    words = {
        "pool.shared_blocks": NO_REFS, "pool.withheld_blocks": NO_REFS, "pool.idle_blocks": NO_FREE,
        "pool.fresh_blocks": NO_FREE, "pool.in_transfer_blocks": NOT_REPORTED, "pool.token_fill": NOT_REPORTED,
        "pool.tail_waste_slots": NOT_REPORTED, "run.recomputed_tokens": NOT_REPORTED, "run.copies": NOT_REPORTED,
        **{f"cache.missed_{reason}": NO_CAUSE for reason in MissReason},
    }  # fmt: skip
    assert {name: read_number(state, name).missing for name in words} == words
    assert "--kv-events-config" in read_number(state, "cache.evictions").missing
    assert meaning(state, NUMBERS["pool.used_share"])[1] == (
        "exact, vllm:kv_cache_usage_perc or vllm:gpu_cache_usage_perc"
    )


def test_a_broken_series_is_named_and_the_others_count() -> None:
    text = re.sub(r'(kvtop_blocks\{[^}]*state="idle"\}) \S+', r"\1 NaN", moments()[1].text)
    state = folded([sample(1, text)])
    assert read_number(state, "pool.idle_blocks").missing == "the server says NaN"
    for name in ("pool.fresh_blocks", "pool.used_blocks"):  # used: by its share, as the sum of all states is not known
        assert read_number(state, name).value == moments()[1].numbers[name]


def test_beside_a_server_that_does_not_tell_it_a_figure_is_partial() -> None:
    other = sample(1, recorded_metrics()[-1][1], server="http://other")
    state = folded([*looks(), other])
    idle, used = read_number(state, "pool.idle_blocks"), read_number(state, "pool.used_blocks")
    assert (idle.value, idle.truth) == (moments()[1].numbers["pool.idle_blocks"], "partial: 1 of 2 engines")
    alone = read_number(folded([other]), "pool.used_blocks").value
    mine = moments()[1].numbers["pool.used_blocks"]
    assert isinstance(alone, int)
    assert isinstance(mine, int)
    assert used[:2] == (mine + alone, "exact")


def test_a_server_before_its_first_step_is_said_to_be_that() -> None:
    text = "".join(line + "\n" for line in moments()[0].text.splitlines() if not line.startswith("kvtop_block_slots"))
    assert read_number(folded([sample(1, text)]), "pool.tail_waste_slots").missing == (
        "kvtop's server tells it from its first step on"
    )


def test_blocks_that_are_withheld_are_in_neither_side_of_the_share() -> None:
    states = {"used": 30, "idle": 10, "fresh": 20, "in_transfer": 0, "withheld": 40}
    text = "".join(gauge("kvtop_blocks", count, engine="0", state=name) for name, count in states.items())
    text += gauge("vllm:cache_config_info", 1, engine="0", num_gpu_blocks="100") + gauge("kvtop_run_info", 1)
    state = folded([sample(1, text + gauge("vllm:kv_cache_usage_perc", 0.5, engine="0"))])
    names = ("pool.num_blocks", "pool.used_blocks", "pool.used_share", "runway.reclaimable_blocks")
    assert [read_number(state, name).value for name in names] == [100, 30, 0.5, 30]


def test_its_own_counters_are_told_where_others_have_less() -> None:
    """vLLM's name counts only requests that found the queue full; what is dropped is lost to all its counters."""
    text = gauge("vllm:admission_rejections_total", 1, engine="0", reason="max_num_queued_reqs")
    own = "".join(
        gauge("kvtop_requests_rejected_total", count, engine="0", error=error)
        for error, count in (("QueueFull", 1), ("RequestTooLong", 3))
    )
    own += gauge("kvtop_events_dropped_total", 7, engine="0") + gauge("kvtop_run_info", 1)
    state, other = folded([sample(1, text + own)]), folded([sample(1, text)])
    assert read_number(state, "run.rejected")[:2] == (4, "exact")
    assert read_number(state, "run.rejected").by == (("RequestTooLong", 3), ("QueueFull", 1))
    assert read_number(other, "run.rejected").value == 1
    assert read_number(state, "run.events_dropped")[:2] == (7, "exact")
    assert "--kv-events" in read_number(other, "run.events_dropped").missing


def test_json_has_what_a_figure_is_the_sum_of_and_what_each_engine_tells() -> None:
    state = looked()
    numbers = to_json(state, list(NUMBERS))
    assert numbers["queue.waiting"]["by"] == moments()[1].waiting
    assert numbers["cache.missed_evicted"]["formula"] == BY_LOOKUPS
    assert "formula" not in numbers["cache.hit_rate"]
    (engine,) = attached(state).engines
    assert engine.last.info["simulated"] == "True"
    (server,) = servers_json(state)
    (told,) = server["engines"]  # type: ignore[misc]
    assert told["simulated"] is True
    assert told["told"]["blocks"]["used"] == moments()[1].numbers["pool.used_blocks"]
    assert told["told"]["lookup_ends"] == {reason: moments()[1].lookup_ends[reason] for reason in MissReason}


def test_once_prints_the_figures_of_a_server_of_ours(capsys: pytest.CaptureFixture[str]) -> None:
    with FakeMetrics(Answer(moments()[1].text.encode())) as fake:
        assert main(["once", fake.url, "--json", "--interval", "0.05"]) == 0
    numbers = json.loads(capsys.readouterr().out)["numbers"]
    for name in EQUAL:
        assert numbers[name]["value"] == pytest.approx(moments()[1].numbers[name]), name


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 50)])
def test_the_overview_shows_them(size: tuple[int, int]) -> None:
    """Whatever is not 0 of the pool's states, waste, sharing, causes of misses and evictions."""
    text = " ".join(seen(looks(), size=size, manifest=NAMED).replace("missed: ", "").split())
    state = looked()
    assert "SIMULATED ATTACHED" in text
    for name in ("pool.used_blocks", "pool.idle_blocks", "pool.fresh_blocks", "pool.shared_blocks"):
        assert re.search(rf"\b{NUMBERS[name].title} {moments()[1].numbers[name]}\b", text), name
    waste = moments()[1].numbers["pool.tail_waste_slots"]
    assert re.search(rf"tail waste {waste:,} slots", text)
    evicted = rf"evicted {moments()[1].numbers['cache.evictions']:,}\b"
    # The smallest has not room for all, and says of how many it has none; why matches ended comes first.
    assert re.search(
        evicted if size != (80, 24) else r"never seen .* last block .*\+\d \(e\)|\+\d \(e\).* never seen", text
    )
    for reason in ("never_seen", "evicted", "last_token"):
        share = read_number(state, f"cache.missed_{reason}").value
        assert isinstance(share, float)
        assert not share or f"{100 * share:.1f} %" in text, reason


def test_what_is_wanted_again_is_told_in_sum_on_the_radix_tree() -> None:
    tokens = moments()[1].numbers["cache.regretted_tokens"]
    text = " ".join(seen(looks(), "3", size=(160, 50), manifest=NAMED).split())
    assert f"{tokens:,} tokens wanted again in all" in text


def test_e_explains_a_figure_of_a_server_of_ours() -> None:
    text = " ".join(seen(looks(), "e", size=(120, 50), manifest=NAMED).split())
    assert 'kvtop_blocks{state="idle"}' in text
