"""A session with fake servers: it never waits for them, records what it sees, and stores nothing it was not asked."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from attach_helpers import SERVER, S, attached, folded, sample, silence, stored
from fake_server import Answer, FakeMetrics, FakePublisher, recorded_messages, recorded_metrics

from kvtop.attach import session as attach_session
from kvtop.attach.address import address_of
from kvtop.attach.kv_decode import decode_batch
from kvtop.attach.kv_listen import KvListener
from kvtop.attach.kv_tracker import KvTracker
from kvtop.attach.session import AttachSession, AttachSpec
from kvtop.cli.main import main
from kvtop.engine.errors import UsageError
from kvtop.engine.events import Event, FindPrompt, Notice, RunEnded, RunStarted, Sample, encode
from kvtop.results.files import FileError
from kvtop.results.manifest import read_manifest
from kvtop.results.recording import FrameWriter
from kvtop.run.recorded import RecordedSession
from kvtop.state.attached_numbers import read_number
from kvtop.state.model import RunState
from kvtop.state.numbers import NUMBERS
from kvtop.state.reduce import reduce

LIMIT_S = 20.0
GOOD = b"vllm:num_requests_running 3\n"
CANARY = 424_242_424_242


def follow(session: AttachSession, state: RunState, until) -> list[Event]:
    """Fold until ``until(state)``; every event that came."""
    seen: list[Event] = []
    deadline = time.monotonic() + LIMIT_S
    while not until(state):
        assert time.monotonic() < deadline, "it never came to that"
        for event in session.poll(0.02):
            seen.append(event)
            reduce(state, event)
    return seen


def wait(session: AttachSession, state: RunState) -> None:
    until = time.monotonic() + 0.1
    follow(session, state, lambda state: time.monotonic() > until)


def answers(state: RunState, count: int = 1) -> bool:
    return state.attached is not None and len(state.attached.rows) >= count


def test_a_slow_server_holds_up_nobody_and_has_one_request_in_flight() -> None:
    with FakeMetrics(Answer(GOOD, delay_s=99)) as slow, FakeMetrics(Answer(GOOD)) as fast:
        session = AttachSession(AttachSpec([address_of(slow.url), address_of(fast.url)], interval_s=0.02, timeout_s=99))
        state = RunState()
        session.start()
        session.poll()
        follow(session, state, lambda state: answers(state, 10))
        assert slow.most_in_flight == 1 == len(slow.requests)
        assert attached(state).servers[fast.url].problem == ""
        session.stop()
    assert isinstance(session.poll()[-1], RunEnded)
    assert session.ended


def test_no_server_is_waited_for_when_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Were a look that is under way waited for, it would be for as long as the session has patience."""
    monkeypatch.setattr(attach_session, "JOIN_S", 60.0)
    monkeypatch.setattr(attach_session, "RECORD_S", 60.0)
    with FakeMetrics(Answer(GOOD, delay_s=60)) as slow:
        session = AttachSession(AttachSpec([address_of(slow.url)], timeout_s=60))
        session.start()
        deadline = time.monotonic() + LIMIT_S
        while not slow.in_flight:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        began = time.monotonic()
        session.stop(60)
        assert time.monotonic() - began < 50
    assert [type(event) for event in session.poll()] == [RunStarted, RunEnded]


