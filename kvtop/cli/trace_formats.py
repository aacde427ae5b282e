"""``kvtop trace formats``: the trace formats that are read and written, a line each."""

from __future__ import annotations

import argparse
import json

from kvtop.cli.run_options import add_json
from kvtop.cli.text import listing, output_width

DESCRIPTION = "List the trace formats. A file's format is recognised by what it shows; --format names it otherwise."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Print name, looks and time unit of every format."""
    from kvtop.workloads.formats.registry import FORMATS

    if args.json:
        values = [
            {
                "name": found.name,
                "summary": found.summary,
                "time_unit": found.clock.unit if found.clock else None,
                "written": found.write is not None,
            }
            for found in FORMATS.values()
        ]
        print(json.dumps(values, indent=2))
        return 0
    written = ", ".join(found.name for found in FORMATS.values() if found.write is not None)
    entries = {found.name: found.summary for found in FORMATS.values()}
    print(f"read:\n{listing(entries, width=output_width())}\n\nwritten (kvtop trace convert --to): {written}")
    return 0
