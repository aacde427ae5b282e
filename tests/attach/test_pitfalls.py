"""What goes wrong between a server and its figures, as seen in other monitors, and the test that holds kvtop to it.

Those that had no other place are below. ``test_the_table_names_tests_that_are_there`` reads this one.

Numbers
 1 a counter that falls: test_a_counter_that_falls_back_is_a_restart_and_never_a_negative_rate, test_a_restart_is_news
 2 one engine restarts: test_only_the_engine_that_restarted_begins_a_new_window
 3 NaN, Inf, 1e400: test_a_value_that_is_no_number_is_named_and_the_others_still_count
 4 an absent metric shown as 0: test_an_absent_metric_is_not_reported_and_never_zero
 5 old and new names at once: test_the_old_name_beside_the_new_one_is_used_once
 6 a quantile as a point: test_a_quantile_is_printed_as_a_range_and_few_samples_as_their_number
 7 the top bucket: test_a_quantile_in_the_first_bucket_is_an_upper_bound_and_in_the_last_a_lower_one
 8 quantiles averaged: test_engines_are_merged_by_buckets_and_not_by_means_of_quantiles,
   test_engines_with_other_buckets_are_not_merged
 9 the first engine taken for all: test_engines_of_data_parallel_ranks_are_kept_apart_and_weighted_by_their_pools,
   test_sglangs_ranks_with_attention_in_data_parallel_are_all_there
10 p99 of three samples: test_few_samples_have_no_high_percentile_but_say_how_many_they_are
11 gauges left over: test_gauges_left_over_after_their_requests_are_gone_are_told_and_take_no_part_in_estimates
12 a lifetime mean as of now: test_what_is_shown_is_of_the_last_minute_and_not_since_the_start
13 figures that survive a restart: test_nothing_of_the_life_before_a_restart_is_in_a_figure
14 the clock steps: test_a_wall_clock_that_steps_moves_no_figure,
   test_no_age_is_negative_whatever_the_moment_looked_from

Input
15 markup in names: test_what_a_server_calls_itself_is_shown_as_text_and_nothing_else
16 escapes in names: test_what_a_server_calls_itself_is_shown_as_text_and_nothing_else,
   test_a_recording_of_a_hostile_server_stays_readable
17 wide and combining text: test_wide_names_do_not_break_a_line
18 bodies that are none: test_a_bad_answer_is_called_what_it_is,
   test_a_server_that_goes_away_and_comes_back_is_followed_all_along
19 redirects, TLS, proxies: test_a_redirect_is_not_followed_and_takes_no_key_along,
   test_a_certificate_that_nobody_vouches_for_is_named, test_no_proxy_is_asked_for_this_machine
20 a slow server: test_a_slow_server_holds_up_nobody_and_has_one_request_in_flight,
   test_no_server_is_waited_for_when_it_ends, test_a_server_that_hangs_does_not_hold_the_terminal
21 parsing on the screen's thread: test_no_answer_is_read_on_the_thread_that_draws,
   test_lines_are_read_far_faster_than_a_look_a_second_needs
22 two encodings of KV events: test_all_encodings_of_the_same_events_are_the_same,
   test_a_salt_is_part_of_what_a_block_is_and_the_session_is_not
23 gaps and restarts: test_a_gap_is_asked_for_again_and_what_stays_lost_makes_the_tree_partial,
   test_a_publisher_that_begins_anew_takes_only_its_own_blocks_with_it
24 one hash on two ranks or tiers: test_one_hash_on_two_ranks_and_two_tiers_is_three_blocks
25 a late subscriber: test_a_late_start_has_placeholders_above_what_it_sees_and_says_how_much_hangs_together
26 work in the receive loop: test_five_thousand_events_a_second_are_followed_without_a_loss
27 an endpoint that connects: test_doctor_explains_an_endpoint_that_connects_instead_of_listening,
   test_endpoints_that_only_a_server_can_use_are_explained
28 secrets: test_no_prompt_and_no_secret_is_stored_unless_asked_for, test_no_token_of_a_prompt_is_on_any_screen
"""

from __future__ import annotations

import re
import socket
import ssl
import sys
import threading
import time
from pathlib import Path

import pytest
import trustme
from attach_helpers import SERVER, attached, folded, gauge, histogram, sample, stored, take
from attach_tui import seen
from fake_server import Answer, FakeMetrics, FakePublisher