def test_what_was_received_before_the_end_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks that came after the only drain there was."""
    monkeypatch.setattr(attach_session, "DRAIN_S", 3600.0)
    monkeypatch.setattr(attach_session, "RECORD_S", 60.0)
    received, drained = threading.Event(), threading.Event()
    take, drain = KvTracker.take, KvListener.drain

    def draining(self: KvListener, step: int, t_ns: int) -> list[Event]:
        drained.set()
        return drain(self, step, t_ns)

    def taken(self: KvTracker, source: str, seq: int, *args: Any) -> None:
        take(self, source, seq, *args)
        if seq == 1:
            received.set()

    monkeypatch.setattr(KvTracker, "take", taken)
    monkeypatch.setattr(KvListener, "drain", draining)
    with FakePublisher() as publisher:
        publisher.publish(skip=True)
        spec = AttachSpec([], [publisher.endpoint], [publisher.replay_endpoint], record=tmp_path / "run")
        session = AttachSession(spec)
        session.start()
        assert drained.wait(LIMIT_S)
        publisher.wait_for_subscriber()
        deadline = time.monotonic() + LIMIT_S
        publisher.publish(stored(1, 2, 3))
        while not received.is_set():  # it may have listened too late for the first one
            assert time.monotonic() < deadline
            session.poll(0.05)
        session.stop(60)
    assert isinstance(session.poll()[-1], RunEnded)  # who polls later misses nothing
    state = folded(replayed(tmp_path / "run"))
    assert state.status == "complete"
    assert read_number(state, "pool.cached_blocks").value == 3
    assert not list((tmp_path / "run").glob("*.tmp*"))


class Told:
    """The session's queue, which tells when the end of the run is put into it."""

    def __init__(self, queue: Any) -> None:
        self.queue, self.ended = queue, threading.Event()

    def put(self, event: Event) -> None:
        self.queue.put(event)
        if isinstance(event, RunEnded):
            self.ended.set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.queue, name)


def test_the_end_is_not_recorded_before_what_a_slow_listener_still_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its last look takes longer than a session without a recording would wait for it: for as long as it takes until
    the end has been told, or half a second."""
    monkeypatch.setattr(attach_session, "JOIN_S", 0.0)
    monkeypatch.setattr(attach_session, "RECORD_S", 60.0)
    with FakePublisher() as publisher:
        publisher.publish(stored(1, 2, 3), skip=True)
        session = AttachSession(AttachSpec([], [publisher.endpoint], [""], record=tmp_path / "run"))
        told = Told(session._queue)
        monkeypatch.setattr(session, "_queue", told)
        drain, took = KvListener.drain, threading.Event()

        def last_drain(self: KvListener, step: int, t_ns: int) -> list[Event]:
            if not session._stop.is_set():
                return []
            told.ended.wait(0.5)
            took.set()
            self.tracker.take(publisher.endpoint, 0, decode_batch(publisher.kept[0][1]), 0.0)
            return drain(self, step, t_ns)

        monkeypatch.setattr(KvListener, "drain", last_drain)
        session.start()
        session.stop(60)
        assert took.wait(LIMIT_S)
    assert read_number(folded(replayed(tmp_path / "run")), "pool.cached_blocks").value == 3


def test_a_disk_that_takes_its_time_is_not_waited_for_while_the_session_is_polled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The screen polls it: it would stand still. What was handed over meanwhile is in the recording all the same."""
    may_write, write = threading.Event(), FrameWriter.write

    def slowly(self: FrameWriter, events: Sequence[Event]) -> None:
        assert may_write.wait(LIMIT_S), "somebody waits for the disk"
        write(self, events)

    monkeypatch.setattr(FrameWriter, "write", slowly)
    with FakeMetrics(Answer(GOOD)) as fake:
        spec = AttachSpec([address_of(fake.url)], interval_s=0.01, record=tmp_path / "run")
        session, state = AttachSession(spec), RunState()
        session.start()
        follow(session, state, lambda state: answers(state, 10))
        assert not may_write.is_set()
        may_write.set()
        session.stop()
    last = session.poll()
    again = folded(replayed(tmp_path / "run"))
    assert isinstance(last[-1], RunEnded)
    assert len(attached(again).rows) >= 10
    assert again.status == "complete"


def test_a_disk_that_refuses_ends_the_recording_and_says_so_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(self: FrameWriter, events: Sequence[Event]) -> None:
        raise FileError("disk full")

    monkeypatch.setattr(FrameWriter, "write", refuse)
    with FakeMetrics(Answer(GOOD)) as fake:
        spec = AttachSpec([address_of(fake.url)], interval_s=0.01, record=tmp_path / "run")
        session, state = AttachSession(spec), RunState()
        session.start()
        seen = follow(session, state, lambda state: state.notice == "disk full")
        seen += follow(session, state, lambda state: answers(state, 10))  # the looking goes on
        session.stop()
        assert sum(isinstance(event, Notice) for event in [*seen, *session.poll()]) == 1
        monkeypatch.setattr(FrameWriter, "write", lambda self, events: None)  # it is full when all of it is to be kept
        monkeypatch.setattr(FrameWriter, "finish", lambda self: refuse(self, []))
        words = ["attach", fake.url, "--interval", "0.05", "--seconds", "0.3", "--record", str(tmp_path / "late")]
        assert main(words) == 1
    assert capsys.readouterr().err == "kvtop: disk full\n"


