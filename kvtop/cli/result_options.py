"""What is kept of runs, and how their requests are judged: options that ``bench`` and ``compare`` share."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kvtop.cli.values import count_or_zero, one_of

if TYPE_CHECKING:
    from kvtop.analysis.compare import Options
    from kvtop.bench import Outcome

PHASES = ("warmup", "steady", "drain")


def add_run_result_options(parser: argparse._ActionsContainer) -> None:
    """For commands that make runs."""
    parser.add_argument(
        "--tokens", action="store_true", help="also write when each token was emitted (tokens.parquet, large)"
    )


def add_judging_options(parser: argparse.ArgumentParser) -> None:
    """For commands that show comparisons."""
    group = parser.add_argument_group("what is reported (docs/statistics.md)")
    group.add_argument(
        "--slo", action="append", metavar="OBJECTIVES",
        help="goodput: requests that meet all, e.g. ttft<2s,tpot<50ms; of a class: chat:ttft<1s (may be repeated)",
    )  # fmt: skip
    group.add_argument(
        "--warmup", type=count_or_zero, metavar="N",
        help="leave the first N requests by arrival out of latencies and goodput (default: as the runs were made, 0)",
    )  # fmt: skip
    group.add_argument(
        "--phase", action="append", type=one_of("phase", PHASES), metavar="PHASE",
        help=f"only requests of this phase enter latencies and goodput: {', '.join(PHASES)} (default: all)",
    )  # fmt: skip
    group.add_argument(
        "--primary", metavar="METRICS",
        help="what the comparison is about, e.g. ttft_p99,goodput_s: tested over replicates (docs/statistics.md)",
    )  # fmt: skip


def run_values(args: argparse.Namespace) -> dict[str, Any]:
    """What a RunSpec is told of them, checked.

    Raises:
        UsageError: objectives that cannot be read.
    """
    from kvtop.analysis.slo import parse_slo

    return {
        "tokens": args.tokens,
        "slo": parse_slo(args.slo).texts if args.slo else [],
        "warmup": args.warmup or 0,
    }


def complete_kept(args: argparse.Namespace, outcomes: Sequence[Outcome]) -> None:
    """Give runs that were there already what is asked for now: another judgement of their requests, token times.

    Raises:
        FileError: the disk refuses.
    """
    from kvtop.analysis.slo import parse_slo
    from kvtop.results.judge import judge_run
    from kvtop.results.manifest import read_manifest
    from kvtop.results.tokens import write_tokens

    slo = parse_slo(args.slo) if args.slo else None
    for run_dir in (outcome.run_dir for outcome in outcomes if outcome.status == "kept"):
        if run_dir is None:
            continue
        if slo is not None and read_manifest(run_dir).get("slo") != slo.texts:
            judge_run(run_dir, slo)
        if args.tokens and not (run_dir / "tokens.parquet").exists():
            write_tokens(run_dir)


def comparison_options(args: argparse.Namespace, *, force: bool = False) -> Options:
    """What a comparison is asked for, checked.

    Raises:
        UsageError: objectives that cannot be read.
        UnknownName: a primary metric that does not exist, with the nearest one.
    """
    from kvtop.analysis.compare import Options
    from kvtop.analysis.measures import PRIMARY
    from kvtop.analysis.slo import parse_slo
    from kvtop.analysis.summary import Selection

    slo = parse_slo(args.slo) if args.slo else None
    phases = tuple(phase for phase in PHASES if args.phase is None or phase in args.phase)
    primary = PRIMARY if args.primary is None else _primary(args.primary)
    if args.primary is None and slo is not None:
        primary = (*PRIMARY, "goodput_s")
    return Options(force=force, slo=slo, selection=Selection(phases, args.warmup), primary=primary)


def _primary(text: str) -> tuple[str, ...]:
    from kvtop.analysis.measures import BY_KEY
    from kvtop.engine.errors import UnknownName, UsageError

    names = {key.removesuffix("_ns"): key for key in BY_KEY}
    found: dict[str, None] = {}
    for name in (part.strip() for part in text.split(",")):
        if not name:
            raise UsageError(f"--primary {text}: an empty name, expected metrics such as ttft_p99,output_tokens_s")
        if name.removesuffix("_ns") not in names:
            raise UnknownName("metric in --primary", name, names)
        found[names[name.removesuffix("_ns")]] = None
    return tuple(found)