from kvtop.attach import scrape
from kvtop.attach.address import address_of
from kvtop.attach.kv_decode import decode_batch
from kvtop.attach.kv_tracker import KvTracker
from kvtop.attach.scrape import Scraper
from kvtop.attach.session import AttachSession, AttachSpec
from kvtop.engine.events import Event, Sample
from kvtop.state.attached_json import to_json
from kvtop.state.model import RunState
from kvtop.state.numbers import NUMBERS
from kvtop.state.reduce import reduce

TESTS = Path(__file__).parents[1]
sys.path.append(str(TESTS / "tui"))
from pseudo_terminal import PseudoTerminal  # noqa: E402  # pyright: ignore[reportMissingImports]

LIMIT_S = 30.0
GOOD = b"vllm:num_requests_running 3\n"
SECRET = 31_415_926_535


def test_the_table_names_tests_that_are_there() -> None:
    rows = re.findall(r"^ ?(\d+) (.*?)(?=^ ?\d+ |^$|\Z)", __doc__ or "", flags=re.MULTILINE | re.DOTALL)
    assert [int(number) for number, _ in rows] == list(range(1, 29))
    texts = "\n".join(path.read_text() for path in TESTS.rglob("test_*.py"))
    defined = set(re.findall(r"^(?:async )?def (test_\w+)", texts, re.MULTILINE))
    for number, text in rows:
        named = set(re.findall(r"test_\w+", text))
        assert named, number
        assert named <= defined, number


