"""Options of simulated runs, for every command that runs one."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvtop.cli.values import count, fraction
from kvtop.engine.errors import UsageError

if TYPE_CHECKING:
    from kvtop.cost.choose import Simulated

OPTIONS = {"gpu": "--gpu", "tp": "--tp", "utilisation": "--utilisation"}


def add_sim_options(parser: argparse.ArgumentParser) -> None:
    """What ``--executor sim`` simulates."""
    group = parser.add_argument_group("simulation (--executor sim)")
    group.add_argument(
        "--gpu", metavar="NAME", help="GPU preset (`kvtop models` lists them; default h100-80gb, model llama-3.1-8b)"
    )
    group.add_argument("--tp", type=count, default=1, metavar="N", help="tensor-parallel GPUs (default 1)")
    group.add_argument(
        "--utilisation", "--utilization", type=fraction, default=0.9, metavar="X",
        help="share of the GPU's memory for weights and cache (default 0.9)",
    )  # fmt: skip
    group.add_argument(
        "--cost-model", type=Path, metavar="FILE",
        help="constants that `kvtop calibrate` fitted, instead of a preset's (with a real model: what they predict for "
        "each step is told beside what it took)",
    )  # fmt: skip


def simulated(args: argparse.Namespace) -> Simulated | None:
    """What is simulated; None under another executor.

    Raises:
        UsageError: an option of simulated runs without ``--executor sim``; see ``kvtop.cost.choose``.
    """
    if args.executor != "sim":
        given = [flag for dest, flag in OPTIONS.items() if dest in args.given]
        if given:
            raise UsageError(
                f"{given[0]}: says what is simulated; add --executor sim (the executor is {args.executor})"
            )
        return None
    if "device" in args.given:
        raise UsageError("--device: a simulated run uses none; --gpu names the one that is simulated")
    from kvtop.cost.choose import choose

    return choose(
        model=args.model,
        gpu=args.gpu,
        tp=args.tp,
        utilisation=args.utilisation,
        cost_model=args.cost_model,
        kv_dtype=args.kv_dtype,
        kv_memory_bytes=args.kv_memory,
    )


def predicted_by(args: argparse.Namespace) -> dict[str, Any]:
    """The cost model to be told beside a real run, as plain data.

    Raises:
        UsageError: no such file, no cost model; an executor without a model.
    """
    import msgspec

    from kvtop.cost.files import read_cost_file

    if args.executor != "torch":
        raise UsageError(f"--cost-model: the executor {args.executor} computes nothing that could be predicted")
    return msgspec.to_builtins(read_cost_file(args.cost_model).cost)
