"""Receive KV events over ZeroMQ and ask for the ones that were lost. It decodes and counts, and does nothing else.

A server *binds* its endpoint (``tcp://*:5557``), kvtop connects to it. A replay endpoint is a ROUTER: it is sent a
sequence number and answers with every message from there on that it still has, then with the number -1. It is asked at
each connection too, the first and those after a loss: what an idle server has cached is known without waiting for it
to publish something, and so is that a server was restarted.

What is wrong with an endpoint itself (it sends something else, nobody is there) is told apart from its ranks: whose it
was cannot be said of a message that cannot be read.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvtop.attach.kv_decode import BadMessage, Batch, decode_batch, sequence_of
from kvtop.attach.kv_tracker import KvTracker, Replay
from kvtop.engine.errors import UsageError
from kvtop.engine.events import Event, KvEvents

if TYPE_CHECKING:
    import zmq

RECEIVE_LIMIT = 1_000_000  # messages that wait to be received; the publisher's own limit is 100,000 by default
BURST = 500  # messages taken between two looks at anything else
REPLAY_S = 2.0
SLICE_S = 0.05  # a replay that is waited for is given up within this time once nobody wants it any more
CONNECT_S = 3.0  # whoever is not connected for so long is said not to be
LAST = (1 << 63) - 1


def check_endpoint(text: str) -> str:
    """``text``, if kvtop can connect to it.

    Raises:
        UsageError: it is no ZeroMQ endpoint, or one that only a server can use.
    """
    scheme, _, rest = text.partition("://")
    host, _, port = rest.rpartition(":")
    if scheme == "ipc" and rest:
        return text
    if scheme != "tcp" or not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise UsageError(f"{text!r} is no endpoint of KV events, expected one like tcp://127.0.0.1:5557")
    if host in ("*", "0.0.0.0"):
        raise UsageError(f"{text!r} is where a server binds; kvtop connects: give its address, tcp://HOST:{port}")
    return text


@dataclass(slots=True)
class _Endpoint:
    """What is wrong with one. ``down_s``: since when it is not connected; None: it is, or nobody has tried."""

    down_s: float | None = None
    num_bad: int = 0
    first: str = ""
    told: str = ""

    def problem(self, now_s: float) -> str:
        found: list[str] = []
        if self.num_bad:
            what = "messages that are not KV events" if self.num_bad > 1 else "message that is not KV events"
            found.append(f"{self.num_bad:,} {what}, first: {self.first}")
        elif self.down_s is not None and now_s - self.down_s >= CONNECT_S:
            found.append("no connection: nobody listens there, or nobody who speaks ZeroMQ")
        return "; ".join(found)


class KvListener:
    """Subscribes to endpoints and folds what they say into ``tracker``. One thread owns it.

    ``replays``: the replay endpoint of each, or "". ``is_over``: whether nobody wants an answer any more.
    """

    def __init__(
        self, endpoints: list[str], replays: list[str], tracker: KvTracker, is_over: Callable[[], bool] = lambda: False
    ) -> None:
        import zmq

        self.tracker, self._is_over = tracker, is_over
        self._context = zmq.Context()
        self._poller = zmq.Poller()
        self._sockets: dict[zmq.Socket[bytes], str] = {}
        self._monitors: dict[zmq.Socket[bytes], str] = {}
        self._replays = dict(zip(endpoints, replays, strict=True))
        self._endpoints = {endpoint: _Endpoint(time.monotonic()) for endpoint in endpoints}
        self._endpoints |= {replay: _Endpoint() for replay in replays if replay}
        for endpoint in endpoints:
            socket = self._context.socket(zmq.SUB)
            socket.setsockopt(zmq.RCVHWM, RECEIVE_LIMIT)
            socket.setsockopt(zmq.LINGER, 0)
            socket.setsockopt(zmq.SUBSCRIBE, b"")
            monitor = socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED)
            self._poller.register(monitor, zmq.POLLIN)
            self._monitors[monitor] = endpoint
            socket.connect(endpoint)
            self._poller.register(socket, zmq.POLLIN)
            self._sockets[socket] = endpoint

    @property
    def problems(self) -> dict[str, str]:
        """What is wrong with endpoints, by endpoint, in one line each; the others are not in it."""
        now_s = time.monotonic()
        found = {endpoint: state.problem(now_s) for endpoint, state in self._endpoints.items()}
        return {endpoint: problem for endpoint, problem in found.items() if problem}

    def drain(self, step: int, t_ns: int) -> list[Event]:
        """What has happened since the last call, in order; at its end what has changed about the endpoints."""
        events, problems = self.tracker.drain(step, t_ns), self.problems
        changed = [name for name, state in self._endpoints.items() if problems.get(name, "") != state.told]
        if not changed:
            return events
        notes: list[str] = []
        for name in changed:
            state, problem = self._endpoints[name], problems.get(name, "")
            if not (state.told and problem):  # a count that grows is no news
                notes.append(f"{name}: {problem or 'connected'}")
            state.told = problem
        troubles = {name: problems.get(name, "") for name in changed}
        return [*events, KvEvents(step=step, t_ns=t_ns, troubles=troubles, notes=notes)]

    def receive(self, timeout_s: float) -> int:
        """Take what there is, waiting up to ``timeout_s`` for the first; how many messages there were."""
        import zmq

        count = 0
        ready = [socket for socket, _ in self._poller.poll(int(timeout_s * 1000))]
        for monitor in [socket for socket in ready if socket in self._monitors]:
            self._connection(monitor)
        for socket in [socket for socket in ready if socket in self._sockets]:
            endpoint = self._sockets[socket]
            for _ in range(BURST):
                try:
                    frames = socket.recv_multipart(zmq.NOBLOCK)
                except zmq.Again:
                    break
                count += 1
                self._take(endpoint, frames)
        return count

    def _connection(self, monitor: zmq.Socket[bytes]) -> None:
        """A connection was made or lost."""
        import zmq
        from zmq.utils.monitor import recv_monitor_message

        endpoint = self._monitors[monitor]
        state = self._endpoints[endpoint]
        if recv_monitor_message(monitor)["event"] == zmq.EVENT_DISCONNECTED:
            state.down_s = time.monotonic() if state.down_s is None else state.down_s
            self.tracker.cut(endpoint)
            return
        state.down_s = None
        if self._replays[endpoint]:
            found, is_whole = self._ask(self._replays[endpoint], 0, LAST)
            if is_whole:
                self.tracker.resume(endpoint, found, time.time())

    def _take(self, endpoint: str, frames: list[bytes]) -> None:
        try:
            seq, batch = _read(frames)
            if seq < 0:
                raise BadMessage(f"a sequence number of {seq}, expected 0 or more")
        except BadMessage as error:
            self._refuse(endpoint, error)
            return
        replay = self._replay_of(endpoint) if self._replays[endpoint] else None
        self.tracker.take(endpoint, seq, batch, time.time(), replay)

    def _refuse(self, endpoint: str, error: BadMessage) -> None:
        state = self._endpoints[endpoint]
        state.num_bad += 1
        state.first = state.first or str(error)

    def _replay_of(self, endpoint: str) -> Replay:
        return lambda first, last: self._ask(self._replays[endpoint], first, last)[0]

    def _ask(self, endpoint: str, first: int, last: int) -> tuple[list[tuple[int, Batch]], bool]:
        """Messages ``first .. last`` as far as the endpoint has them, and whether it told all within ``REPLAY_S``."""
        import zmq

        found: list[tuple[int, Batch]] = []
        with self._context.socket(zmq.DEALER) as socket:
            socket.setsockopt(zmq.LINGER, 0)
            socket.setsockopt(zmq.RCVHWM, 0)
            socket.connect(endpoint)
            socket.send_multipart([b"", first.to_bytes(8, "big")])
            deadline = time.monotonic() + REPLAY_S
            while (left_s := deadline - time.monotonic()) > 0 and not self._is_over():
                if not socket.poll(int(min(left_s, SLICE_S) * 1000) + 1):
                    continue
                frames = socket.recv_multipart()
                try:
                    if len(frames) > 1 and ((seq := sequence_of(frames[-2])) < 0 or seq > last):
                        return found, True
                    found.append(_read(frames))
                except BadMessage as error:  # what comes behind it may be good
                    self._refuse(endpoint, error)
        return found, False

    def close(self) -> None:
        """Drop the connections. Nothing waits."""
        self._context.destroy(linger=0)


def _read(frames: list[bytes]) -> tuple[int, Batch]:
    """Number and batch: the last two frames. Before them is a topic, of some servers not in a replay.

    Raises:
        BadMessage: it is no message of KV events.
    """
    if len(frames) < 2:
        raise BadMessage(f"a message of {len(frames)} frame, expected topic, number and batch")
    return sequence_of(frames[-2]), decode_batch(frames[-1])
