"""``kvtop serve-api``: the embedded engine behind an OpenAI-compatible API, with or without the TUI."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvtop.cli.display_options import add_display_options, display
from kvtop.cli.run_options import add_engine_options, run_spec
from kvtop.cli.terminal import ProgressLine
from kvtop.cli.values import count, count_or_zero, not_negative, port_number, positive, size_bytes

if TYPE_CHECKING:
    from kvtop.engine.events import Event
    from kvtop.run.spec import RunSpec
    from kvtop.serve_api.session import ApiSession, ServeOptions

DESCRIPTION = """\
Serve the embedded engine over an OpenAI-compatible API (completions, chat completions, models, health, metrics), so
that real clients drive it. Ctrl-C or SIGTERM stop it: answers under way may become complete, then it exits with 0."""

EXAMPLES = """
kvtop serve-api                                  default model on http://127.0.0.1:8000
kvtop serve-api -m ./my-model --tui             another model, and every block on screen
kvtop serve-api -p lpm --record-workload mine.jsonl.gz --api-key secret
kvtop serve-api --executor null                  no model: to try a client
"""

SETTINGS = True
NEEDED = ("starlette", "uvicorn")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    server = parser.add_argument_group("server")
    server.add_argument("--host", default="127.0.0.1", help="address to listen on (default 127.0.0.1)")
    server.add_argument("--port", type=port_number, default=8000, help="port (default 8000; 0: a free one)")
    server.add_argument(
        "--api-key", metavar="K", help="clients must send it as bearer token (not for /health, /metrics)"
    )
    server.add_argument("--served-model-name", metavar="NAME", help="what clients call the model (default: its name)")
    server.add_argument(
        "--max-body", type=size_bytes, default=1 << 20, metavar="SIZE", help="of a request (default 1MiB)"
    )
    server.add_argument(
        "--max-concurrency", type=count, default=2048, metavar="N",
        help="requests at a time, those that wait or still arrive included; more are refused with 429 (default 2048)",
    )  # fmt: skip
    server.add_argument(
        "--request-timeout", type=positive, default=30.0, metavar="S",
        help="for a request to arrive whole, and for a client to take its answer, then it is closed (default 30)",
    )  # fmt: skip
    server.add_argument(
        "--max-queue",
        type=count_or_zero,
        metavar="N",
        help="sequences that may wait in the engine (default: any number)",
    )
    server.add_argument(
        "--drain", type=not_negative, default=5.0, metavar="S", help="for answers under way when it stops (default 5)"
    )
    server.add_argument("--tui", action="store_true", help="the screen beside it")
    server.add_argument(
        "--record-workload", type=Path, metavar="FILE",
        help="write what came in as a trace that replays: times, lengths, shared prefixes; no text",
    )  # fmt: skip
    server.add_argument("--record", type=Path, metavar="DIR", help="keep the recording and the tables of the run")
    engine = parser.add_argument_group("policies")
    engine.add_argument("-p", "--policy", default="fcfs", metavar="P", help="queue policy (default fcfs)")
    engine.add_argument("--allocator", default="paged", metavar="A", help="see `kvtop policies` (default paged)")
    engine.add_argument("--seed", type=count_or_zero, default=0, metavar="S", help="of sampling (default 0)")
    add_engine_options(parser)
    add_display_options(parser)


def run(args: argparse.Namespace) -> int:
    """Serve until told to stop. 0 then; 130 when told twice; 1 or 2 when the engine failed.

    Raises:
        UsageError: options that cannot work, an address that cannot be listened on, a missing library.
    """
    _check_libraries()
    from kvtop.serve_api.session import ApiSession

    session = ApiSession(_spec(args), _options(args))
    if args.tui:
        from kvtop.tui.launch import run_app

        return run_app(session, **display(args))
    return _without_screen(session)


def _check_libraries() -> None:
    from importlib.util import find_spec

    from kvtop.engine.errors import UsageError

    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise UsageError(f"serve-api needs {' and '.join(missing)}: pip install 'kvtop[api]'")


def _spec(args: argparse.Namespace) -> RunSpec:
    from kvtop.engine.errors import UsageError
    from kvtop.results.files import check_replaceable
    from kvtop.run.served import NAME

    if args.eviction == "belady":
        raise UsageError("--eviction belady knows the whole workload beforehand: nobody knows what clients will send")
    if args.record_workload is not None:
        check_replaceable(args.record_workload)
    for name in ("format", "limit", "replay", "arrival_rate"):  # of a workload: there is none
        setattr(args, name, None)
    args.time_scale = args.length_scale = 1.0
    args.too_long = "reject"
    more: dict[str, Any] = {}
    if args.record_workload is not None:
        more["record_workload"] = str(args.record_workload.resolve())
    if args.record is not None:
        more["run_dir"] = str(args.record)
    spec = run_spec(args, NAME, args.policy, args.allocator, serve=True, **more)
    if args.max_queue is not None:
        spec.engine["max_queue"] = args.max_queue
    return spec


def _options(args: argparse.Namespace) -> ServeOptions:
    from kvtop.serve_api.session import ServeOptions

    return ServeOptions(
        host=args.host,
        port=args.port,
        api_key=args.api_key,
        max_body_bytes=args.max_body,
        max_concurrency=args.max_concurrency,
        model_name=args.served_model_name,
        drain_s=args.drain,
        request_s=args.request_timeout,
    )


def _without_screen(session: ApiSession) -> int:
    from kvtop.serve_api.session import wait_served

    line, told = ProgressLine(), _Teller(session)
    with _counted_signals() as asked:
        session.start()
        try:
            end = wait_served(session, lambda event: told(event, line), lambda: len(asked))
        finally:
            line.clear()
            session.stop()
    if end.status == "failed":
        print(f"kvtop: {end.error}", file=sys.stderr)
        if end.traceback:
            print(end.traceback, file=sys.stderr)
        return end.exit_code or 1
    return 130 if len(asked) > 1 else 0


class _Teller:
    """Tells on stderr what the engine's process says, and where it serves once it does."""

    def __init__(self, session: ApiSession) -> None:
        self._session = session

    def __call__(self, event: Event, line: ProgressLine) -> None:
        from kvtop.engine.events import Notice, RunStarted

        if isinstance(event, RunStarted):
            line.clear()
            name = self._session.options.model_name or event.manifest.get("model")
            if event.manifest.get("model") in (None, "none"):
                name = f"no model (executor {event.manifest.get('executor')}) as {name or 'none'}"
            print(f"kvtop: serving {name} at {self._session.url}/v1 (Ctrl-C stops)", file=sys.stderr, flush=True)
        elif isinstance(event, Notice) and event.level != "info":
            line.clear()
            print(f"kvtop: {event.text}", file=sys.stderr, flush=True)
        elif isinstance(event, Notice):
            line.show(event.text)


@contextmanager
def _counted_signals() -> Iterator[list[int]]:
    """Signals that ask to stop, as they come, instead of what they would do."""
    asked: list[int] = []
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, lambda number, _: asked.append(number)) for number in numbers]
    try:
        yield asked
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
