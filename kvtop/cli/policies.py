"""``kvtop policies``: what can be chosen, one line each."""

from __future__ import annotations

import argparse
import json

from kvtop.cli.run_options import add_json
from kvtop.cli.text import listing

DESCRIPTION = "List the queue policies (-p), eviction policies (--eviction) and allocators (--allocator)."

ALLOCATORS = {
    "paged": "blocks anywhere in the pool, shared by refcount, prefix caching",
    "contiguous-max": "baseline: each request reserves max_model_len in one piece, nothing is shared",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    from kvtop.engine.policies.registry import eviction_policies, queue_policies

    groups = {"queue": queue_policies(), "eviction": eviction_policies(), "allocator": ALLOCATORS}
    if args.json:
        print(json.dumps(groups, indent=2))
    else:
        titles = {
            "queue": "queue policies (-p)",
            "eviction": "eviction policies (--eviction)",
            "allocator": "allocators (--allocator)",
        }
        print("\n\n".join(f"{titles[name]}:\n{listing(group)}" for name, group in groups.items()))
    return 0