def test_nothing_of_the_life_before_a_restart_is_in_a_figure() -> None:
    """After it the figures are those of a session that has seen the second life only."""

    def look(step: int, served: int) -> str:
        text = gauge("vllm:kv_cache_usage_perc", 0.1) + gauge("vllm:num_requests_running", 1 + step % 2)
        text += gauge("vllm:cache_config_info", 1.0, num_gpu_blocks="101", block_size="16")
        for name in (
            "prompt_tokens_total",
            "generation_tokens_total",
            "request_success_total",
            "num_preemptions_total",
        ):
            text += gauge(f"vllm:{name}", served)
        text += gauge("vllm:prefix_cache_queries_total", served) + gauge("vllm:prefix_cache_hits_total", served // 4)
        return text + histogram("vllm:time_to_first_token_seconds", {"0.1": served // 2, "9": served, "+Inf": served})

    before = [sample(step, look(step, 50_000 * step), t_s=step) for step in range(1, 6)]
    after = [sample(step, look(step, 10 * (step - 5)), t_s=step) for step in range(6, 12)]
    both, alone = folded([*before, *after]), folded(after)
    assert attached(both).engines[0].num_restarts == 1
    assert to_json(both, list(NUMBERS)) == to_json(alone, list(NUMBERS))


def test_a_wall_clock_that_steps_moves_no_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    """An hour back in the middle of a session: time goes on in it, and a publisher's clock is not believed."""
    shift, real = 0.0, time.time
    monkeypatch.setattr(time, "time", lambda: real() + shift)
    with FakeMetrics(Answer(GOOD)) as fake:
        session, state, times = (
            AttachSession(AttachSpec([address_of(fake.url)], interval_s=0.02)),
            RunState(),
            list[int](),
        )
        session.start()
        deadline = time.monotonic() + LIMIT_S
        while len(times) < 20:
            assert time.monotonic() < deadline
            shift = 0.0 if len(times) < 8 else -3600.0
            for event in session.poll(0.05):
                reduce(state, event)
                if isinstance(event, Sample):
                    times.append(event.t_ns)
                    assert 0 <= (attached(state).age_ns(state.t_ns) or 0) < LIMIT_S * 1e9
        session.stop()
    assert times == sorted(times)
    assert times[-1] < LIMIT_S * 1e9
    tracker = KvTracker(None)
    batch = decode_batch(b"\x92\xcb" + bytes.fromhex("41d9000000000000") + b"\x90")  # at 1,677,721,600 s
    assert batch.t_s is not None
    for seq, now_s in enumerate((batch.t_s + 0.5, batch.t_s - 3600, batch.t_s + 7200)):
        tracker.take("tcp://a:1", seq, batch, now_s)
        (stream,) = tracker.streams()
        assert stream.lag_ns == (500_000_000 if seq == 0 else None)  # not known, and never negative


def test_a_certificate_that_nobody_vouches_for_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    from kvtop.cli.main import main

    with FakeMetrics(Answer(GOOD)) as fake:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        trustme.CA().issue_cert("127.0.0.1").configure_cert(context)
        fake.server.socket = context.wrap_socket(fake.server.socket, server_side=True)
        fake.server.handle_error = lambda request, client_address: None  # the handshake that kvtop breaks off
        url = fake.url.replace("http://", "https://")
        problem = Scraper(address_of(url), api_key="s3cret", timeout_s=LIMIT_S).look(1, 0).problem
        assert re.fullmatch("TLS: its certificate is not trusted .*certificate.*", problem)
        assert fake.requests == []  # the key went nowhere
        assert main(["doctor", url]) == 2
        assert problem in capsys.readouterr().out
        plain = Scraper(address_of(fake.url), timeout_s=LIMIT_S).look(1, 0).problem
        assert plain.startswith(("bad response: no HTTP", "unreachable"))


def test_a_server_without_tls_is_not_called_unreachable() -> None:
    def refuse(server: socket.socket) -> None:
        with server.accept()[0] as peer:
            peer.recv(65_536)
            peer.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=refuse, args=(server,), daemon=True)
        thread.start()
        url = f"https://127.0.0.1:{server.getsockname()[1]}"
        problem = Scraper(address_of(url), timeout_s=LIMIT_S).look(1, 0).problem
        thread.join(LIMIT_S)
    assert problem == "TLS: no secure connection (is it http, not https?)"


def test_a_server_that_hangs_does_not_hold_the_terminal() -> None:
    """It would answer after ten minutes, and so would a session that waits for it."""
    with FakeMetrics(Answer(GOOD, delay_s=600)) as slow, FakePublisher(replays=False) as publisher:
        words = ["attach", slow.url, "--timeout", "600", "--kv-events", publisher.endpoint]
        screen = PseudoTerminal([sys.executable, "-m", "kvtop", *words])
        try:
            screen.wait_for("connecting", "ATTACHED")
            deadline = time.monotonic() + LIMIT_S
            while not slow.in_flight:
                assert time.monotonic() < deadline
                time.sleep(0.01)
            screen.press(b"q")
            began = time.monotonic()
            assert screen.wait() == 0
            assert time.monotonic() - began < LIMIT_S
        finally:
            screen.close()
        assert slow.most_in_flight == 1


def test_no_answer_is_read_on_the_thread_that_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """So a body of any size leaves no gap in its loop; what it does poll, it polls without waiting."""
    readers: set[int] = set()
    understand = scrape.understand

    def noted(series):
        readers.add(threading.get_ident())
        return understand(series)

    monkeypatch.setattr(scrape, "understand", noted)
    with FakeMetrics(Answer(GOOD)) as fake:
        session = AttachSession(AttachSpec([address_of(fake.url)], interval_s=0.02))
        session.start()
        deadline, seen_samples = time.monotonic() + LIMIT_S, 0
        while seen_samples < 5:
            assert time.monotonic() < deadline
            seen_samples += sum(isinstance(event, Sample) for event in session.poll())
            time.sleep(0.01)
        session.stop()
    assert readers
    assert threading.get_ident() not in readers


def test_no_token_of_a_prompt_is_on_any_screen() -> None:
    """KV events carry the prompts as token ids: they go to an index of keys, and to no screen."""
    tracker = KvTracker(64)
    event = stored(1, 2, 3, size=4)
    event["token_ids"] = [SECRET] * 12
    take(tracker, [b"", (0).to_bytes(8, "big"), _packed(event)])
    events: list[Event] = [sample(1, GOOD.decode()), *tracker.drain(2, 2)]
    manifest = {"executor": "attached", "clock": "virtual", "workload": SERVER, "kv_events": ["tcp://a:1"],
                "interval_ns": 1_000_000_000}  # fmt: skip
    for key in "12345678":
        text = seen(events, key, manifest=manifest)
        assert str(SECRET) not in text.replace(",", ""), key
    text = seen(events, "3", "down", "e", manifest=manifest)
    assert str(SECRET) not in text.replace(",", "")


def _packed(*events: object) -> bytes:
    import msgspec

    return msgspec.msgpack.encode([1.0, list(events), 0])
