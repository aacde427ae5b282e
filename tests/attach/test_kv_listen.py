"""KV events over real sockets on loopback: nothing lost at speed, gaps asked for again, rubbish survived."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec
import pytest
from attach_helpers import stored
from fake_server import FakePublisher, recorded_messages

from kvtop.attach.kv_listen import KvListener, check_endpoint
from kvtop.attach.kv_tracker import KvTracker
from kvtop.engine.errors import UsageError

LIMIT_S = 20.0


def connected(publisher: FakePublisher, *, replay: bool = True) -> KvListener:
    """A listener that the publisher knows of: it has received something. What told it so is folded as message 0."""
    listener = KvListener([publisher.endpoint], [publisher.replay_endpoint if replay else ""], KvTracker(None))
    deadline = time.monotonic() + LIMIT_S
    body = msgspec.msgpack.encode([time.time(), []])
    while not listener.tracker.ranks:
        assert time.monotonic() < deadline, "the subscription never arrived"
        publisher.socket.send_multipart([b"", (0).to_bytes(8, "big"), body])
        listener.receive(0.02)
    publisher.kept, publisher.seq = [(0, body)], 1
    while listener.receive(0.05):  # further copies of message 0: each looks like a publisher that begins anew
        pass
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


def test_a_replay_endpoint_that_does_not_answer_does_not_hold_up_what_comes() -> None:
    with FakePublisher(replays=False) as publisher:
        publisher.replay_endpoint = "tcp://127.0.0.1:1"
        listener = connected(publisher)
        began = time.monotonic()
        publisher.publish(stored(1), skip=True)
        publisher.publish(stored(2))
        receive_until(listener, 2)
        assert time.monotonic() - began < 6
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
    assert listener.num_bad == 3
    assert "3 messages are no KV events" in listener.tracker.problems[publisher.endpoint]


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


def flood(seconds: float, rate: int) -> tuple[int, int, float]:
    """(messages sent, messages seen, seconds the last of them lay) at ``rate`` events a second."""
    with FakePublisher(replays=False) as publisher:
        listener = connected(publisher, replay=False)
        sent, cpu, began = 0, 0.0, time.monotonic()
        while (passed := time.monotonic() - began) < seconds:
            while sent < passed * rate:
                sent += 1
                publisher.publish(stored(sent, parent=sent - 1 or None))
            before = time.thread_time()
            listener.receive(0.0)
            listener.tracker.drain(1, 1)
            cpu += time.thread_time() - before
        receive_until(listener, sent)
        (stream,) = listener.tracker.streams()
        listener.close()
    assert (stream.num_lost, stream.partial, stream.num_cached) == (0, "", sent)
    return sent, stream.last_seq, (stream.lag_ns or 0) / 1e9


def test_five_thousand_events_a_second_are_followed_without_a_loss() -> None:
    sent, seen, lag_s = flood(1.5, 5000)
    assert sent == seen >= 5000
    assert lag_s < 1.0


@pytest.mark.slow
def test_five_thousand_events_a_second_are_followed_for_ten_seconds() -> None:
    sent, seen, lag_s = flood(10, 5000)
    assert sent == seen >= 45_000
    assert lag_s < 1.0


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
