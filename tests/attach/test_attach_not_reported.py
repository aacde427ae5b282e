"""What screens say of attached servers before they answer, and of what nobody tells: never what an engine of kvtop's
own would show."""

from __future__ import annotations

import pytest
from attach_helpers import SERVER, S, attached, folded, sample, silence
from attach_tui import MANIFEST, recorded, seen
from fake_server import recorded_metrics

from kvtop.cli.attach import one_line
from kvtop.engine.events import Event, KvEvents, RunStarted, Sample
from kvtop.state.attached_numbers import read_number

NAMED = {**MANIFEST, "servers": [SERVER, "http://other"]}
LISTENING = {**NAMED, "kv_events": ["tcp://a:1"]}
DEAD: list[Event] = [silence(1, "unreachable: connection refused", t_s=1)]
EMBEDDED = (
    "embedded engine", "no pool yet", "no step yet", "no samples yet", "no requests yet", "select a request",
    "nothing is published yet", "nothing has been decided", "nobody has held", "no lookups yet", "b adds one",
    "no prefix has been looked up", "in the last 60 s", "waiting nobody", "VIRTUAL TIME",
)  # fmt: skip
FLAGS = ("--kv-events", "--kv-events-config")


@pytest.mark.parametrize("events", [[], DEAD], ids=["before any answer", "dead from the start"])
@pytest.mark.parametrize("key", "12345678")
def test_no_panel_of_an_engine_of_our_own_is_shown_whoever_answers(key: str, events: list[Event]) -> None:
    text = seen(events, key, size=(120, 40), manifest=NAMED)
    assert "ATTACHED" in text
    assert ("no answer" if events else "connecting") in text
    for words in EMBEDDED:
        assert words not in text, words


def test_a_session_is_attached_from_its_first_event_with_all_its_servers() -> None:
    state = folded([RunStarted(run_id="x", manifest=NAMED)])
    assert list(attached(state).servers) == [SERVER, "http://other"]
    assert attached(state).is_stale(0)
    assert not state.has_begun
    assert read_number(state, "queue.running").missing == "no answer yet"
    assert one_line(state) == "no answer yet"


def test_a_run_of_our_own_is_not_attached() -> None:
    assert folded([RunStarted(run_id="x", manifest={"executor": "sim"})]).attached is None


def test_the_servers_that_have_not_answered_yet_are_named() -> None:
    text = seen(DEAD, "8", size=(160, 40), manifest=NAMED)
    assert "unreachable: connection refused" in text
    assert "no answer yet" in text
    assert "ok, " not in text


def without_spaces(text: str) -> str:
    """Words of a panel that it had to wrap."""
    return "".join(text.split())


@pytest.mark.parametrize("size", [(80, 24), (160, 50)])
@pytest.mark.parametrize(("key", "times"), [("2", 1), ("3", 3)], ids=["blocks", "prefixes"])
def test_without_kv_events_each_panel_names_the_option_and_the_flag(key: str, times: int, size: tuple) -> None:
    events: list[Event] = [event for event in recorded(5) if isinstance(event, Sample)]
    text = seen(events, key, size=size, manifest=NAMED)
    assert text.count("--kv-events ") >= times
    assert text.count("--kv-events-config") >= times
    assert "nothing is published" not in text
    assert "has been wanted again" not in text


@pytest.mark.parametrize("name", ["pool.cached_blocks", "cache.evictions", "run.events_dropped"])
def test_numbers_from_events_are_missing_with_the_option_and_the_flag(name: str) -> None:
    body = next(text for _, text in recorded_metrics())
    found = read_number(folded([RunStarted(run_id="x", manifest=NAMED), sample(1, body)]), name)
    assert found.value is None
    assert all(flag in found.missing for flag in FLAGS)


def test_a_server_that_publishes_nothing_is_told_from_one_that_is_not_listened_to() -> None:
    text = seen([sample(1, "")], "3", manifest=LISTENING)
    assert without_spaces("no KV event yet") in without_spaces(text)
    assert "give kvtop" not in text


def test_an_empty_cache_that_events_tell_of_is_no_missing_report() -> None:
    heard: list[Event] = [KvEvents(step=1, t_ns=S)]
    text = seen(heard, "3", manifest=LISTENING)
    assert "no block is cached, as far as KV events tell" in text
    assert "nothing that was evicted has been wanted again" in text
    state = folded([RunStarted(run_id="x", manifest=LISTENING), *heard])
    assert read_number(state, "pool.cached_blocks").value == 0


@pytest.mark.parametrize("key", ["1", "8"])
def test_before_the_first_answer_the_header_says_one_thing(key: str) -> None:
    header = "".join(seen([], key, size=(160, 40), manifest=NAMED).splitlines()[:3])  # with a panel's title
    assert "connecting" in header
    assert "no answer" not in header
    assert "0 engines" not in header
    dead = "".join(seen(DEAD, key, size=(160, 40), manifest=NAMED).splitlines()[:3])
    assert "no answer" in dead
    assert "connecting" not in dead


@pytest.mark.parametrize("name", [
    "pool.shared_blocks", "pool.idle_blocks", "pool.token_fill", "run.copies", "cache.missed_evicted",
])  # fmt: skip
def test_of_a_server_that_never_answered_nobody_says_what_it_reports(name: str) -> None:
    for events, why in (([], "no answer yet"), (DEAD, "unreachable: connection refused")):
        state = folded([RunStarted(run_id="x", manifest={**NAMED, "servers": [SERVER]}), *events])
        assert read_number(state, name).missing == why
