"""Receive KV events over ZeroMQ and ask for the ones that were lost. It decodes and counts, and does nothing else.

A server *binds* its endpoint (``tcp://*:5557``), kvtop connects to it. A replay endpoint is a ROUTER: it is sent a
sequence number and answers with every message from there on that it still has, then with the number -1. It is asked at
each connection too, the first and those after a loss: what an idle server has cached is known without waiting for it
to publish something, and so is that a server was restarted.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from kvtop.attach.kv_decode import BadMessage, Batch, decode_batch, sequence_of
from kvtop.attach.kv_tracker import KvTracker, Replay
from kvtop.engine.errors import UsageError

if TYPE_CHECKING:
    import zmq

RECEIVE_LIMIT = 1_000_000  # messages that wait to be received; the publisher's own limit is 100,000 by default
BURST = 500  # messages taken between two looks at anything else
REPLAY_S = 2.0
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


class KvListener:
    """Subscribes to endpoints and folds what they say into ``tracker``. One thread owns it.

    ``replays``: the replay endpoint of each, or "". ``problems`` of the tracker say what is wrong with an endpoint.
    """

    def __init__(self, endpoints: list[str], replays: list[str], tracker: KvTracker) -> None:
        import zmq

        self.tracker, self.num_bad = tracker, 0
        self._context = zmq.Context()
        self._poller = zmq.Poller()
        self._sockets: dict[zmq.Socket[bytes], str] = {}
        self._monitors: dict[zmq.Socket[bytes], str] = {}
        self._replays = dict(zip(endpoints, replays, strict=True))
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
        if recv_monitor_message(monitor)["event"] == zmq.EVENT_DISCONNECTED:
            self.tracker.cut(endpoint)
        elif self._replays[endpoint]:
            found, is_whole = self._ask(self._replays[endpoint], 0, LAST)
            if is_whole:
                self.tracker.resume(endpoint, found, time.time())

    def _take(self, endpoint: str, frames: list[bytes]) -> None:
        try:
            if len(frames) < 2:
                raise BadMessage(f"a message of {len(frames)} frame, expected topic, number and batch")
            seq, batch = sequence_of(frames[-2]), decode_batch(frames[-1])
        except BadMessage as error:
            self.num_bad += 1
            self.tracker.problems[endpoint] = f"{self.num_bad:,} messages are no KV events: {error}"
            return
        replay = self._replay_of(endpoint) if self._replays[endpoint] else None
        self.tracker.take(endpoint, seq, batch, time.time(), replay)

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
            while (left_s := deadline - time.monotonic()) > 0 and socket.poll(int(left_s * 1000)):
                frames = socket.recv_multipart()
                try:
                    if len(frames) < 2:
                        break
                    seq = sequence_of(frames[-2])
                    if seq < 0 or seq > last:
                        return found, True
                    found.append((seq, decode_batch(frames[-1])))
                except BadMessage:
                    break
        return found, False

    def close(self) -> None:
        """Drop the connections. Nothing waits."""
        self._context.destroy(linger=0)
