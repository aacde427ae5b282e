"""``kvtop trace info``: what a trace holds, with the unit of every number."""

from __future__ import annotations

import argparse
import json
from typing import Any

from kvtop.cli.run_options import add_json
from kvtop.cli.text import MISSING, harmless, percent, significant, table
from kvtop.cli.trace_options import add_trace_options, read_options, sliced
from kvtop.workloads.words import counted

DESCRIPTION = """\
What a trace holds: rows, span and arrivals, lengths, block ids, sessions, and what a reader should know about it.
The format is recognised; `kvtop trace formats` lists those that are."""

EXAMPLES = """
kvtop trace info conversation_trace.jsonl.gz
kvtop trace info trace.csv --format azure --json
kvtop trace info trace_0001.json.gz trace_0006.json.gz    several sessions at once
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_trace_options(parser)
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Read the trace and print its figures."""
    from kvtop.trace_stats import describe
    from kvtop.workloads.formats.registry import load_trace

    found = describe(sliced(load_trace(args.files, args.format, read_options(args)), args))
    print(json.dumps(found, indent=2, allow_nan=False) if args.json else render(found))
    return 0


def render(found: dict[str, Any]) -> str:
    """The figures as text."""
    lines = [f"format      {found['format']}    sha256 {(found['trace_sha256'] or MISSING)[:16]}"]
    dropped = f"    ({found['rows_dropped']:,} dropped)" if found["rows_dropped"] else ""
    lines.append(f"rows        {found['rows']:,}{dropped}")
    lines += _arrival_lines(found["arrivals"])
    lines += _id_lines(found["ids"])
    sessions = found["sessions"]
    if sessions is not None:
        lines.append(
            f"sessions    {sessions['sessions']:,}, {counted(sessions['sub_agents'], 'sub-agent')} with "
            f"{counted(sessions['rows_of_sub_agents'], 'row')}, "
            f"{counted(sessions['rows_without_session'], 'row')} without a session"
        )
    if found["classes"]:
        lines.append("classes     " + ", ".join(f"{name} {num:,}" for name, num in found["classes"].items()))
    lines += ["", _lengths(found), f"tokens counted by {found['tokens_counted_by']}"]
    lines += [f"note: {notice}" for notice in found["notices"]]
    return harmless("\n".join(lines))


def _arrival_lines(arrivals: dict[str, Any]) -> list[str]:
    unit = f", in {arrivals['unit_in_file']}" if arrivals["unit_in_file"] else ""
    first = f"arrivals    {arrivals['source']}{unit}"
    if "span_s" not in arrivals:
        return [f"arrivals    {arrivals['source']}"]
    most = arrivals["most_rows_at_one_time"]
    return [
        f"{first}: {counted(arrivals['distinct_times'], 'distinct time')}, up to {counted(most, 'row')} at one",
        f"span        {arrivals['span_s']:,.6f} s    rate {significant(arrivals['rate_per_s'], 4)} /s    "
        f"CV of gaps {significant(arrivals['gap_cv'], 4)}    longest gap {significant(arrivals['longest_gap_s'], 4)} s",
    ]


def _id_lines(ids: dict[str, Any] | None) -> list[str]:
    if ids is None:
        return ["ids         none: nothing is known about shared prefixes"]
    rounding = {"ceil": "a partial last block has one", "floor": "full blocks only", None: MISSING}[ids["rounding"]]
    seen = percent(ids["seen_before_share"])
    tokens = counted(ids["block_tokens"], "prompt token")
    return [
        f"ids         one for each {tokens} ({ids['rounding'] or MISSING}: {rounding})",
        f"            {ids['distinct']:,} distinct of {ids['total']:,}, {seen} seen before",
    ]


def _lengths(found: dict[str, Any]) -> str:
    rows = [
        ("prompt, tokens", found["prompt_tokens"]),
        ("output, tokens", found["output_tokens"]),
    ]
    if found["sessions"] is not None:
        rows += [("turns a session", found["sessions"]["turns"]), ("think time, s", found["sessions"]["think_s"])]
    columns = ("n", "mean", "p50", "p95", "p99", "max", "sum")
    cells = [[name, *(_cell(values, column) for column in columns)] for name, values in rows]
    return table(cells, header=["", *columns])


def _cell(values: dict[str, Any] | None, column: str) -> str:
    if values is None:
        return MISSING
    value = values[column]
    return f"{value:,}" if isinstance(value, int) else f"{value:,.1f}".removesuffix(".0")
