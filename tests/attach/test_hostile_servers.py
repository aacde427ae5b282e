"""Servers that mean harm, or have lost their minds: each is named for what it is, in bounded time and memory."""

from __future__ import annotations

import gzip
import math
import socket
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from attach_helpers import attached, count_looks_as_seconds, folded, gauge, histogram, sample
from attach_tui import seen
from fake_server import Answer, FakeMetrics, recorded_metrics
from test_attached_report import page_of, recording

from kvtop.attach import scrape
from kvtop.attach.address import address_of
from kvtop.attach.metric_names import COUNTERS, GAUGES, HISTOGRAMS, LABELS
from kvtop.attach.names import TOO_LARGE
from kvtop.attach.scrape import Scraper, cause_of
from kvtop.attach.tokenize import NoTokens, tokens_by_server
from kvtop.cli.main import main
from kvtop.engine.events import Event
from kvtop.state.attached_numbers import read_number
from kvtop.state.attached_sums import TOO_LARGE as TOO_LARGE_TOGETHER
from kvtop.state.numbers import NUMBERS

WHOLE = recorded_metrics()[-1][1].encode()
LIMIT_S = 100.0
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n"


@contextmanager
def talking(say: Callable[[socket.socket], None]) -> Iterator[str]:
    """A server that says to each caller what ``say`` does, whatever it was asked."""
    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with suppress(OSError):
            while True:
                caller, _ = listening.accept()
                with caller, suppress(OSError):
                    caller.recv(65_536)
                    say(caller)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        thread.join(5)


def forever(*pieces: bytes, every_s: float = 0.0, before: bytes = b"") -> Callable[[socket.socket], None]:
    def say(caller: socket.socket) -> None:
        caller.sendall(before)
        while True:
            for piece in pieces:
                caller.sendall(piece)
                time.sleep(every_s)

    return say


@pytest.mark.parametrize(
    ("say", "why"),  # what drips is given up after its time, the others long before theirs
    [
        (forever(b"x", every_s=0.02), "slow"),  # a status line that never ends
        (forever(b"a", every_s=0.02, before=HEAD + b"X-Long: "), "slow"),
        (forever(b"X: y\r\n", every_s=0.02, before=HEAD), "slow"),
        (forever(b"X: y\r\n", before=HEAD), "bad response: no HTTP"),
        (forever(b"y" * 4096, before=HEAD + b"X: "), "bad response: no HTTP"),
        (forever(b"x 1\n", every_s=0.02, before=HEAD + b"\r\n"), "slow"),
        (forever(b"4\r\nx 1\n\r\n", every_s=0.02, before=HEAD + b"Transfer-Encoding: chunked\r\n\r\n"), "slow"),
        (forever(b"x 1\n" * 4096, before=HEAD + b"\r\n"), "bad response: more than 2 MiB"),
    ],
)  # fmt: skip
def test_an_answer_without_an_end_is_given_up(
    say: Callable[[socket.socket], None], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scrape, "MAX_BODY_BYTES", 2 << 20)
    with talking(say) as url:
        found = Scraper(address_of(url), timeout_s=0.3 if why == "slow" else LIMIT_S).look(1, 0)
    assert found.problem.startswith(why)


def test_a_hundred_megabytes_are_read_up_to_the_limit_only() -> None:
    sent = 0

    def say(caller: socket.socket) -> None:
        nonlocal sent
        caller.sendall(HEAD + b"Content-Length: 104857600\r\n\r\n")
        for _ in range(100):
            caller.sendall(b"vllm:x 1\n" * 116_508)
            sent += 1 << 20

    with talking(say) as url:
        tracemalloc.start()
        found = Scraper(address_of(url), timeout_s=LIMIT_S).look(1, 0)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert found.problem == "bad response: more than 64 MiB"
    assert sent < 80 << 20
    assert peak < 80 << 20


def test_a_compressed_answer_that_nobody_asked_for_is_named() -> None:
    with FakeMetrics(Answer(gzip.compress(WHOLE), headers={"Content-Encoding": "gzip"})) as fake:
        found = Scraper(address_of(fake.url)).look(1, 0)
        assert "gzip" not in fake.requests[0].get("Accept-Encoding", "identity")
    assert found.problem == "bad response: its encoding is gzip, which was not asked for"
    bomb = Answer(gzip.compress(b"x 1\n" * 5_000_000))  # and one that does not say so
    with FakeMetrics(bomb) as fake:
        assert "is not UTF-8" in Scraper(address_of(fake.url)).look(1, 0).problem


