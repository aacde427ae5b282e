"""``kvtop live``: the TUI on a running engine; without a terminal the same run, headless and bounded."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvtop.cli.display_options import add_display_options, display
from kvtop.cli.metrics_options import add_metrics_options, open_exporter, session_maker
from kvtop.cli.run_options import add_engine_options, add_workload_options, check_workload, run_spec
from kvtop.cli.terminal import ProgressLine, can_open_tui, interruptible
from kvtop.cli.values import positive
from kvtop.run.spec import RunSpec

if TYPE_CHECKING:
    from kvtop.bench.runner import MakeSession

DESCRIPTION = """\
Serve a workload and watch every KV block. Without a terminal the same thing runs headless for --seconds and prints the
summary."""

EXAMPLES = """
kvtop                                            default model, default workload
kvtop live -w mooncake-conversation -p lpm --length-scale 0.0625 --num-blocks 512
kvtop live -w my-trace.jsonl.gz -m ./my-model --kv-memory 2GiB --record results/tuesday
kvtop live --executor null | cat                 headless, a simulated executor
"""

SETTINGS = True
HEADLESS_SECONDS = 20.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-w", "--workload", default="default", metavar="W", help="built-in name (`kvtop workloads`) or trace file"
    )
    parser.add_argument(
        "-p", "--policy", default="fcfs", metavar="P", help="queue policy (`kvtop policies`; default fcfs)"
    )
    parser.add_argument("--allocator", default="paged", metavar="A", help="see `kvtop policies` (default paged)")
    parser.add_argument("--record", type=Path, metavar="DIR", help="keep the recording and the tables")
    parser.add_argument(
        "--seconds", type=positive, metavar="S",
        help=f"end after S seconds of the run's clock (default: never; {HEADLESS_SECONDS:g} without a terminal)",
    )  # fmt: skip
    parser.add_argument(
        "--slo", action="append", metavar="OBJECTIVES",
        help="objectives that requests are judged by, e.g. ttft<2s,tpot<50ms (as with kvtop bench; may be repeated)",
    )  # fmt: skip
    parser.add_argument("--plain", action="store_true", help="a line of text a second instead of a screen")
    parser.add_argument("--paused", action="store_true", help="start paused (on a terminal)")
    add_workload_options(parser)
    add_engine_options(parser)
    add_metrics_options(parser)
    add_display_options(parser)


def run(args: argparse.Namespace) -> int:
    """Open the TUI, or run headless where there is no terminal."""
    from kvtop.engine.errors import UsageError

    on_screen = can_open_tui() and not args.plain
    if args.paused and not on_screen:
        raise UsageError("--paused needs a terminal: nobody could resume the run")
    seconds = args.seconds or (None if on_screen or args.plain else HEADLESS_SECONDS)
    run_dir = None if args.record is None else str(args.record)
    more = {"run_dir": run_dir, "max_seconds": seconds, "start_paused": args.paused, "slo": _objectives(args.slo)}
    spec = run_spec(args, args.workload, args.policy, args.allocator, **more)
    check_workload(spec.workload)
    with open_exporter(args) as exporter:
        make_session = session_maker(exporter)
        if args.plain:
            return _plain(spec, make_session)
        return _on_screen(spec, make_session, display(args)) if on_screen else _headless(spec, make_session)


def _on_screen(spec: RunSpec, make_session: MakeSession, drawn: dict[str, Any]) -> int:
    from kvtop.results.rundir import prepare_run_dir
    from kvtop.tui.launch import run_app

    if spec.run_dir is not None:
        prepare_run_dir(spec.run_dir)
    return run_app(make_session(spec), **drawn)


def _plain(spec: RunSpec, make_session: MakeSession) -> int:
    from kvtop.cli.plain import run_plain

    return run_plain(make_session(spec))


def _headless(spec: RunSpec, make_session: MakeSession) -> int:
    """Run to the end or the time limit, print what ``bench`` prints. Without --record nothing stays on disk."""
    import tempfile

    import msgspec

    if spec.run_dir is not None:
        return _run_and_report(spec, make_session)
    with tempfile.TemporaryDirectory(prefix="kvtop-") as folder:
        return _run_and_report(msgspec.structs.replace(spec, run_dir=folder), make_session)


def _run_and_report(spec: RunSpec, make_session: MakeSession) -> int:
    import sys

    from kvtop.bench import run_point
    from kvtop.cli.bench import EXIT_INTERRUPTED
    from kvtop.cli.bench_report import print_comparison, progress_text, report_failure

    line = ProgressLine()
    code = 0
    try:
        with interruptible():
            outcome = run_point(spec, lambda progress: line.show(progress_text(progress)), make_session=make_session)
    except KeyboardInterrupt:
        code = EXIT_INTERRUPTED
    else:
        code = {"complete": 0, "interrupted": EXIT_INTERRUPTED}.get(outcome.status, outcome.exit_code or 1)
        line.clear()
        for warning in outcome.warnings:
            print(f"kvtop: {warning}", file=sys.stderr)
        if outcome.status == "failed":
            report_failure(outcome)
    line.clear()
    print_comparison([Path(spec.run_dir or "")])
    return code


def _objectives(texts: list[str] | None) -> list[str]:
    """As a run keeps them.

    Raises:
        UsageError: they cannot be read.
    """
    from kvtop.analysis.slo import parse_slo

    return parse_slo(texts).texts if texts else []
