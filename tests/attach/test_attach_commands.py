"""kvtop attach, doctor, once and trace convert against fake servers: exit codes, words, JSON."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from attach_helpers import count_looks_as_seconds, folded, gauge, sample, silence, stored
from fake_server import Answer, FakeMetrics, FakePublisher, recorded_messages, recorded_metrics

from kvtop.attach.address import is_address
from kvtop.attach.kv_decode import decode_batch
from kvtop.attach.kv_tracker import KvTracker
from kvtop.cli.attach import one_line
from kvtop.cli.main import main
from kvtop.engine.events import Event, RunEnded, RunStarted
from kvtop.exporter.meter import Exporter
from kvtop.results.manifest import write_manifest
from kvtop.results.recording import FRAMES_NAME, FrameWriter

WHOLE = recorded_metrics()[-1][1].encode()


@pytest.fixture(autouse=True)
def _no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KVTOP_API_KEY", raising=False)


def publishing(publisher: FakePublisher):
    """A metrics answer that makes the publisher say something each time it is looked at."""

    def answer() -> Answer:
        publisher.publish({"type": "AllBlocksCleared"})
        return Answer(WHOLE)

    return answer


def test_doctor_is_content_with_a_server_that_reports_everything(capsys: pytest.CaptureFixture[str]) -> None:
    import threading

    with FakeMetrics(Answer(WHOLE)) as fake, FakePublisher() as publisher:
        stop = threading.Event()

        def talk() -> None:
            while not stop.wait(0.05):
                publisher.publish({"type": "AllBlocksCleared"})

        thread = threading.Thread(target=talk, daemon=True)
        thread.start()
        words = ["doctor", fake.url, "--kv-events", publisher.endpoint, "--kv-replay", publisher.replay_endpoint]
        code = main(words)
        stop.set()
        thread.join(5)
    out = capsys.readouterr().out
    assert code == 0, out
    assert "MISS" not in out
    assert "vllm, SmolLM2-135M-Instruct, 1 engine" in out
    assert "110 blocks of 32 tokens" in out


def test_doctor_names_what_is_missing_and_the_flag_that_gives_it(capsys: pytest.CaptureFixture[str]) -> None:
    text = WHOLE.replace(b'enable_prefix_caching="True"', b'enable_prefix_caching="False"')
    text = b"".join(line + b"\n" for line in text.splitlines() if not line.startswith(b"vllm:kv_cache_usage_perc"))
    with FakeMetrics(Answer(text)) as fake:
        assert main(["doctor", fake.url, "--json"]) == 1
    checks = {check["what"]: check for check in json.loads(capsys.readouterr().out)["checks"]}
    assert checks["blocks in use"]["state"] == "missing"
    assert "vllm:kv_cache_usage_perc" in checks["blocks in use"]["found"]
    assert checks["prefix caching"]["remedy"] == "--enable-prefix-caching"
    assert '"enable_kv_cache_events": true' in checks["events"]["remedy"]
    assert checks["requests running"]["state"] == "on"


@pytest.mark.parametrize(
    ("answer", "word"),
    [
        (Answer(b"<html>"), "HTML, not Prometheus text"),
        (Answer(b"node_load1 1\n"), "none of vLLM, SGLang or kvtop"),
        (Answer(b"", status=401), "needs --api-key"),
    ],
)
def test_doctor_of_what_is_no_server_ends_with_2(answer: Answer, word: str, capsys: pytest.CaptureFixture[str]) -> None:
    with FakeMetrics(answer) as fake:
        assert main(["doctor", fake.url]) == 2
    assert word in capsys.readouterr().out


def test_doctor_explains_an_endpoint_that_connects_instead_of_listening(capsys: pytest.CaptureFixture[str]) -> None:
    """A server whose own endpoint is tcp://127.0.0.1:PORT calls it, as kvtop does: nobody listens."""
    with FakeMetrics(Answer(WHOLE)) as fake:
        assert main(["doctor", fake.url, "--kv-events", "tcp://127.0.0.1:1"]) == 2
    out = capsys.readouterr().out
    assert "nobody listens there" in out
    assert "vLLM connects instead of listening" in out


def test_doctor_of_an_idle_publisher_says_that_it_said_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with FakeMetrics(Answer(WHOLE)) as fake, FakePublisher(replays=False) as publisher:
        assert main(["doctor", fake.url, "--kv-events", publisher.endpoint, "--wait", "0.2"]) == 1
    assert "an idle server publishes nothing: send it a request" in capsys.readouterr().out


