"""Server and engine as one session: a thread of its own answers HTTP, whoever polls follows the run."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections import deque
from collections.abc import Callable

import msgspec
import uvicorn

from kvtop.engine.errors import UsageError
from kvtop.engine.events import Command, Event, Gap, Keyframe, RequestKeyframe, RunEnded, StepEvent
from kvtop.exporter.meter import Exporter
from kvtop.run.session import RunSession
from kvtop.run.spec import RunSpec
from kvtop.serve_api.app import Api, Limits
from kvtop.serve_api.broker import Broker
from kvtop.serve_api.protocol import Patience, bounded
from kvtop.state.model import RunState

TICK_S = 0.05  # commands that a full pipe did not take are handed on so often
SPARE = 64  # connections above --max-concurrency on which a request may arrive: those that look at /health, too
LAST_BYTES_S = 2.0  # for answers that are complete to reach their clients, and handlers to end
MAX_WAITING_EVENTS = 100_000  # for a poller who is slow; then steps are left out and a gap says so


class ServeOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How the server listens and what it lets in. ``drain_s``: how long answers may go on once it is to stop;
    ``request_s``: how long a request may take to arrive, and a client to take what waits for it of its answer."""

    host: str = "127.0.0.1"
    port: int = 8000
    api_key: str | None = None
    max_body_bytes: int = 1 << 20
    max_concurrency: int = 2048
    model_name: str | None = None
    drain_s: float = 5.0
    request_s: float = 30.0


