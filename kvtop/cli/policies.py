"""``kvtop policies``: what can be chosen, one line each."""

from __future__ import annotations

import argparse
import json

from kvtop.cli.run_options import add_json
from kvtop.cli.text import listing, output_width
from kvtop.engine.config import ALLOCATORS

DESCRIPTION = "List the policies and allocators that can be chosen, one line each."

ALLOCATOR_MEANINGS = {
    "paged": "blocks anywhere in the pool, shared by refcount, prefix caching",
    "contiguous-max": "baseline: each request reserves max_model_len in one piece, nothing is shared",
    "contiguous-pow2": "baseline: one piece of the next power of two of the true length (buddy system)",
    "contiguous-oracle": "baseline: one piece of exactly the length the request will reach",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_json(parser)


def allocators() -> dict[str, str]:
    """Name -> one line, for every allocator this version has."""
    return {name: ALLOCATOR_MEANINGS.get(name, "") for name in ALLOCATORS}


TITLES = {
    "queue": "queue policies (-p): who is admitted first",
    "batch": "batch policies (--batch-policy): what a step's budget goes to first",
    "victim": "victim policies (--victim): who is preempted",
    "eviction": "eviction policies (--eviction): which idle block is taken",
    "allocator": "allocators (--allocator)",
}


def run(args: argparse.Namespace) -> int:
    from kvtop.engine.policies.registry import BATCH, EVICTION, QUEUE, VICTIM

    groups = {kind.kind: kind.meanings() for kind in (QUEUE, BATCH, VICTIM, EVICTION)} | {"allocator": allocators()}
    if args.json:
        print(json.dumps(groups, indent=2))
        return 0
    width = output_width()
    print("\n\n".join(f"{TITLES[name]}\n{listing(group, width=width)}" for name, group in groups.items()))
    print("\nAny but the allocator may also come from a file: -p path/to/file.py:NAME")
    return 0
