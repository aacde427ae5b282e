"""kvtop's own server is called kvtop by those who look at it, has no null block, and is asked for what it can tell.

What is wrong with a server comes with what helps against that.
"""

from __future__ import annotations

import json
import re

import pytest
from attach_helpers import attached, folded, gauge, sample
from fake_server import Answer, FakeMetrics
from own_server import moments

from kvtop.attach import scrape
from kvtop.attach.checkup import check_events, remedy_of
from kvtop.cli.main import main
from kvtop.state.attached import capacity

PAGE = gauge("vllm:kv_cache_usage_perc", 0.5, engine="0", model_name="m") + gauge(
    "vllm:cache_config_info", 1.0, engine="0", model_name="m", num_gpu_blocks="101", block_size="16"
)  # 50 of 100 blocks: of 101 it would be no whole number


def doctor(text: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, dict[str, str]]]:
    """Exit code and checks, by what they look at, of a server that says ``text``."""
    with FakeMetrics(Answer(text.encode())) as fake:
        code = main(["doctor", fake.url, "--json"])
    return code, {check["what"]: check for check in json.loads(capsys.readouterr().out)["checks"]}


SINCE_FIRST_STEP = ("kvtop_blocks{", "kvtop_block_slots", "kvtop_shared_blocks", "kvtop_blocks_saved")


def without(start: str | tuple[str, ...]) -> str:
    return "".join(f"{line}\n" for line in moments()[1].text.splitlines() if not line.startswith(start))


def test_its_own_metric_tells_kvtop_from_vllm() -> None:
    for page, kind, blocks in ((PAGE, "vllm", 100), (PAGE + gauge("kvtop_run_info", 1, policy="fcfs"), "kvtop", 101)):
        looked = sample(1, page)
        assert (looked.kind, len(looked.engines)) == (kind, 1)
        assert [capacity(engine) for engine in attached(folded([looked])).engines] == [blocks]


def test_kvtop_is_not_told_to_take_flags_of_vllm() -> None:
    (check,) = check_events([], [], wait_s=0.1, kinds={"kvtop"})
    assert "vllm" not in check.remedy.lower()
    assert "kv-events-config" not in check.remedy
    assert "serve-api --tui" in check.remedy


def test_doctor_is_content_with_a_server_of_ours(capsys: pytest.CaptureFixture[str]) -> None:
    code, checks = doctor(moments()[1].text, capsys)
    assert code == 0
    assert {check["state"] for check in checks.values()} == {"on", "note"}
    assert checks["events"]["state"] == "note"
    for what in ("blocks by state", "why prefix matches end", "evictions", "shared blocks", "filled and empty slots"):
        assert checks[what]["state"] == "on"
    assert "simulated" in checks["metrics"]["found"]


def test_a_vllm_server_without_kv_events_still_misses_them(capsys: pytest.CaptureFixture[str]) -> None:
    code, checks = doctor(without("kvtop_"), capsys)
    assert code == 1
    assert checks["events"]["state"] == "missing"
    assert "blocks by state" not in checks


def test_before_its_first_step_nothing_is_missing_of_a_server_of_ours(capsys: pytest.CaptureFixture[str]) -> None:
    text = re.sub(r"(kvtop_steps_total\{[^}]*\}) \S+", r"\1 0", without(SINCE_FIRST_STEP))
    code, checks = doctor(text, capsys)
    assert code == 0
    for what in ("blocks by state", "filled and empty slots", "shared blocks"):
        assert (checks[what]["state"], checks[what]["found"]) == ("note", "told from the first step on")


@pytest.mark.parametrize(
    ("start", "what"),
    [("kvtop_evictions_total", "evictions"), ("kvtop_blocks{", "blocks by state"),
     ("kvtop_block_slots", "filled and empty slots")],
)  # fmt: skip
def test_what_a_server_of_ours_lacks_is_named_by_its_metric(
    start: str, what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, checks = doctor(without(start), capsys)
    assert (code, checks[what]["state"]) == (1, "missing")
    assert checks[what]["found"] == f"not reported ({start.removesuffix('{')})"


def test_where_its_prefix_cache_is_off_it_is_told_its_own_flag(capsys: pytest.CaptureFixture[str]) -> None:
    text = moments()[1].text.replace('enable_prefix_caching="True"', 'enable_prefix_caching="False"')
    code, checks = doctor(text, capsys)
    assert (code, checks["prefix caching"]["state"]) == (1, "missing")
    assert checks["prefix caching"]["remedy"].startswith("--prefix-caching")


def test_a_slow_server_is_given_more_time(capsys: pytest.CaptureFixture[str]) -> None:
    with FakeMetrics(Answer(PAGE.encode(), delay_s=30)) as fake:
        assert main(["doctor", fake.url, "--timeout", "0.3"]) == 2
    out = capsys.readouterr().out
    assert re.search(r"slow: no (whole )?answer in 0\.3 s", out)
    assert "--timeout 1.2" in out
    assert "own address and port" not in out


def test_an_answer_that_is_too_large_is_no_servers_own(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scrape, "MAX_BODY_BYTES", 1 << 20)
    with FakeMetrics(Answer(b"x 1\n" * (1 << 19))) as fake:
        assert main(["doctor", fake.url]) == 2
    out = capsys.readouterr().out
    assert "more than 1 MiB" in out
    assert "not that of a Prometheus or a gateway" in out
    assert "--timeout" not in out


@pytest.mark.parametrize(
    ("problem", "word"),
    [
        ("slow: no whole answer in 5 s", "--timeout 20"),
        ("bad response: cut off after 10 of 20 bytes", "proxy"),
        ("bad response: its encoding is gzip, which was not asked for", "proxy"),
        ("unreachable: connection refused", "is it running"),
        ("TLS: no secure connection (is it http, not https?)", "http://"),
        ("TLS: its certificate is not trusted (self-signed)", "SSL_CERT_FILE"),
        ("HTTP 401: needs --api-key, or another one", "KVTOP_API_KEY"),
        ("bad response: HTML, not Prometheus text", "own address and port"),
        ("12 metrics, but none of vLLM, SGLang or kvtop", "while it loads its model"),
        ("it has no figures: its run is failed", "its own screen and output"),
        ("HTTP 301: moved to http://slow.example/; give that one", "own address and port"),
        ("HTTP 302: moved to http://unreachable/HTTP 401; give that one", "own address and port"),
    ],
)
def test_each_problem_has_the_remedy_against_it(problem: str, word: str) -> None:
    assert word in remedy_of(problem, 5.0)
