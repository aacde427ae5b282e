"""The TUI on attached servers: what each screen may claim, and that nothing a server says gets out of its place."""

from __future__ import annotations

import asyncio
import re

import pytest
from attach_helpers import SERVER, S, attached, gauge, histogram, sample, silence, take
from attach_tui import MANIFEST, Fed, recorded, seen
from fake_server import recorded_messages, recorded_metrics

from kvtop.attach.kv_tracker import KvTracker
from kvtop.engine.events import Event, KvEvents, RunEnded
from kvtop.state.attached_reading import range_text
from kvtop.tui.app import KvtopApp


def test_the_overview_says_how_true_each_figure_is() -> None:
    text = seen(recorded(60))
    assert "ATTACHED" in text
    body = [text for t_s, text in recorded_metrics() if t_s <= 60][-1]
    line = next(line for line in body.splitlines() if line.startswith("vllm:kv_cache_usage_perc"))
    used = round(float(line.split()[-1]) * 109)
    for part in (f"{used} blocks  exact", "events", "bucket", "estimate", "n/a"):
        assert part in text, part
    assert "not reported: servers do not tell who" in text
    assert "no pool yet" not in text


def test_with_events_the_block_map_is_called_logical() -> None:
    text = seen(recorded(60), "2")
    assert "logical, from events" in text
    assert "cached (in use or not is not reported)" in text
    assert "held by nobody" not in text
    assert "nobody holds a block" not in text
    assert "order of appearance" in text
    assert "0/32" not in text  # a block that is known is full
    history = text[text.index("History") :]
    assert " stored" in history
    assert not re.search("taken by|released by|published by", history)


def test_of_the_block_map_only_what_servers_tell_is_offered() -> None:
    """Who holds a block, how many do, how often it was found and what goes next is in no metric and no event."""
    looks, orders = set[str](), set[str]()
    for times in range(6):
        text = seen(recorded(60), "2", *"g" * times, *"o" * times)
        found = re.search(r"order (.+?) {3}shows (\w+)", text)
        assert found is not None, text
        orders.add(found[1])
        looks.add(found[2])
        assert ("<2 steps old" in text) == (found[2] == "age"), text
        assert ("░ ░ ░" in text) == (found[2] == "cached"), text
        assert "nothing cached" in text
        assert not re.search("refcount|shared by|times found|fresh", text.partition("Block —")[0].partition("shows")[2])
    assert looks == {"cached", "age"}
    assert orders == {"of appearance", "prefix", "age"}


def test_the_header_says_that_nobody_answers_in_place_of_running() -> None:
    """From the start, once a look has failed, and once answers are old; then again what it was."""
    manifest = MANIFEST | {"servers": [SERVER]}
    good, failed = sample(1, gauge("vllm:num_requests_running", 1)), silence(2, "unreachable: refused", t_s=9)
    cases: list[tuple[list[Event], str]] = [
        ([], "… connecting"),
        ([failed], "× no answer"),
        ([good], "▶ running"),
        ([good, failed], "! stale"),
        ([good, failed, sample(3, gauge("vllm:num_requests_running", 1), t_s=10)], "▶ running"),
        ([good, failed, RunEnded(t_ns=10 * S, status="complete")], "✓ complete"),
    ]
    for events, word in cases:
        for size in ((120, 40), (30, 8)):  # the second has room for a line only
            text = seen(events, manifest=manifest, size=size)
            assert word in text, text
            assert ("running" in text.splitlines()[0]) == ("running" in word), text


def test_events_alone_are_an_answer_too() -> None:
    manifest = MANIFEST | {"servers": [], "kv_events": ["tcp://a:1"]}
    trouble = KvEvents(step=1, t_ns=S, troubles={"tcp://a:1": "no connection"})
    tracker = KvTracker(8)
    take(tracker, recorded_messages()[0][1])
    for events, word in (([], "connecting"), ([trouble], "no answer"), (tracker.drain(1, S), "running")):
        assert word in seen(list(events), manifest=manifest).splitlines()[0]


def test_a_server_that_is_silent_dims_its_figures_with_their_age() -> None:
    events = [*recorded(20), silence(999, "bad response: HTML, not Prometheus text", t_s=31)]
    text = seen(events)
    assert "stale 11 s" in text or "stale 12 s" in text
    assert "bad response: HTML, not Prometheus text" in text
    assert "exact" not in text


def test_pausing_stepping_and_breakpoints_are_not_offered() -> None:
    """``Fed.send`` fails on any command."""
    text = seen(recorded(20), "p", "n", "b", "N")
    assert "Stop at" not in text
    assert " p pause" not in text


def test_the_comparison_is_offered_of_a_recording_and_not_of_an_address() -> None:
    text = seen(recorded(3), "6")
    assert "kvtop trace convert DIR" in text
    assert f"-w {SERVER}" not in text


def test_a_recording_of_servers_is_played_from_its_start() -> None:
    async def look() -> None:
        app = KvtopApp(Fed(recorded(30)), hz=50.0, replay=True, speed=1.0)
        async with app.run_test(size=(80, 24)) as pilot:
            while app.timeline.live.step <= 30 or app.timeline.at_live:
                await pilot.pause(0.01)
            assert app.timeline.view.step < app.timeline.live.step

    asyncio.run(asyncio.wait_for(look(), 60))


