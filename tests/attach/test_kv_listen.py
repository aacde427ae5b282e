"""KV events over real sockets on loopback: nothing lost at speed, gaps asked for again, rubbish survived."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec
import pytest
from attach_helpers import attached, stored
from fake_server import Answer, FakeMetrics, FakePublisher, recorded_messages
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtop.attach import kv_listen
from kvtop.attach.kv_decode import BadMessage
from kvtop.attach.kv_listen import KvListener, check_endpoint
from kvtop.attach.kv_tracker import KvTracker
from kvtop.cli.attach import one_line
from kvtop.engine.errors import UsageError
from kvtop.engine.events import KvEvents
from kvtop.state.attached_numbers import read_number
from kvtop.state.model import RunState
from kvtop.state.reduce import reduce
from kvtop.state.snapshot import snapshot
from kvtop.tui.attached import source_lines
from kvtop.tui.frame import Frame

LIMIT_S = 60.0


def connected(publisher: FakePublisher, *, replay: bool = True) -> KvListener:
    """A listener that the publisher knows of, and that knows it: it has received message 0, in which nothing is."""
    listener = KvListener([publisher.endpoint], [publisher.replay_endpoint if replay else ""], KvTracker(None))
    publisher.wait_for_subscriber()
    until(listener, lambda: listener._endpoints[publisher.endpoint].down_s is None)
    publisher.publish()
    until(listener, lambda: bool(listener.tracker.ranks))
    listener.tracker.drain(0, 0)
    return listener


def receive_until(listener: KvListener, seq: int) -> None:
    deadline = time.monotonic() + LIMIT_S
    while listener.tracker.streams()[0].last_seq < seq:
        assert time.monotonic() < deadline, "the messages never arrived"
        listener.receive(0.05)


def test_the_recorded_messages_arrive_as_they_were_sent() -> None:
    with FakePublisher() as publisher:
        listener = connected(publisher)
        for _, frames in recorded_messages():
            publisher.publish_body(frames[2])
        receive_until(listener, 71)
        listener.close()
    (stream,) = listener.tracker.streams()
    assert (stream.num_cached, stream.num_lost, stream.partial, stream.tiers) == (103, 0, "", {"GPU": 103})


def test_messages_that_are_lost_on_the_way_are_asked_for_at_the_replay_endpoint() -> None:
    with FakePublisher() as publisher:
        listener = connected(publisher)
        for n in range(1, 13):
            publisher.publish(stored(n, parent=n - 1 or None), skip=5 <= n <= 9)
        receive_until(listener, 12)
        assert publisher.asked == [0, 5]
        listener.close()
    (stream,) = listener.tracker.streams()
    assert (stream.num_cached, stream.num_replayed, stream.num_lost, stream.partial) == (12, 5, 0, "")


def test_a_replay_endpoint_that_does_not_answer_does_not_hold_up_what_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_listen, "REPLAY_S", 0.2)
    with FakePublisher(replays=False) as publisher:
        publisher.replay_endpoint = "tcp://127.0.0.1:1"
        listener = connected(publisher)
        publisher.publish(stored(1), skip=True)
        publisher.publish(stored(2))
        receive_until(listener, 2)
        listener.close()
    assert listener.tracker.streams()[0].num_lost == 1


def test_messages_that_are_no_events_are_counted_and_passed_over() -> None:
    with FakePublisher() as publisher:
        listener = connected(publisher)
        publisher.socket.send_multipart([b"only one frame"])
        publisher.socket.send_multipart([b"", b"123", b"x"])
        publisher.socket.send_multipart([b"", (1).to_bytes(8, "big"), b"\xc1"])
        publisher.publish(stored(1))
        receive_until(listener, 1)
        listener.close()
    first = "a message of 1 frame, expected topic, number and batch"
    assert listener.problems == {publisher.endpoint: f"3 messages that are not KV events, first: {first}"}
    assert listener.tracker.streams()[0].num_cached == 1


RUBBISH = (
    [b"only one frame"],
    [b"", b"123", msgspec.msgpack.encode([1.0, []])],
    [b"", (1).to_bytes(8, "big"), b"\xc1"],
    [b"", (-1).to_bytes(8, "big", signed=True), msgspec.msgpack.encode([1.0, []])],
    [b"", (1).to_bytes(8, "big"), msgspec.msgpack.encode("GET / HTTP/1.1")],
    [b"", (1).to_bytes(8, "big"), msgspec.msgpack.encode([1.0, [{"type": "BlockStored", "block_hashes": "x"}]])],
)


def test_an_endpoint_that_sends_only_rubbish_is_named_in_one_line() -> None:
    """No rank of it is known, and no block: it is the endpoint's line, which every consumer reads."""
    with FakePublisher(replays=False) as publisher:
        listener, state = KvListener([publisher.endpoint], [""], KvTracker(None)), RunState()
        deadline, sent = time.monotonic() + LIMIT_S, 0
        while len(RUBBISH) * 2 > int(attached_problem(state, publisher.endpoint).split(" ")[0] or 0):
            assert time.monotonic() < deadline, "it was never told"
            publisher.socket.send_multipart(list(RUBBISH[sent % len(RUBBISH)]))
            sent += 1
            listener.receive(0.01)
            for event in listener.drain(1, 1):
                reduce(state, event)
        listener.close()
    problem = attached_problem(state, publisher.endpoint)
    assert " messages that are not KV events, first: " in problem
    assert "\n" not in problem
    assert state.attached is not None
    assert (state.attached.kv_since_ns, state.attached.streams, listener.tracker.ranks) == (None, {}, {})
    assert read_number(state, "pool.cached_blocks").value is None  # not 0
    assert problem in read_number(state, "pool.cached_blocks").missing
    frame = Frame(state)
    assert any(problem in "".join(part for part, _ in line) for line in source_lines(frame, 10))
    assert f"{publisher.endpoint}: {problem}" in one_line(state)
    assert snapshot(state)["attached"]["troubles"] == {publisher.endpoint: problem}


