"""kvtop attach: the TUI on running servers."""

from __future__ import annotations

import argparse
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from kvtop.cli.attach_options import add_attach_options, attach_spec
from kvtop.cli.display_options import add_display_options, display
from kvtop.cli.values import positive

if TYPE_CHECKING:
    from kvtop.attach.session import AttachSession
    from kvtop.state.model import RunState

DESCRIPTION = """\
Look at running vLLM, SGLang or kvtop servers in the same screens. Nothing is sent to them but requests for /metrics,
and a prompt you paste (key I on the Radix tree) to /tokenize: they are only looked at. Every panel says how true it is;
`kvtop doctor URL` says what a server does not report, and which of its flags would. Without a terminal it prints a line
now and then, and records if asked to; it ends with 1 then if no server has answered and no KV event has come."""

EXAMPLES = """
kvtop attach http://127.0.0.1:8000
kvtop attach gpu1:8000 gpu2:8000 --interval 2
kvtop attach http://127.0.0.1:8000 --kv-events tcp://127.0.0.1:5557 --kv-replay tcp://127.0.0.1:5558
kvtop attach http://127.0.0.1:8000 --kv-events tcp://127.0.0.1:5557 --record monday --seconds 3600
"""
LINE_EVERY_S = 5.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("urls", nargs="*", metavar="URL", help="server, http://HOST:PORT (or HOST:PORT)")
    add_attach_options(parser)
    parser.add_argument("--record", type=Path, metavar="DIR", help="keep what is seen, for `kvtop replay DIR`")
    parser.add_argument(
        "--keep-tokens", action="store_true",
        help="record the token ids of KV events too: they are the prompts (default: hashes only)",
    )  # fmt: skip
    parser.add_argument(
        "--tokenizer", type=Path, metavar="PATH",
        help="the model's folder or tokenizer.json, for prompts you paste (default: the server's /tokenize)",
    )  # fmt: skip
    parser.add_argument("--seconds", type=positive, metavar="S", help="end after S seconds (without a terminal)")
    add_display_options(parser)


def run(args: argparse.Namespace) -> int:
    """Open the TUI, or print lines where there is no terminal."""
    from kvtop.attach.session import AttachSession
    from kvtop.cli.terminal import can_open_tui
    from kvtop.engine.errors import UsageError

    if args.keep_tokens and args.record is None:
        raise UsageError("--keep-tokens is about a recording: give --record DIR")
    session = AttachSession(attach_spec(args, args.urls))
    if can_open_tui() and args.seconds is None:
        from kvtop.tui.launch import run_app

        code = run_app(session, **display(args))
        return 1 if _tell_errors(session) else code
    return _headless(session, args.seconds)


def _tell_errors(session: AttachSession) -> bool:
    """What went wrong as ``session`` ended, when no screen was there any more to say it, and why the recording is not
    whole, which the screen may have said; whether anything did."""
    from kvtop.engine.events import Notice

    errors = [event.text for event in session.poll() if isinstance(event, Notice) and event.level == "error"]
    if session.recording_error and session.recording_error not in errors:
        errors.append(session.recording_error)
    with suppress(OSError):  # the terminal may be gone
        for text in errors:
            print(f"kvtop: {text}", file=sys.stderr)
    return bool(errors)


def _headless(session: AttachSession, seconds: float | None) -> int:
    """A line every few seconds; 130 after Ctrl-C, 1 if nobody has answered. What is recorded is whole either way."""
    from kvtop.cli.terminal import interruptible
    from kvtop.state.model import RunState
    from kvtop.state.reduce import reduce
    from kvtop.state.session_status import has_answered

    state, began = RunState(), time.monotonic()
    due, code = began + min(LINE_EVERY_S, seconds or LINE_EVERY_S), 0
    session.start()
    try:
        with interruptible():
            while seconds is None or time.monotonic() - began < seconds:
                for event in session.poll(0.2):
                    reduce(state, event)
                if time.monotonic() >= due:
                    due += LINE_EVERY_S
                    print(one_line(state), flush=True)
    except KeyboardInterrupt:
        code = 130
    finally:
        session.stop()
    for event in session.poll():  # what came last, and whether all of it is recorded
        reduce(state, event)
    if error := session.recording_error or (state.notice if state.notice_level == "error" else ""):
        print(f"kvtop: {error}", file=sys.stderr)
        return 1
    if not code and (state.attached is None or not has_answered(state.attached)):
        print("kvtop: no server has answered, and no KV event has come", file=sys.stderr)
        return 1
    return code


def one_line(state: RunState) -> str:
    """The few figures one looks at first."""
    from kvtop.state.numbers import NUMBERS
    from kvtop.tui.attached import told
    from kvtop.tui.text import clean

    if state.attached is None or not state.attached.has_looked:
        return "no answer yet"
    names = ("pool.used_share", "queue.running", "queue.waiting", "cache.hit_rate", "latency.ttft_p50_ns")
    problems = [f"{s.name}: {s.problem}" for s in state.attached.servers.values() if s.problem]
    problems += [f"{endpoint}: {problem}" for endpoint, problem in state.attached.troubles.items()]
    # Where nobody has answered yet, the reason is said once, not beside each figure.
    figures = {name: told(state, NUMBERS[name]) for name in names if state.attached.rows or not problems}
    truths = {truth for _, truth in figures.values() if truth}
    doubts = truths - {"exact", "bucket"}
    when = f"{state.t_ns / 1e9:.0f} s"
    if len(truths) == 1 and doubts:  # stale, or not of all servers: it is said once, if it is true of every figure
        when, doubts = f"{when}, {doubts.pop()}", set()
    parts = [
        f"{NUMBERS[name].title} {figure}" + (f" ({truth})" if truth in doubts else "")
        for name, (figure, truth) in figures.items()
    ]
    return clean("; ".join([when, *parts, *problems]))
