"""kvtop once: one state of a run, without a screen."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from kvtop.cli.run_options import add_engine_options, add_workload_options, check_workload, run_spec
from kvtop.cli.values import count_or_zero, positive

if TYPE_CHECKING:
    from kvtop.engine.events import Event
    from kvtop.state.model import RunState

DESCRIPTION = """\
Print the numbers of the overview once: of a recorded run at a step of it, or of a workload served for a few seconds.
They are those that the TUI shows at that moment, by the same names."""

EXAMPLES = """
kvtop once results/tuesday --step 1200 --json
kvtop once -w chat --executor sim --seconds 60 --json
"""
SECONDS = 5.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", nargs="?", type=Path, metavar="RUN", help="a recorded run (default: serve a workload)")
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


def run(args: argparse.Namespace) -> int:
    """Print one state; 1 when the run failed."""
    from kvtop.engine.errors import UsageError
    from kvtop.state.snapshot import snapshot

    if args.step is not None and args.run is None:
        raise UsageError("--step is a step of a recorded run: name the run")
    state = _recorded(args.run, args.step) if args.run is not None else _served(args)
    print(json.dumps(snapshot(state), indent=2, allow_nan=False) if args.json else as_text(state))
    return 1 if state.status == "failed" and args.run is None else 0


def as_text(state: RunState) -> str:
    """A number a line."""
    from kvtop.state.numbers import NUMBERS
    from kvtop.tui.text import measured

    rows = [(number.name, measured(number.read(state), number.unit)) for number in NUMBERS.values()]
    return "\n".join([f"{'step':<36} {state.step:,}", *(f"{name:<36} {value}" for name, value in rows)])


def _recorded(run: Path, step: int | None) -> RunState:
    from kvtop.engine.events import StepEvent
    from kvtop.run.recorded import RecordedSession
    from kvtop.state.model import RunState
    from kvtop.state.reduce import reduce

    session, state = RecordedSession(run), RunState()
    session.start()
    for event in _all_events(session):
        if step is not None and isinstance(event, StepEvent) and event.step > step:
            break
        reduce(state, event)
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