def test_looks_can_be_stepped_through_as_steps_are() -> None:
    def check(app: KvtopApp) -> None:
        assert not app.timeline.at_live
        assert app.timeline.view.step == app.timeline.live.step - 3
        assert app.timeline.view.attached is not None
        assert attached(app.timeline.view).num_stored <= attached(app.timeline.live).num_stored

    seen(recorded(30), "left_square_bracket", "left_square_bracket", "left_square_bracket", check=check)


@pytest.mark.parametrize("size", [(80, 24), (200, 50), (60, 16), (20, 5)])
def test_every_screen_draws_at_every_size(size: tuple[int, int]) -> None:
    assert seen(recorded(40), *"12345678", size=size).strip()


NASTY = ("[/]", "[red]x", "[link=http://x]y", "\x1b]0;pwned\x07", "\x9b31m", "a\rb", "\u202eevil", "z\u200bw")


@pytest.mark.parametrize("name", NASTY)
def test_what_a_server_calls_itself_is_shown_as_text_and_nothing_else(name: str) -> None:
    text = gauge("vllm:num_requests_running", 2, engine="0", model_name=name)
    events: list[Event] = [sample(1, text), sample(2, text), silence(3, f"HTTP 302: moved to {name}", t_s=9)]
    shown = seen(events, "8")
    assert not any(c in shown for c in "\x1b\x9b\x07\r\u202e\u200b")
    if name.startswith("["):
        assert name in shown


def test_wide_names_do_not_break_a_line() -> None:
    from rich.cells import cell_len

    text = gauge("vllm:num_requests_running", 2, engine="0", model_name="模型👩‍👩‍👧🏽é")
    shown = seen([sample(1, text), sample(2, text)])
    assert all(cell_len(line) <= 120 for line in shown.splitlines())


def test_ranges_are_written_with_the_bounds_the_server_chose() -> None:
    assert range_text(0, 0.3e9) == "<=300 ms"
    assert range_text(1e9, 2.5e9) == "1-2.5 s"
    assert range_text(0.75e9, 1e9) == "0.75-1 s"
    assert range_text(60e9, None) == ">60 s"


def test_a_quantile_is_printed_as_a_range_and_few_samples_as_their_number() -> None:
    first = histogram("vllm:time_to_first_token_seconds", {"0.3": 0, "60": 0, "+Inf": 0})
    last = histogram("vllm:time_to_first_token_seconds", {"0.3": 3, "60": 3, "+Inf": 3})
    text = seen([sample(1, first), sample(2, last)])
    assert "TTFT" in text
    row = next(line for line in text.splitlines() if "TTFT" in line)
    assert "<=300ms" in row
    assert row.count("- ") + row.count("-\n") >= 1  # no p95, no p99


@pytest.mark.parametrize("width", [60, 68, 74, 80, 100, 110, 120, 200])
def test_latencies_stand_apart_at_every_width(width: int) -> None:
    """Ranges of nine characters, more than 10,000 samples; where there is no room, p95 goes, then p99."""

    def buckets(count: int) -> dict[str, int]:
        return {"0.1": 0, "0.25": count, "+Inf": count}

    names = ("time_to_first_token", "inter_token_latency", "request_queue_time")
    texts = ["".join(histogram(f"vllm:{n}_seconds", buckets(9000 * k)) for n in names) for k in (1, 2, 3)]
    events: list[Event] = [sample(look, text) for look, text in enumerate(texts, 1)]
    text = seen(events, size=(width, 30))
    rows = [line for line in text.splitlines() if "100-250ms" in line and ("TTFT" in line or "ITL" in line)]
    assert rows
    for row in rows:
        assert row.count("100-250ms") == len(re.findall(r"(?<!\S)100-250ms(?!\S)", row)) >= 1, row
        assert re.search(r"\b18\.0k(?!\S)", row), row


def test_figures_side_by_side_do_not_touch() -> None:
    for age_s in (8, 14, 140):
        text = seen([*recorded(30), silence(31, "timed out", t_s=30 + age_s)], size=(80, 24))
        assert "stale" in text
        assert not re.search(r"stale \d+ s[a-z]|stale[a-z]", text), text


@pytest.mark.parametrize("width", [60, 68, 74, 80, 100])
def test_a_figure_is_there_whole_however_narrow_and_old_it_is(width: int) -> None:
    """Its name gives way, by its middle: p50, p95 and n are told apart by their last word."""
    for keys in ("1", "5"):
        text = seen([*recorded(30), silence(31, "timed out", t_s=44)], keys, size=(width, 30))
        assert "stale" in text
        for row in text.splitlines():
            assert not re.search(r"[a-z,]… stale", row), row
            assert not re.search(r"queue time… +[\d<>]", row), row


def test_a_broken_endpoint_of_kv_events_is_a_finding() -> None:
    problem = "3 messages that are not KV events, first: no batch"
    events = [
        sample(1, gauge("vllm:num_requests_running", 1)),
        KvEvents(step=1, t_ns=S, troubles={"tcp://a:1": problem}),
    ]
    text = seen(events)
    assert f"tcp://a:1: {problem}" in text
    assert "nothing found" not in text