def attached_problem(state: RunState, endpoint: str) -> str:
    return state.attached.troubles.get(endpoint, "0") if state.attached is not None else "0"


def test_a_trouble_is_news_once_and_ends_when_it_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_listen, "CONNECT_S", 0.0)
    with FakePublisher(replays=False) as publisher:
        port = int(publisher.endpoint.rpartition(":")[2])
    listener, state = KvListener([publisher.endpoint], [""], KvTracker(None)), RunState()
    (told,) = listener.drain(1, 1)
    assert isinstance(told, KvEvents)
    assert told.troubles == {publisher.endpoint: "no connection: nobody listens there, or nobody who speaks ZeroMQ"}
    assert told.notes == [f"{publisher.endpoint}: no connection: nobody listens there, or nobody who speaks ZeroMQ"]
    assert listener.drain(2, 2) == []
    reduce(state, told)
    with FakePublisher(replays=False, port=port):
        until(listener, lambda: not listener.problems)
        for event in listener.drain(3, 3):
            reduce(state, event)
        assert attached(state).troubles == {}
        listener._refuse(publisher.endpoint, BadMessage("x"))
        listener._refuse(publisher.endpoint, BadMessage("y"))
        (first,) = listener.drain(4, 4)
        listener._refuse(publisher.endpoint, BadMessage("z"))
        (second,) = listener.drain(5, 5)
        listener.close()
    assert isinstance(first, KvEvents)
    assert isinstance(second, KvEvents)
    assert first.troubles == {publisher.endpoint: "2 messages that are not KV events, first: x"}
    assert second.troubles == {publisher.endpoint: "3 messages that are not KV events, first: x"}
    assert (len(first.notes), second.notes) == (1, [])


def test_a_server_that_speaks_no_zeromq_is_said_not_to_be_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_listen, "CONNECT_S", 0.2)
    with FakeMetrics(Answer(b"x 1\n")) as fake:
        endpoint = fake.url.replace("http", "tcp")
        listener = KvListener([endpoint], [""], KvTracker(None))
        until(listener, lambda: bool(listener.problems))
        listener.close()
    assert listener.problems[endpoint].startswith("no connection")


def test_rubbish_in_a_replay_hides_nothing_that_comes_behind_it() -> None:
    with FakePublisher() as publisher:
        publisher.publish(stored(1), skip=True)
        publisher.publish_body(b"\xc1", skip=True)
        publisher.publish(stored(2, parent=1), skip=True)
        listener = KvListener([publisher.endpoint], [publisher.replay_endpoint], KvTracker(None))
        until(listener, lambda: bool(listener.tracker.ranks))
        listener.close()
    (stream,) = listener.tracker.streams()
    assert (stream.last_seq, stream.num_cached, stream.num_lost) == (2, 2, 1)
    assert listener.problems[publisher.replay_endpoint].startswith("1 message that is not KV events, first: no msgpack")


