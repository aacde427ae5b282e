"""``kvtop workloads``: the built-in workloads, one line each."""

from __future__ import annotations

import argparse
import json

from kvtop.cli.run_options import add_json
from kvtop.cli.text import listing

DESCRIPTION = (
    "List the built-in workloads. -w also takes a TOML workload spec or a trace file (.jsonl, .csv, also .gz)."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    from kvtop.workloads.load import builtin_workloads

    found = builtin_workloads()
    print(json.dumps(found, indent=2) if args.json else f"built-in workloads (-w):\n{listing(found)}")
    return 0
