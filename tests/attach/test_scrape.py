"""What a metrics endpoint may answer, and how it is called; each from a server on loopback."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress

import pytest
from fake_server import Answer, FakeMetrics, recorded_metrics

from kvtop.attach.address import address_of
from kvtop.attach.scrape import Scraper
from kvtop.engine.errors import UsageError

LIMIT_S = 60.0
GOOD = b"vllm:num_requests_running 3\n"


def look(answer: Answer, **options):
    with FakeMetrics(answer) as fake:
        return Scraper(address_of(fake.url), **options).look(1, 0)


def test_a_recorded_body_is_understood() -> None:
    found = look(Answer(recorded_metrics()[-1][1].encode()))
    assert (found.problem, found.kind, len(found.engines)) == ("", "vllm", 1)
    assert found.engines[0].counters["finished"] == 48


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (Answer(b"<!DOCTYPE html><html><body>hello</body></html>"), "bad response: HTML, not Prometheus text"),
        (Answer(b""), "bad response: empty, expected Prometheus text"),
        (Answer(GOOD + b"x 1\xff\n"), "bad response: byte 31 is not UTF-8, expected Prometheus text"),
        (Answer(GOOD + b"vllm:generation_tokens_total 12"), "bad response: cut off after 59 bytes"),
        (Answer(GOOD, length=900), "bad response: cut off after 28"),
        (Answer(b'{"status": "ok"}\n'), "bad response: no sample in it, not Prometheus text"),
        (Answer(b"node_load1 0.5\n"), "1 metric, but none of vLLM, SGLang or kvtop"),
        (Answer(b'kvtop_run_info{status="failed"} 1\n'), "it has no figures: its run is failed"),
        (Answer(b"nope", status=401), "HTTP 401: needs --api-key, or another one"),
        (Answer(b"nope", status=403), "HTTP 403: needs --api-key, or another one"),
        (Answer(b"", status=404), "HTTP 404: no metrics at this address (SGLang: start it with --enable-metrics)"),
        (Answer(b"", status=500), "HTTP 500"),
        (Answer(b"", status=302, headers={"Location": "http://elsewhere/login"}), "HTTP 302: moved to http://elsewhere/login"),
    ],
)  # fmt: skip
def test_a_bad_answer_is_called_what_it_is(answer: Answer, problem: str) -> None:
    found = look(answer)
    assert found.problem.startswith(problem)
    assert found.engines == []


def test_nobody_listening_and_no_such_host_are_said() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]  # bound here, so that nobody else listens there
        assert Scraper(address_of(f"127.0.0.1:{port}")).look(1, 0).problem == "unreachable: connection refused"


def test_what_is_no_http_is_said() -> None:
    def greet(server: socket.socket) -> None:
        with server.accept()[0] as peer:
            peer.recv(1000)
            peer.sendall(b"SSH-2.0-x\r\n\r\n")

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=greet, args=(server,), daemon=True)
        thread.start()
        found = Scraper(address_of(f"127.0.0.1:{server.getsockname()[1]}"), timeout_s=LIMIT_S).look(1, 0)
        thread.join(LIMIT_S)
    assert found.problem.startswith("bad response: no HTTP")


def test_a_server_that_keeps_silent_and_one_that_drips_are_slow() -> None:
    found = look(Answer(GOOD, delay_s=5), timeout_s=0.2)
    assert found.problem == "slow: no answer in 0.2 s"

    def drip(server: socket.socket) -> None:
        with server.accept()[0] as peer:
            peer.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
            with suppress(OSError):
                while True:
                    peer.sendall(b"x")
                    time.sleep(0.02)

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=drip, args=(server,), daemon=True)
        thread.start()
        found = Scraper(address_of(f"127.0.0.1:{server.getsockname()[1]}"), timeout_s=0.3).look(1, 0)
        thread.join(LIMIT_S)
    assert found.problem == "slow: no whole answer in 0.3 s"


def test_no_proxy_is_asked_for_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    assert look(Answer(GOOD)).problem == ""


def test_the_key_goes_to_the_server_and_nowhere_else() -> None:
    with FakeMetrics(Answer(GOOD)) as fake:
        found = Scraper(address_of(fake.url), api_key="s3cret").look(1, 0)
        assert fake.requests[0]["Authorization"] == "Bearer s3cret"
        with_user = address_of(fake.url.replace("//", "//me:pa%20ss@"))
        assert Scraper(with_user).look(1, 0).problem == ""
        assert fake.requests[1]["Authorization"] == "Basic bWU6cGEgc3M="
    assert "s3cret" not in repr(found)
    assert "me" not in with_user.shown.replace("metrics", "")


def test_a_redirect_is_not_followed_and_takes_no_key_along() -> None:
    with FakeMetrics(Answer(GOOD)) as other, FakeMetrics(Answer()) as fake:
        fake.answer = Answer(b"", status=307, headers={"Location": other.url})
        assert Scraper(address_of(fake.url), api_key="s3cret").look(1, 0).problem.startswith("HTTP 307: moved")
        assert other.requests == []


@pytest.mark.parametrize(
    ("text", "url", "shown"),
    [
        ("127.0.0.1:8000", "http://127.0.0.1:8000/metrics", "http://127.0.0.1:8000"),
        ("https://gpu1/", "https://gpu1/metrics", "https://gpu1"),
        ("http://gpu1:9/own/path?x=1", "http://gpu1:9/own/path?x=1", "http://gpu1:9/own/path"),
        ("http://u:p@[::1]:80", "http://u:p@[::1]:80/metrics", "http://[::1]:80"),
    ],
)
def test_an_address_may_be_short(text: str, url: str, shown: str) -> None:
    found = address_of(text)
    assert (found.url, found.shown) == (url, shown)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("tcp://127.0.0.1:5557", "KV events belong behind --kv-events"),
        ("ftp://x", "found ftp://"),
        ("http://", "is no address"),
        ("http://a b", "is no address"),
        ("http://x:99999", "is no address"),
        ("http://[", "is no address"),
    ],
)
def test_what_is_no_address_is_refused(text: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        address_of(text)
