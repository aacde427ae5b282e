"""``kvtop workloads``: the built-in workloads, the spec of one, and what specs are made of."""

from __future__ import annotations

import argparse
import json
from typing import Any

from kvtop.cli.run_options import add_json
from kvtop.cli.text import listing, output_width

DESCRIPTION = """\
List the built-in workloads, or print the spec of one: save it as a .toml file, change it and give it to -w, which also
takes a trace file (.jsonl, .csv, also .gz). Specs are explained in docs/workloads.md."""

EXAMPLES = """
kvtop workloads
kvtop workloads chat > my-chat.toml
kvtop workloads --pieces
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", metavar="NAME", help="print the spec of this one")
    parser.add_argument(
        "--pieces", action="store_true", help="list arrivals, structures and distributions, with options and defaults"
    )
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    from kvtop.engine.errors import UnknownName, UsageError
    from kvtop.workloads.builtins import BUILTINS, builtin_workloads

    if args.pieces and args.name is not None:
        raise UsageError("--pieces lists what specs are made of; leave out the name")
    if args.pieces:
        print(_pieces(as_json=args.json))
        return 0
    if args.name is None:
        found = builtin_workloads()
        print(
            json.dumps(found, indent=2)
            if args.json
            else f"built-in workloads (-w):\n{listing(found, width=output_width())}"
        )
        return 0
    if args.name not in BUILTINS:
        raise UnknownName("built-in workload", args.name, BUILTINS)
    text = BUILTINS[args.name].path.read_text()
    print(json.dumps({"name": args.name, "spec": text}, indent=2) if args.json else text.rstrip())
    return 0


def _pieces(*, as_json: bool) -> str:
    from kvtop.workloads.generators.arrivals import ARRIVALS
    from kvtop.workloads.generators.distributions import DISTRIBUTIONS
    from kvtop.workloads.generators.structures import STRUCTURES

    groups: dict[str, dict[str, Any]] = {
        "structure": dict(STRUCTURES),
        "arrivals": dict(ARRIVALS),
        "distribution": dict(DISTRIBUTIONS),
    }
    if as_json:
        told = {
            group: {
                name: {
                    "summary": piece.summary,
                    "options": {key: _default(value) for key, value in piece.options.items()},
                }
                for name, piece in pieces.items()
            }
            for group, pieces in groups.items()
        }
        return json.dumps(told, indent=2)
    titles = {
        "structure": 'structures (structure = "..."): what begins when a session arrives',
        "arrivals": 'arrivals (arrivals = { kind = "..." }): when sessions begin',
        "distribution": 'distributions ({ kind = "..." }, a number, or [low, high]): lengths, times, counts',
    }
    return "\n\n".join(
        f"{titles[group]}\n{listing({name: _line(piece) for name, piece in pieces.items()}, width=output_width())}"
        for group, pieces in groups.items()
    )


def _line(piece: Any) -> str:
    options = ", ".join(
        key if value in (..., None) else f"{key} = {_toml(value)}" for key, value in piece.options.items()
    )
    return f"{piece.summary} ({options})" if options else piece.summary


def _default(value: Any) -> Any:
    return "required" if value is ... else value


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_toml(item)}" for key, item in value.items()) + " }"
    return json.dumps(value)