def test_once_of_a_server_has_every_number_with_its_truth(capsys: pytest.CaptureFixture[str]) -> None:
    with FakeMetrics(Answer(WHOLE)) as fake:
        assert main(["once", fake.url, "--json", "--interval", "0.05"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["run"]["model"] == "SmolLM2-135M-Instruct"
    assert found["numbers"]["run.finished"] == {"value": 48, "truth": "exact"}
    assert found["numbers"]["pool.shared_blocks"]["value"] is None
    assert "missing" in found["numbers"]["pool.shared_blocks"]
    (server,) = found["attached"]["servers"]
    assert (server["server"], server["kind"], server["engines"][0]["num_blocks"]) == (fake.url, "vllm", 109)


def test_once_of_nobody_fails_and_says_why_once(capsys: pytest.CaptureFixture[str]) -> None:
    why = "unreachable: connection refused"
    words = ["once", "http://127.0.0.1:1", "--interval", "0.05"]
    assert main(words) == 1
    said = capsys.readouterr().out
    assert said.count(why) == 1
    assert re.search(r"^status +no answer$", said, re.M)
    assert said.count("not reported: no answer\n") > 20
    assert main([*words, "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["status"] == "no_answer"
    assert [server["problem"] for server in found["attached"]["servers"]] == [why]
    assert why not in json.dumps(found["numbers"])
    assert found["numbers"]["queue.running"]["missing"] == "no answer"


def test_once_of_one_server_that_answers_says_what_is_wrong_with_the_other(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    count_looks_as_seconds(monkeypatch)
    with FakeMetrics(Answer(WHOLE)) as fake:
        assert main(["once", fake.url, "--interval", "0.05"]) == 0
        said = capsys.readouterr().out
        assert re.search(r"^status +running$", said, re.M)
        assert re.search(rf"^{fake.url} +vllm, answers$", said, re.M)
        assert main(["attach", fake.url, "http://127.0.0.1:1", "--interval", "0.05", "--seconds", "2"]) == 0
    assert "http://127.0.0.1:1: unreachable: connection refused" in capsys.readouterr().out


def test_a_line_says_once_that_its_figures_are_stale_or_not_of_all_servers() -> None:
    text = recorded_metrics()[-1][1]
    other = silence(1, "unreachable: gone", t_s=1, server="http://b:1")
    line = one_line(folded([sample(1, text, server="http://a:1"), other, sample(2, text, server="http://a:1")]))
    assert line.startswith("2 s, partial: 1 of 2 servers; in use")
    assert line.count("partial") == 1
    line = one_line(folded([sample(1, text), sample(2, text), silence(30, "unreachable: gone", t_s=30)]))
    assert line.startswith("30 s, stale 28 s; in use")
    assert line.count("stale") == 1


def test_a_line_says_beside_a_figure_what_is_true_of_it_alone() -> None:
    text = gauge("vllm:num_requests_running", 1, engine="0") + gauge("vllm:num_requests_running", 2, engine="1")
    text += gauge("vllm:num_requests_waiting", 3, engine="0")
    line = one_line(folded([sample(1, text)]))
    assert line.startswith("1 s; ")
    assert "; running 3; waiting 3 (partial: 1 of 2 engines); " in line
    hits = "".join(gauge(f"vllm:prefix_cache_{what}_total", n, engine="0") for what, n in (("hits", 1), ("queries", 2)))
    line = one_line(folded([sample(1, text + hits)]))
    assert line.count("partial: 1 of 2 engines") == 2
    assert line.startswith("1 s; ")


def test_a_server_of_kvtops_is_starting_while_its_model_loads(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    count_looks_as_seconds(monkeypatch)
    exporter = Exporter()
    exporter.open()
    told = "starting: its model is not loaded yet"
    with FakeMetrics(Answer(exporter.render().encode())) as fake:
        assert main(["doctor", fake.url]) == 1
        out = capsys.readouterr().out
        assert re.search(rf"\?    metrics  {told}\n +-> look again", out)
        assert "kvtop's own servers publish none" in out
        assert main(["attach", fake.url, "--seconds", "2"]) == 1
        assert f"; {fake.url}: {told}\n" in capsys.readouterr().out
        assert main(["once", fake.url]) == 1
        out = capsys.readouterr().out
        assert re.search(r"^status +connecting$", out, re.M)
        assert re.search(r"^queue.running +not reported: it is starting$", out, re.M)


def test_a_recording_of_nobody_and_one_of_events_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`once` of a recording ends as `once` of the servers did."""
    count_looks_as_seconds(monkeypatch)
    words = ["attach", "http://127.0.0.1:1", "--interval", "0.05", "--seconds", "2", "--record", str(tmp_path / "a")]
    assert main(words) == 1
    assert main(["once", str(tmp_path / "a"), "--json"]) == 1
    assert '"status": "complete"' in capsys.readouterr().out
    assert main(["once", str(observed(tmp_path / "b", [(1.0, body(stored(1, 2)))], metrics=False))]) == 0


@pytest.mark.parametrize("command", ["once", "attach", "doctor"])
def test_host_and_port_mean_the_server_in_every_command(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    count_looks_as_seconds(monkeypatch)
    more = {"once": ["--interval", "0.05"], "attach": ["--interval", "0.05", "--seconds", "2"], "doctor": []}[command]
    with FakeMetrics(Answer(WHOLE)) as fake:
        code = main([command, fake.url.removeprefix("http://"), *more])
    assert code == (1 if command == "doctor" else 0)  # it misses the events
    assert "reported" in (out := capsys.readouterr().out) or "39.6 %" in out
    assert len(fake.requests) >= 1


def test_what_once_is_given_is_a_run_that_is_there_or_an_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["once", "nosuch"]) == 2
    said = capsys.readouterr().err
    assert "nosuch: does not exist, and is no address" in said
    assert said.count("\n") == 1
    assert main(["once", "x:99999"]) == 2
    assert "'x:99999' is no address" in capsys.readouterr().err
    (tmp_path / "run:1").mkdir()
    assert main(["once", "run:1"]) == 2
    assert "run:1: has no recording in it" in capsys.readouterr().err
    for text in ("gpu1:8000", "http://gpu1"):
        assert main(["replay", text]) == 2
        assert f"kvtop attach {text} looks at a server" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        ("127.0.0.1:8000", True), ("gpu1:8000", True), ("[::1]:80", True), ("gpu1:8000/metrics", True),
        ("http://gpu1", True), ("tcp://x:1", True), ("127.0.0.1", True), ("10.0.0.7/metrics", True), ("[::1]", True),
        ("localhost", True), ("1.2.3", False), ("[x]", False), ("localhost2", False), ("results/tuesday", False),
        ("tuesday", False), ("a/b:3", False), ("C:\\runs", False), (":80", False), ("", False),
    ],
)  # fmt: skip
def test_an_address_looks_like_one(text: str, is_one: bool) -> None:
    assert is_address(text) is is_one


def test_a_server_that_never_answered_is_named_once_on_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    count_looks_as_seconds(monkeypatch)
    assert main(["attach", "http://127.0.0.1:1", "--interval", "0.05", "--seconds", "2"]) == 1
    said = capsys.readouterr()
    assert said.out.count("unreachable: connection refused") == 1
    assert said.err == "kvtop: no server has answered, and no KV event has come\n"


def test_attach_without_a_terminal_prints_lines_and_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    count_looks_as_seconds(monkeypatch)
    run = tmp_path / "run"
    with FakeMetrics(Answer(WHOLE)) as fake:
        words = ["attach", fake.url, "--interval", "0.05", "--seconds", "2", "--record", str(run)]
        assert main(words) == 0
    assert "prefix hits 39.6 %" in capsys.readouterr().out
    assert main(["once", str(run), "--json", "--step", "1"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["step"], found["numbers"]["cache.hit_tokens"]["value"]) == (1, 4800)


def test_events_alone_can_be_followed_without_metrics(capsys: pytest.CaptureFixture[str]) -> None:
    with FakePublisher() as publisher:
        publisher.publish({"type": "AllBlocksCleared"}, skip=True)
        assert main(["attach", "--kv-events", publisher.endpoint, "--seconds", "0.3"]) == 1  # it says nothing
    assert capsys.readouterr().out.strip() in ("", "no answer yet")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["attach"], "no server is given"),
        (["attach", "tcp://x:5557"], "KV events belong behind --kv-events"),
        (["attach", "x:1", "--kv-events", "tcp://*:5557"], "is where a server binds"),
        (["attach", "x:1", "--kv-replay", "tcp://y:1"], "1 --kv-replay for 0 --kv-events"),
        (["attach", "x:1", "http://x:1"], "is given twice"),
        (["attach", "x:1", "--keep-tokens"], "give --record DIR"),
        (["once", "http://x:1", "--step", "3"], "a server has none"),
    ],
)
def test_what_cannot_be_meant_is_refused(words: list[str], why: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    assert why in capsys.readouterr().err


# Recordings as workloads ------------------------------------------------------------------------------------------


def observed(path: Path, messages: list[tuple[float, bytes]], num_blocks: int = 109, *, metrics: bool = True) -> Path:
    """A recording of KV events, each message at its own time."""
    path.mkdir()
    manifest = {"executor": "attached", "clock": "real", "run_id": "x"}
    write_manifest(path, manifest)
    tracker, events = KvTracker(num_blocks), list[Event]([RunStarted(run_id="x", manifest=manifest)])
    events += [sample(1, WHOLE.decode(), t_s=0)] if metrics else []
    for seq, (t_s, body) in enumerate(messages):
        tracker.take("tcp://a:1", seq, decode_batch(body), 0.0)
        events += tracker.drain(seq + 2, int(t_s * 1e9))
    with FrameWriter(path / FRAMES_NAME) as writer:
        writer.write([*events, RunEnded(t_ns=events[-1].t_ns, status="complete")])  # type: ignore[attr-defined]
    return path


def body(*events: dict[str, object]) -> bytes:
    import msgspec

    return msgspec.msgpack.encode([0.0, list(events), 0])


def test_three_requests_by_hand_become_three_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A prompt of two blocks that answers two; one that shares the first block; a second chunk of it. Blocks of 4."""
    run = observed(
        tmp_path / "run",
        [
            (1.0, body(stored(11, 12))),
            (1.5, body(stored(13, parent=12))),
            (2.0, body(stored(14, parent=13), stored(21, 22, parent=11))),
            (2.5, body(stored(23, 24, parent=22))),
            (60.0, body(stored(15, parent=14))),  # half a minute of silence: the next turn
        ],
    )
    out = tmp_path / "out.jsonl"
    assert main(["trace", "convert", str(run), "-o", str(out)]) == 0
    rows = [json.loads(line) for line in out.read_text().splitlines()[1:]]
    assert [(row["arrival_ns"], row["prompt_tokens"], row["output_tokens"]) for row in rows] == [
        (0, 8, 8),
        (1_000_000_000, 20, 1),
        (59_000_000_000, 20, 1),
    ]
    assert [row["hash_ids"] for row in rows] == [[0, 1], [0, 4, 5, 6, 7], [0, 1, 2, 3, 8]]
    assert "prompts that were found whole in the cache are missing" in capsys.readouterr().err


def test_the_recorded_server_becomes_a_workload_that_is_served_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """48 requests with 12,112 prompt tokens were served; 47 stored blocks, with 11,072 tokens in whole ones."""
    run = observed(tmp_path / "run", [(t_s, frames[2]) for t_s, frames in recorded_messages()])
    assert main(["trace", "info", str(run), "--json"]) == 0
    info = json.loads(capsys.readouterr().out)
    assert info["format"] == "observed"
    assert info["rows"] == 47
    out = tmp_path / "runs"
    words = ["bench", "-w", str(run), "-p", "fcfs", "--executor", "null", "--num-blocks", "109", "--block-size", "32"]
    assert main([*words, "-o", str(out)]) == 0
    assert list(out.rglob("requests.parquet"))


@pytest.mark.parametrize("kv_events", [[], ["tcp://a:1"]])
def test_what_reads_a_recording_is_named_and_converting_only_with_events(
    kv_events: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = observed(tmp_path / "run", [])
    write_manifest(run, {"executor": "attached", "run_id": "x", "status": "complete", "kv_events": kv_events})
    assert main(["compare", str(run)]) == 2
    said = capsys.readouterr().err
    assert "`kvtop report`" in said
    assert ("`kvtop trace convert` read it" in said) == bool(kv_events)
    assert said.count("\n") == 1


def test_a_recording_without_events_is_no_workload(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = observed(tmp_path / "run", [])
    assert main(["trace", "info", str(run)]) == 2
    assert "recorded without --kv-events" in capsys.readouterr().err