def test_a_look_that_failed_is_a_look() -> None:
    """Whoever waits for the first word of a server is told that there is none."""
    manifest = {"executor": "attached", "servers": [SERVER], "interval_ns": S}
    begun = RunStarted(run_id="x", manifest=manifest)
    assert not attached(folded([begun])).has_looked
    assert attached(folded([begun, silence(1, "unreachable", t_s=1)])).has_looked
    assert attached(folded([begun, sample(1, GOOD.decode())])).has_looked


def test_threads_that_are_done_are_not_kept() -> None:
    session = AttachSession(AttachSpec([address_of("127.0.0.1:1")]))
    for _ in range(20):
        session.send(FindPrompt(text="x"))
    session.stop()
    deadline = time.monotonic() + LIMIT_S
    while any(thread.name == "kvtop-attach" for thread in threading.enumerate()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    gc.collect()
    assert not [one for one in gc.get_objects() if type(one) is threading.Thread and one.name == "kvtop-attach"]


def test_a_server_that_goes_away_and_comes_back_is_followed_all_along() -> None:
    with FakeMetrics(Answer(GOOD)) as fake:
        session, state = AttachSession(AttachSpec([address_of(fake.url)], interval_s=0.02, timeout_s=1)), RunState()
        session.start()
        follow(session, state, answers)
        fake.answer = Answer(b"<html>", status=200)
        follow(session, state, lambda state: attached(state).servers[fake.url].problem.startswith("bad response: HTML"))
        assert read_number(state, "queue.running").value == 3  # what was last known, still there
        fake.answer = Answer(GOOD)
        follow(session, state, lambda state: not attached(state).servers[fake.url].problem)
        session.stop()


def test_the_recorded_server_ends_in_the_recorded_facts() -> None:
    """80 looks and 71 messages through HTTP and ZeroMQ; the figures are those of the recording's own description."""
    bodies = [text.encode() for _, text in recorded_metrics()]
    with FakePublisher() as publisher:
        for _, frames in recorded_messages():  # before kvtop listens: the replay endpoint has them
            publisher.publish_body(frames[2], skip=True)
        with FakeMetrics(lambda: Answer(bodies.pop(0) if len(bodies) > 1 else bodies[0])) as fake:
            spec = AttachSpec(
                [address_of(fake.url)], [publisher.endpoint], [publisher.replay_endpoint], interval_s=0.01
            )
            session, state = AttachSession(spec), RunState()
            session.start()
            follow(session, state, lambda state: answers(state, 81))
            follow(session, state, lambda state: bool(attached(state).streams))  # though nothing more is published
            session.stop()
    values = {name: read_number(state, name).value for name in NUMBERS}
    assert (values["run.finished"], values["cache.query_tokens"], values["cache.hit_tokens"]) == (48, 12_112, 4_800)
    assert (values["run.preemptions"], values["pool.num_blocks"], values["pool.used_blocks"]) == (0, 109, 0)
    assert sum(engine.last.counters["generation_tokens"] for engine in attached(state).engines) == 1_335
    assert values["pool.cached_blocks"] == 103
    assert (attached(state).num_stored, attached(state).num_removed) == (0, 0)  # all of it before kvtop listened
    assert attached(state).partial == ""
    assert (state.manifest["model"], state.manifest["block_size_tokens"]) == ("SmolLM2-135M-Instruct", 32)


def test_two_of_the_recorded_looks_worked_out_by_hand() -> None:
    """Looks 12 and 18: 65 of 109 blocks in use; 2,862 then 3,543 prompt tokens, 25 then 177 generated, in 6.1937 s."""
    rows = recorded_metrics()
    first, last = (min(range(80), key=lambda n: abs(rows[n][0] - t)) for t in (12.5327, 18.7264))
    state = folded(sample(n, rows[i][1], t_s=rows[i][0]) for n, i in ((1, first), (2, last)))
    assert read_number(state, "pool.used_blocks").value == 59  # 0.5412844 of 109
    assert read_number(state, "queue.running").value == 11
    assert read_number(state, "cache.hit_rate").value == pytest.approx(1280 / 3543)
    assert read_number(state, "cache.recent_hit_rate").value == pytest.approx((1280 - 960) / (3543 - 2862))
    assert read_number(state, "throughput.decode_tokens_s").value == pytest.approx(
        (177 - 25) / (18.7264 - 12.5327), rel=1e-3
    )
    assert read_number(state, "run.finished").value == 4


def record(tmp_path: Path, **options) -> tuple[Path, RunState]:
    """A recording of a server that stores three blocks, the canary among their tokens."""
    run, state = tmp_path / "run", RunState()
    text = GOOD + b"vllm:kv_cache_usage_perc 0.0\n"
    text += b'vllm:cache_config_info{block_size="4",num_gpu_blocks="65"} 1.0\n'
    with FakeMetrics(Answer(text)) as fake, FakePublisher() as publisher:
        event = stored(1, 2, 3, size=4)
        event["token_ids"] = [CANARY] * 12
        publisher.publish(event, skip=True)
        spec = AttachSpec(
            [address_of(fake.url.replace("//", "//user:hunter2@"))], [publisher.endpoint], [publisher.replay_endpoint],
            interval_s=0.05, api_key="s3cret", record=run, **options,
        )  # fmt: skip
        session = AttachSession(spec)
        session.start()
        follow(session, state, answers)
        while not attached(state).streams:
            publisher.publish()
            wait(session, state)
        session.stop()
    return run, state


def test_no_prompt_and_no_secret_is_stored_unless_asked_for(tmp_path: Path) -> None:
    run, _ = record(tmp_path)
    events = replayed(run)
    stored_text = b"".join(path.read_bytes() for path in run.iterdir()) + encode(events)
    assert encode(CANARY) not in stored_text
    assert str(CANARY).encode() not in stored_text
    for secret in (b"s3cret", b"hunter2"):
        assert secret not in stored_text


def test_tokens_are_stored_where_they_were_asked_for(tmp_path: Path) -> None:
    run, _ = record(tmp_path, keep_tokens=True)
    assert encode(CANARY) in encode(replayed(run))


def replayed(run: Path) -> list[Event]:
    session, events = RecordedSession(run), list[Event]()
    session.start()
    while not session.ended:
        events += session.poll()
    return events


def test_a_recording_replays_to_the_state_that_was_seen(tmp_path: Path) -> None:
    run, live = record(tmp_path)
    events = replayed(run)
    assert isinstance(events[0], RunStarted)
    assert isinstance(events[-1], RunEnded)
    again = folded(events)
    assert read_manifest(run)["status"] == "complete"
    assert read_manifest(run)["num_blocks"] == 64
    assert again.pool is not None
    assert live.pool is not None
    assert [key for key in again.pool.key if key is not None] == [key for key in live.pool.key if key is not None]
    for name in ("queue.running", "pool.cached_blocks", "pool.num_blocks"):
        assert read_number(again, name).value == read_number(live, name).value, name


def test_a_recording_is_never_written_over(tmp_path: Path) -> None:
    run, _ = record(tmp_path)
    with pytest.raises(UsageError, match="already holds a recording of attached servers"):
        AttachSession(AttachSpec([address_of("127.0.0.1:1")], record=run)).start()
    assert replayed(run)


def test_steps_count_what_was_seen_and_time_goes_forward() -> None:
    with FakeMetrics(Answer(GOOD)) as one, FakeMetrics(Answer(GOOD)) as other:
        session = AttachSession(AttachSpec([address_of(one.url), address_of(other.url)], interval_s=0.01))
        session.start()
        seen = follow(session, RunState(), lambda state: answers(state, 20))
        session.stop()
    samples = [event for event in seen if isinstance(event, Sample)]
    assert [event.step for event in samples] == list(range(1, len(samples) + 1))
    for url in (one.url, other.url):
        times = [event.t_ns for event in samples if event.server == url]
        assert times == sorted(times)