_frames = st.lists(
    st.binary(max_size=24) | st.integers(-3, 5).map(lambda n: n.to_bytes(8, "big", signed=True)), max_size=4
)


@settings(max_examples=150, deadline=None)
@given(st.lists(_frames, max_size=6))
def test_no_frames_do_worse_than_being_counted(messages: list[list[bytes]]) -> None:
    listener = KvListener(["tcp://127.0.0.1:1"], [""], KvTracker(None))
    try:
        for frames in messages:
            listener._take("tcp://127.0.0.1:1", frames)
        taken = sum(stream.num_messages for stream in listener.tracker.streams())
        assert taken + listener._endpoints["tcp://127.0.0.1:1"].num_bad == len(messages)
    finally:
        listener.close()


def test_a_replay_that_nobody_wants_any_more_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_listen, "REPLAY_S", 3600.0)
    nobody = "tcp://127.0.0.1:1"
    listener = KvListener([nobody], [nobody], KvTracker(None), is_over=lambda: True)
    assert listener._ask(nobody, 0, 5) == ([], False)
    listener.close()


def test_an_idle_server_that_was_restarted_is_known_to_be_empty() -> None:
    with FakePublisher() as publisher:
        port, replay_port = (int(e.rpartition(":")[2]) for e in (publisher.endpoint, publisher.replay_endpoint))
        publisher.publish(stored(1, 2))  # nobody listens yet
        listener = KvListener([publisher.endpoint], [publisher.replay_endpoint], KvTracker(None))
        until(listener, lambda: bool(listener.tracker.ranks))
        assert listener.tracker.streams()[0].num_cached == 2
    until(listener, lambda: bool(listener.tracker.streams()[0].partial))
    with FakePublisher(port=port, replay_port=replay_port):
        until(listener, lambda: not listener.tracker.streams()[0].partial)
        assert listener.tracker.streams()[0].num_cached == 0
        listener.close()


def until(listener: KvListener, is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not is_so():
        assert time.monotonic() < deadline
        listener.receive(0.05)


RATE, BATCH = 5000, 25  # events a second; sent at once


def flood(count: int) -> None:
    """``count`` events come as fast as they can be taken. None is lost, and at ``RATE`` a second they leave the thread
    that takes them most of its time: its own CPU time is looked at, which is the same on a busy machine."""
    with FakePublisher(replays=False) as publisher:
        listener = connected(publisher, replay=False)
        cpu_s = 0.0
        for sent in range(1, count + 1):
            publisher.publish(stored(sent, parent=sent - 1 or None))
            if sent % BATCH == 0:
                before = time.thread_time()
                listener.receive(0.0)
                listener.tracker.drain(1, 1)
                cpu_s += time.thread_time() - before
        receive_until(listener, count)
        (stream,) = listener.tracker.streams()
        listener.close()
    assert (stream.last_seq, stream.num_lost, stream.partial, stream.num_cached) == (count, 0, "", count)
    assert cpu_s < count / RATE


def test_five_thousand_events_a_second_are_followed_without_a_loss() -> None:
    flood(2 * RATE)


@pytest.mark.slow
def test_five_thousand_events_a_second_are_followed_for_ten_seconds() -> None:
    flood(10 * RATE)


@pytest.mark.parametrize("text", ["tcp://127.0.0.1:5557", "ipc:///tmp/x", "tcp://[::1]:5557"])
def test_endpoints_to_connect_to(text: str) -> None:
    assert check_endpoint(text) == text


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("tcp://*:5557", "is where a server binds"),
        ("tcp://0.0.0.0:5557", "is where a server binds"),
        ("127.0.0.1:5557", "is no endpoint"),
        ("tcp://host", "is no endpoint"),
        ("tcp://host:0", "is no endpoint"),
        ("http://host:80", "is no endpoint"),
    ],
)
def test_endpoints_that_only_a_server_can_use_are_explained(text: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        check_endpoint(text)