class ApiSession:
    """A run whose requests come over HTTP. A session as the TUI knows it: start, poll, send, stop."""

    def __init__(self, spec: RunSpec, options: ServeOptions) -> None:
        self.ended = False
        self.options = options
        self._session = RunSession(msgspec.structs.replace(spec, serve=True))
        self._exporter = Exporter(options.model_name)
        self._asked_as = spec.model
        self._meter = self._exporter.open()
        self._events: deque[Event] = deque()
        self._dropped = 0
        self._news = threading.Condition()
        self._stop_at: float | None = None  # when answers that are not complete are cut off
        self._thread = threading.Thread(target=self._serve, name="serve-api", daemon=True)

    @property
    def pid(self) -> int | None:
        return self._session.pid

    @property
    def url(self) -> str:
        host = self.options.host
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}"

    def start(self) -> None:
        """Listen, start the engine's process, serve. Until the model is loaded every answer is a 503.

        Raises:
            UsageError: the address cannot be listened on, or a run directory cannot be used.
            KvtopError: the process cannot be started.
        """
        self._socket = _listen(self.options.host, self.options.port)
        self.port: int = self._socket.getsockname()[1]
        try:
            self._session.start()
        except BaseException:
            self._socket.close()
            raise
        self._thread.start()

    def follow(self, state: Callable[[], RunState]) -> None:
        """The metrics are read from a state that somebody else folds."""
        self._meter.follow(state)

    def poll(self, timeout_s: float = 0.0) -> list[Event]:
        """Events since the last poll; waits up to ``timeout_s`` for the first."""
        with self._news:
            if not self._events and timeout_s > 0 and not self.ended:
                self._news.wait(timeout_s)
            events = list(self._events)
            self._events.clear()
        if events and isinstance(events[-1], RunEnded):
            self.ended = True
        return events

    def send(self, command: Command) -> None:
        self._session.send(command)

    def begin_stop(self, drain_s: float) -> None:
        """Take no more requests; those that are not answered in ``drain_s`` are cut off. May be said again."""
        at_s = time.monotonic() + drain_s
        self._stop_at = at_s if self._stop_at is None else min(at_s, self._stop_at)

    def stop(self, timeout_s: float = 10.0) -> None:
        """End it: answers may become complete within ``drain_s``; returns once server and engine are gone."""
        if not self._thread.is_alive():
            self._session.stop(timeout_s)
            return
        self.begin_stop(self.options.drain_s)
        self._thread.join(self.options.drain_s + LAST_BYTES_S + timeout_s)
        self._session.stop(timeout_s)

    # The server's thread -------------------------------------------------------------------------------------

    def _serve(self) -> None:
        try:
            asyncio.run(self._main())
        except BaseException as error:
            self._session.stop()
            line = f"the API server failed: {type(error).__name__}: {error}"
            self._pass_on([RunEnded(t_ns=0, status="failed", error=line, exit_code=1)])
        finally:
            self._socket.close()

    async def _main(self) -> None:
        options = self.options
        broker = Broker(self._session, self._pass_on, options.max_concurrency)
        limits = Limits(options.api_key, options.max_body_bytes)
        api = Api(broker, self._exporter.render, limits, options.model_name, self._asked_as)
        server = uvicorn.Server(
            uvicorn.Config(
                api.app(),
                http=bounded(Patience(options.request_s, options.max_concurrency + SPARE)),
                ws="none",
                lifespan="off",
                log_config=None,
                log_level="error",
                access_log=False,
                server_header=False,
                backlog=2048,
                timeout_graceful_shutdown=round(LAST_BYTES_S),
            )
        )
        broker.attach()
        serving = asyncio.create_task(server.serve(sockets=[self._socket]))
        while not serving.done() and broker.end is None and not self._has_drained(broker):
            broker.pump()
            await asyncio.sleep(TICK_S)
        broker.closing = True
        broker.cut_off("the server is shutting down")
        server.should_exit = True
        await serving
        broker.detach()
        await asyncio.to_thread(self._session.stop)
        broker.pump()

    def _has_drained(self, broker: Broker) -> bool:
        """It is to stop, and every answer is there or late."""
        if self._stop_at is None:
            return False
        broker.closing = True
        return not broker.num_live or time.monotonic() >= self._stop_at

    def _pass_on(self, events: list[Event]) -> None:
        for event in events:
            self._meter.fold(event)
        with self._news:
            if len(self._events) > MAX_WAITING_EVENTS:
                self._thin_out()
            if self._dropped:
                events = self._after_gap(events)
            self._events.extend(events)
            self._news.notify_all()

    def _thin_out(self) -> None:
        """Whoever polls is too slow: leave out steps, and ask for a keyframe to go on from."""
        kept = [event for event in self._events if not isinstance(event, StepEvent | Keyframe)]
        self._dropped += len(self._events) - len(kept)
        self._events = deque(kept)
        self._session.send(RequestKeyframe())

    def _after_gap(self, events: list[Event]) -> list[Event]:
        """Steps wait for the keyframe; with it the gap is told."""
        first = next((index for index, event in enumerate(events) if isinstance(event, Keyframe)), None)
        before = events if first is None else events[:first]
        kept = [event for event in before if not isinstance(event, StepEvent)]
        self._dropped += len(before) - len(kept)
        if first is None:
            return kept
        keyframe = events[first]
        assert isinstance(keyframe, Keyframe)
        gap = Gap(t_ns=keyframe.t_ns, dropped=self._dropped)
        self._dropped = 0
        return [*kept, gap, *events[first:]]


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listening = socket.socket(family, kind, protocol)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind(address)
        except BaseException:
            listening.close()
            raise
    except (OSError, OverflowError) as error:
        raise UsageError(f"cannot listen on {host}:{port}: {getattr(error, 'strerror', None) or error}") from None
    return listening


def wait_served(session: ApiSession, tell: Callable[[Event], None], stop_asked: Callable[[], int]) -> RunEnded:
    """Follow a started session to its end. ``stop_asked``: how often somebody asked to stop; twice is at once."""
    end: RunEnded | None = None
    while end is None:
        for event in session.poll(0.2):
            tell(event)
            end = event if isinstance(event, RunEnded) else end
        if times := stop_asked():
            session.begin_stop(session.options.drain_s if times == 1 else 0.0)
    session.stop()
    return end