def test_a_series_told_twice_counts_once() -> None:
    text = gauge("vllm:num_requests_running", 3, engine="0", model_name="m")
    state = folded([sample(1, text * 2), sample(2, text + text.replace(" 3", " 5"))])
    (engine,) = attached(state).engines
    assert engine.points[0].sample.gauges["running"] == 3
    assert engine.last.gauges["running"] == 5  # what was told last
    names = 'engine="0",model_name="m"'
    turned = 'model_name="m",engine="0"'
    counters = f"vllm:prompt_tokens_total{{{names}}} 7\nvllm:prompt_tokens_total{{{turned}}} 7\n"
    assert sample(1, counters).engines[0].counters["prompt_tokens"] == 7


def test_a_model_name_goes_into_no_header_and_no_line_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    name = "m\\nX-Evil: 1\\r\\n\\r\\nGET /evil"  # as the exposition escapes a line break
    text = gauge("vllm:num_requests_running", 1, engine="0", model_name=name)
    with FakeMetrics(Answer(text.encode())) as fake:
        fake.on_post = Answer(b'{"tokens": [1]}')
        found = Scraper(address_of(fake.url)).look(1, 0)
        assert "\n" in found.engines[0].model
        assert tokens_by_server(address_of(fake.url), found.engines[0].model, "x", api_key=None, timeout_s=LIMIT_S) == [
            1
        ]
        assert {request["path"] for request in fake.requests} == {"/metrics", "/tokenize"}
        assert not any("X-Evil" in key for request in fake.requests for key in request)
        main(["doctor", fake.url])
    assert not any(line.startswith(("X-Evil", "GET /evil")) for line in capsys.readouterr().out.splitlines())


