"""``kvtop trace``: what a trace file holds, and the same trace in another format. One line here for each subcommand."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from kvtop.cli.parser import Parser
from kvtop.cli.text import listing
from kvtop.engine.errors import UnknownName

SUBCOMMANDS: dict[str, tuple[str, str]] = {
    "info": (
        "kvtop.cli.trace_info",
        "what a trace holds: rows, arrivals, lengths, ids, sessions, what to know about it",
    ),
    "hit-rate": ("kvtop.cli.trace_hit_rate", "how many of its blocks a prefix cache can serve, by size and policy"),
    "convert": ("kvtop.cli.trace_convert", "write a trace in another format: sliced, scaled, tiled"),
    "formats": ("kvtop.cli.trace_formats", "the formats that are read and written"),
}
"""Name -> (module with ``add_arguments`` and ``run``, like a command's; one line of help)."""

DESCRIPTION = f"""\
Look at recorded traces of any known format, before or instead of replaying them.

{listing({name: line for name, (_, line) in SUBCOMMANDS.items()})}

kvtop trace SUBCOMMAND --help shows a subcommand's options."""

EXAMPLES = """
kvtop trace formats
kvtop trace info conversation_trace.jsonl.gz
kvtop trace info sessions/ --format weka --json
kvtop trace hit-rate conversation_trace.jsonl.gz --svg curves.svg
kvtop trace convert trace.csv -o part.jsonl --to mooncake --start 600 --end 1200
kvtop trace convert trace.jsonl -o twice.jsonl --tile 2
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    names = "{" + ",".join(SUBCOMMANDS) + "}"
    parser.add_argument("subcommand", metavar=names, help="what to do")
    parser.add_argument(
        "rest", nargs=argparse.REMAINDER, action=_ParseRest, metavar="...", help="its file, and its options"
    )


def run(args: argparse.Namespace) -> int:
    """Run the subcommand."""
    return import_module(SUBCOMMANDS[args.subcommand][0]).run(args.rest)


class _ParseRest(argparse.Action):
    """Replaces the words after the subcommand by what its own parser makes of them."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        name = namespace.subcommand
        if name not in SUBCOMMANDS:
            raise UnknownName("trace subcommand", name, SUBCOMMANDS)
        module_name, help_line = SUBCOMMANDS[name]
        module = import_module(module_name)
        description = getattr(module, "DESCRIPTION", help_line[0].upper() + help_line[1:] + ".")
        own = Parser(f"kvtop trace {name}", description, getattr(module, "EXAMPLES", ""))
        module.add_arguments(own)
        namespace.rest = own.parse(list(values or ()))
