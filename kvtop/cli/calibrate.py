"""``kvtop calibrate``: the constants of a cost model from measured steps, and how well they fit."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from kvtop.cli.run_options import add_json
from kvtop.cli.text import significant, table
from kvtop.cli.values import count, one_of
from kvtop.engine.errors import UsageError

if TYPE_CHECKING:
    from kvtop.cost.calibrate import Calibration
    from kvtop.cost.fit import StepErrors

DESCRIPTION = """\
Fit what a step costs (docs/simulation.md) to the steps of runs with a real model, or to a recorded table (CSV: tokens,
batch, context, ms), and print the error. `--cost-model FILE` then simulates with these constants."""

EXAMPLES = """
kvtop bench -w calibration -p fcfs -o results/real
kvtop calibrate results/real -o cost.json
kvtop calibrate times.csv --model llama-2-70b --tp 8 -o a100.json
kvtop bench -w azure-conv -p fcfs -p sjf --executor sim --cost-model cost.json -o results/simulated
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from kvtop.calc import DTYPE_BYTES

    parser.add_argument(
        "sources", nargs="+", type=Path, metavar="RUN",
        help="run directory, a directory of runs, or a .csv or .csv.gz table",
    )  # fmt: skip
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="write the cost model there")
    parser.add_argument(
        "-m",
        "--model",
        help="preset, Hugging Face directory or config.json (default: the runs' own, where it is known)",
    )
    parser.add_argument("--tp", type=count, default=1, metavar="N", help="tensor-parallel GPUs of a table (default 1)")
    parser.add_argument(
        "--dtype", type=one_of("dtype", tuple(DTYPE_BYTES)), metavar="D",
        help="of weights and cache of a table (default fp16)",
    )  # fmt: skip
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Fit, print, write."""
    from kvtop.cost.calibrate import calibrate
    from kvtop.cost.files import write_cost_file

    if args.output is not None and not args.output.parent.is_dir():
        raise UsageError(f"{args.output.parent}: no such directory to write {args.output.name} to")
    found = calibrate(args.sources, model=args.model, tp=args.tp, dtype=args.dtype)
    if args.output is not None:
        write_cost_file(args.output, found.file)
    print(json.dumps(found.as_json(), indent=2) if args.json else as_text(found, args.output))
    return 0


def as_text(found: Calibration, output: Path | None) -> str:
    """Constants, errors, and what they do not say."""
    machine, fit = found.file.machine, found.fit
    rows = [
        ["  weights, read once a step", rate(machine.weight_bytes_s, "B/s")],
        [f"  matrices, from {fit.crossover_tokens:,} tokens a step on", rate(machine.flops_s, "FLOP/s")],
        ["  K and V, read once a chunk", rate(machine.kv_bytes_s, "B/s")],
        [f"  attention, from {fit.crossover_queries:,} query tokens on", rate(machine.attention_flops_s, "FLOP/s")],
        ["  every step", f"{machine.step_ns / 1e6:.3f} ms"],
        ["  every sequence of a step", f"{machine.seq_ns / 1e3:.1f} us"],
        ["  every request", f"{machine.ingest_ns / 1e6:.3f} ms"],
    ]
    header = ["error of a step", "steps", "p50", "p90", "sum of all"]
    errors = [_errors("fitted", fit.fitted)]
    if fit.held_out is not None:
        errors.append(_errors("held out", fit.held_out))
    lines = [found.file.name, "", table(rows), "", table(errors, header=header)]
    lines += ["", *(f"  {note}" for note in found.notes)]
    if output is not None:
        lines.append(f"  written to {output}")
    return "\n".join(lines).rstrip()


def rate(value: float, unit: str) -> str:
    """``1.41 TB/s``; a rate that stands for "no cost" in words."""
    from kvtop.cost.fit import FREE

    if value >= FREE:
        return "no cost seen"
    for scale, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M")):
        if value >= scale:
            return f"{significant(value / scale)} {prefix}{unit}"
    return f"{significant(value)} {unit}"


def _errors(label: str, errors: StepErrors) -> list[str]:
    return [label, f"{errors.num_steps:,}", f"{errors.p50:.1%}", f"{errors.p90:.1%}", f"{errors.total:+.1%}"]
