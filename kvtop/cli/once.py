"""kvtop once: one state of a run, without a screen."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from kvtop.cli.attach_options import add_attach_options, attach_spec
from kvtop.cli.run_options import add_engine_options, add_workload_options, check_workload, run_spec
from kvtop.cli.values import count_or_zero, positive

if TYPE_CHECKING:
    from kvtop.engine.events import Event
    from kvtop.state.model import RunState
    from kvtop.state.numbers import Number

DESCRIPTION = """\
Print the numbers of the overview once: of a recorded run at a step of it, of running servers, or of a workload served
for a few seconds. They are those that the TUI shows at that moment, by the same names. Of a server each comes with how
true it is; rates need two looks, so it takes a little longer than --interval.
Exit codes: 0 there is something to show, 1 no server has answered and no KV event has come, or the engine failed, 2 no
such run or address."""

EXAMPLES = """
kvtop once results/tuesday --step 1200 --json
kvtop once http://127.0.0.1:8000 --json
kvtop once gpu1:8000 gpu2:8000
kvtop once -w chat --executor sim --seconds 60 --json
"""
SECONDS = 5.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "run",
        nargs="*",
        metavar="RUN|URL",
        help="a recorded run, or servers' URLs or HOST:PORT (default: serve a workload)",
    )
    parser.add_argument("--step", type=count_or_zero, metavar="N", help="of the recorded run, as step N ended")
    parser.add_argument("--json", action="store_true", help="as JSON; null is what is not known")
    parser.add_argument("-w", "--workload", default="default", metavar="W", help="built-in name or trace file")
    parser.add_argument("-p", "--policy", default="fcfs", metavar="P", help="queue policy (default fcfs)")
    parser.add_argument("--allocator", default="paged", metavar="A", help="see `kvtop policies` (default paged)")
    parser.add_argument(
        "--seconds", type=positive, default=SECONDS, metavar="S",
        help=f"serve the workload for S seconds of the run's clock (default {SECONDS:g})",
    )  # fmt: skip
    add_workload_options(parser)
    add_engine_options(parser)
    add_attach_options(parser)


def run(args: argparse.Namespace) -> int:
    """Print one state; 1 when the engine failed, or of attached servers none has answered."""
    from kvtop.engine.errors import UsageError
    from kvtop.state.session_status import has_answered
    from kvtop.state.snapshot import snapshot

    if args.step is not None and not args.run:
        raise UsageError("--step is a step of a recorded run: name the run")
    if not args.run:
        state = _served(args)
    elif servers := [text for text in args.run if _is_server(text)]:
        if len(servers) < len(args.run):
            raise UsageError(f"{' '.join(args.run)}: a recorded run and a server; expected one run, or servers")
        state = _attached(args)
    elif len(args.run) > 1:
        raise UsageError(f"{' '.join(args.run)}: {len(args.run)} recorded runs; expected one, or servers")
    else:
        state = _recorded(Path(args.run[0]), args.step)
    print(json.dumps(snapshot(state), indent=2, allow_nan=False) if args.json else as_text(state))
    is_silent = state.attached is not None and not has_answered(state.attached)
    return 1 if is_silent or (state.status == "failed" and not args.run) else 0


def _is_server(text: str) -> bool:
    """A recorded run that is there is meant, whatever it is called.

    Raises:
        UsageError: it is neither a run nor an address.
    """
    from kvtop.attach.address import is_address
    from kvtop.engine.errors import UsageError

    if Path(text).exists():
        return False
    if not is_address(text):
        what = "expected a run directory, its recording, or a server: HOST:PORT, http://HOST"
        raise UsageError(f"{text}: does not exist, and is no address; {what}")
    return True


def as_text(state: RunState) -> str:
    """A number a line; above them how the run stands, and each server that is looked at."""
    from kvtop.state.numbers import NUMBERS
    from kvtop.state.session_status import is_simulated, status_of, told_elsewhere
    from kvtop.tui.text import clean
    from kvtop.tui.words import STATUS

    status = status_of(state)
    rows = [("status", STATUS.get(status, status)), *_sources(state), ("step", f"{state.step:,}")]
    if is_simulated(state):
        rows.append(("simulated", "yes: the clock is virtual, so times say nothing about this machine"))
    said = told_elsewhere(state)
    rows += [(number.name, _number_text(state, number, said)) for number in NUMBERS.values()]
    return "\n".join(f"{name:<36} {clean(value)}" for name, value in rows)


def _sources(state: RunState) -> Iterator[tuple[str, str]]:
    """Servers and endpoints of KV events, and what is wrong with them."""
    if state.attached is None:
        return
    for server in state.attached.servers.values():
        good = f"{server.kind}, answers" if server.t_ok_ns is not None else "no answer yet"
        yield server.name, server.problem or good
    yield from state.attached.troubles.items()


def _number_text(state: RunState, number: Number, said: dict[str, str]) -> str:
    """``said``: of ``told_elsewhere``."""
    from kvtop.state.attached_numbers import read_number
    from kvtop.tui.attached import told

    if said and (why := read_number(state, number.name).missing) in said:
        return f"not reported: {said[why]}"
    return "  ".join(filter(None, told(state, number)))


def _recorded(run: Path, step: int | None) -> RunState:
    from kvtop.engine.errors import UsageError
    from kvtop.run.recorded import RecordedSession
    from kvtop.state.model import RunState
    from kvtop.state.reduce import reduce
    from kvtop.state.timeline import STEPS

    session, state = RecordedSession(run), RunState()
    session.start()
    first: int | None = None
    for event in _all_events(session):
        if isinstance(event, STEPS):
            first = event.step if first is None else first
            if step is not None and event.step > step:
                break
        reduce(state, event)
    if step is None:
        return state
    if first is None:
        raise UsageError(f"--step {step}: {run} has no steps")
    if step > state.step:
        steps = f"has steps {first:,} to {state.step:,}" if first <= step else f"begins with step {first:,}"
        raise UsageError(f"--step {step}: {run} {steps}")
    return state


def _attached(args: argparse.Namespace) -> RunState:
    """Servers, looked at until each has answered twice, or has had the time to."""
    import time

    from kvtop.attach.session import AttachSession
    from kvtop.cli.terminal import interruptible
    from kvtop.engine.errors import UsageError
    from kvtop.state.model import RunState
    from kvtop.state.reduce import reduce

    if args.step is not None:
        raise UsageError("--step is a step of a recorded run, and a server has none")
    session, state = AttachSession(attach_spec(args, args.run)), RunState()
    deadline = time.monotonic() + args.timeout + 2 * args.interval
    session.start()
    try:
        with interruptible():
            while time.monotonic() < deadline:
                for event in session.poll(0.1):
                    reduce(state, event)
                servers = list(state.attached.servers.values()) if state.attached is not None else []
                if servers and all(s.problem or any(len(e.points) > 1 for e in s.engines.values()) for s in servers):
                    break
    finally:
        session.stop()
    return state


def _all_events(session) -> Iterator[Event]:
    while not session.ended:
        yield from session.poll()


def _served(args: argparse.Namespace) -> RunState:
    from kvtop.cli.terminal import interruptible
    from kvtop.run.session import RunSession
    from kvtop.state.model import RunState
    from kvtop.state.reduce import reduce

    spec = run_spec(args, args.workload, args.policy, args.allocator, run_dir=None, max_seconds=args.seconds)
    check_workload(spec.workload)
    session, state = RunSession(spec), RunState()
    session.start()
    try:
        with interruptible():
            while not session.ended:
                for event in session.poll(0.25):
                    reduce(state, event)
    finally:
        session.stop()
    return state
