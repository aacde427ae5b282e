"""kvtop doctor: what a server lets kvtop see, what it does not, and which of its flags would."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from kvtop.cli.attach_options import add_attach_options, attach_spec
from kvtop.cli.values import positive

if TYPE_CHECKING:
    from kvtop.attach.checkup import Check

DESCRIPTION = """\
Look once at running servers and say what kvtop can show of them, what is missing, and which flag of theirs gives it.
Exit codes: 0 all there, 1 something is missing, or not known while kvtop's server loads its model, 2 unreachable, or no
server of vLLM, SGLang or kvtop."""

EXAMPLES = """
kvtop doctor http://127.0.0.1:8000
kvtop doctor http://127.0.0.1:8000 --kv-events tcp://127.0.0.1:5557
kvtop doctor gpu1:8000 --json
"""
_MARKS = {"on": "ok  ", "note": "    ", "missing": "MISS", "unknown": "?   ", "failed": "FAIL"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("urls", nargs="+", metavar="URL", help="server, http://HOST:PORT (or HOST:PORT)")
    add_attach_options(parser)
    parser.add_argument(
        "--wait", type=positive, default=3.0, metavar="S", help="seconds to wait for a KV event (default 3)"
    )
    parser.add_argument("--json", action="store_true", help="as JSON")


def run(args: argparse.Namespace) -> int:
    """Print the findings; the exit code is the worst of them."""
    from kvtop.attach.checkup import check_events, check_server, exit_code
    from kvtop.tui.text import clean

    spec = attach_spec(args, args.urls)
    checks: list[Check] = []
    for address in spec.servers:
        checks += check_server(address, api_key=spec.api_key, timeout_s=spec.timeout_s)
    kinds = {check.kind for check in checks if check.kind}
    checks += check_events(spec.kv_events, spec.replays, wait_s=args.wait, kinds=kinds)
    code = exit_code(checks)
    if args.json:
        rows = [
            {"source": c.source, "what": c.what, "state": c.state, "found": c.found, "remedy": c.remedy or None}
            for c in checks
        ]
        print(json.dumps({"checks": rows, "exit_code": code}, indent=2))
        return code
    width = max(len(check.what) for check in checks)
    source = ""
    for check in checks:
        if check.source != source:
            source = check.source
            print(clean(source))
        print(f"  {_MARKS[check.state]} {check.what:<{width}}  {clean(check.found)}")
        if check.remedy:
            print(f"       {'':<{width}}  -> {check.remedy}")
    return code