@pytest.mark.parametrize("words", [["doctor"], ["once", "--json"]])
def test_commands_do_not_wait_for_a_server_that_drips_its_headers(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with talking(forever(b"a", every_s=0.02, before=HEAD + b"X: ")) as url:
        assert main([words[0], url, *words[1:], "--timeout", "0.3"]) != 0
    said = capsys.readouterr()
    assert "slow" in said.out + said.err


def test_a_tokenizer_page_without_an_end_is_given_up() -> None:
    drip = forever(b"1,", every_s=0.02, before=HEAD + b'\r\n{"tokens": [')
    with talking(drip) as url, pytest.raises(NoTokens, match="slow"):
        tokens_by_server(address_of(url), "", "x", api_key=None, timeout_s=0.3)


def test_a_recording_of_a_hostile_server_stays_readable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    count_looks_as_seconds(monkeypatch)
    text = gauge("vllm:num_requests_running", 1, engine="\x1b]0;x\x07", model_name="\u202e[/]" + "m" * 5000)
    with FakeMetrics(Answer(text.encode())) as fake:
        assert (
            main(["attach", fake.url, "--record", str(tmp_path / "run"), "--seconds", "3", "--interval", "0.05"]) == 0
        )
    before = {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    page = str(tmp_path / "page.html")
    run = str(tmp_path / "run")
    assert main(["report", "--html", page, run]) == 0
    shown = Path(page).read_text(encoding="utf-8")
    assert not any(c in shown for c in "\x1b\x07\u202e")
    capsys.readouterr()
    # They read tables of requests, which nobody told.
    for words in (["compare", run], ["why", run, "r0"]):
        assert main(words) == 2
        assert "a recording of an attached server tells of no single request" in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()} == before
    assert main(["once", run, "--json"]) == 0


@pytest.mark.parametrize("key", ["s3cret\n", " s3cret\r\n", "s3c\nret", "s3cr\xe9t"])
def test_a_key_with_a_line_break_is_never_shown(
    key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The end of a file is no part of it; one that no header can carry is refused without being quoted."""
    monkeypatch.setenv("KVTOP_API_KEY", key)
    count_looks_as_seconds(monkeypatch)
    with FakeMetrics(Answer(gauge("vllm:num_requests_running", 1).encode())) as fake:
        asked = ["attach", fake.url, "--record", str(tmp_path / "run"), "--seconds", "2", "--interval", "0.05"]
        code = main(asked)
    assert code == (0 if key.strip() == "s3cret" else 2)
    said = capsys.readouterr()
    written = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    for found in (said.out.encode(), said.err.encode(), written):
        assert b"s3c" not in found


def test_the_cause_of_what_cannot_be_sent_is_not_quoted() -> None:
    assert "s3cret" not in cause_of(ValueError("Invalid header value b'Bearer s3cret'"), 1.0)


STATES = ("used", "idle", "fresh", "in_transfer")


def no_blocks(usage: str = "") -> str:
    return "".join(gauge("kvtop_blocks", 0, engine="0", state=state) for state in STATES) + usage


def survives(events: list[Event], tmp_path: Path) -> None:
    """Every number is a number or missing, and screen, JSON and report are there."""
    state = folded(events)
    for name in NUMBERS:
        value = read_number(state, name).value
        assert value is None or isinstance(value, str) or math.isfinite(value), name
    for key in "128":
        assert "ATTACHED" in seen(events, key)
    run = recording(tmp_path / "run", events)
    assert main(["once", str(run), "--json"]) == main(["once", str(run)]) == 0
    assert page_of(run)


def test_a_page_on_which_no_block_is_in_any_state_ends_nothing(tmp_path: Path) -> None:
    events: list[Event] = [sample(look, no_blocks(gauge("kvtop_run_info", 1))) for look in (1, 2)]
    assert read_number(folded(events), "pool.used_share").value is None
    survives(events, tmp_path)
    size = gauge("vllm:cache_config_info", 1, engine="0", num_gpu_blocks="100", block_size="16")
    usage = gauge("vllm:kv_cache_usage_perc", 0.25, engine="0") + gauge("kvtop_run_info", 1)
    assert read_number(folded([sample(1, no_blocks(size + usage))]), "pool.used_blocks").value == 25


def huge(*engines: str, times: int, value: str = "1e308") -> str:
    """Each metric of ``engines`` in so many series of ``value``; counters with the others."""
    text = gauge("kvtop_run_info", 1)
    for engine in engines:
        for n in map(str, range(times)):
            for name in sorted({name for table in (GAUGES, COUNTERS) for row in table.values() for name in row}):
                labels = STATES if name == "kvtop_blocks" else ("prefill",)
                if name.startswith(("vllm:", "kvtop_")):
                    for label in labels:
                        text += gauge(name, value, engine=engine, n=n, **{LABELS.get(name, "of"): label})
            for names in HISTOGRAMS.values():
                text += histogram(names[0], {"1": 0, "+Inf": value}, engine=engine, n=n)  # type: ignore[dict-item]
        text += gauge("vllm:cache_config_info", 1, engine=engine, num_gpu_blocks="100", block_size="16")
    return text


@pytest.mark.parametrize(("engines", "times"), [("0", 1), ("0", 2), ("01", 1)])
def test_figures_whose_sum_is_too_large_end_nothing(engines: str, times: int, tmp_path: Path) -> None:
    pages = [huge(*engines, times=times, value=value) for value in ("0", "1e308")]
    events: list[Event] = [sample(look, text) for look, text in enumerate(pages, 1)]
    survives(events, tmp_path)
    shared = read_number(folded(events), "pool.shared_blocks")
    assert (shared.value is not None) == (engines == "0" and times == 1)
    assert shared.missing == (
        f"the server says {TOO_LARGE}" if times > 1 else TOO_LARGE_TOGETHER if engines == "01" else ""
    )


def test_a_share_or_a_pool_that_cannot_be_ends_nothing() -> None:
    """Of vLLM the size of the pool is told from the share; pools of -1 and 1 block together are none."""
    size = gauge("vllm:cache_config_info", 1, engine="0", num_gpu_blocks="100", block_size="16")
    state = folded([sample(1, size + gauge("vllm:kv_cache_usage_perc", "1e308", engine="0"))])
    assert read_number(state, "pool.num_blocks").value in (99, 100)
    text = gauge("sglang:page_size", 1)
    for rank, tokens in (("0", -1), ("1", 1)):
        text += gauge("sglang:token_usage", 1, dp_rank=rank) + gauge(
            "sglang:max_total_num_tokens", tokens, dp_rank=rank
        )
        text += gauge("sglang:page_size", 1, dp_rank=rank)
    share = read_number(folded([sample(1, text)]), "pool.used_share")
    assert share[:2] == (1, "partial: 1 of 2 engines")
