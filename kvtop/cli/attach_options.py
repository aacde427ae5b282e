"""Options of the commands that look at running servers: attach, doctor, once."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING

from kvtop.cli.values import positive

if TYPE_CHECKING:
    from kvtop.attach.session import AttachSpec

KEY_VARIABLE = "KVTOP_API_KEY"


def add_attach_options(parser: argparse.ArgumentParser) -> None:
    """Where KV events come from, the key, how often and how long."""
    group = parser.add_argument_group("servers")
    group.add_argument(
        "--kv-events", action="append", default=[], metavar="TCP",
        help="endpoint of a server's KV events, tcp://HOST:PORT; once for each rank that has one of its own",
    )  # fmt: skip
    group.add_argument(
        "--kv-replay", action="append", default=[], metavar="TCP",
        help="its replay endpoint, to ask for events that were lost; in the order of --kv-events",
    )  # fmt: skip
    group.add_argument("--api-key", metavar="KEY", help=f"sent as a bearer token (or set {KEY_VARIABLE})")
    group.add_argument("--interval", type=positive, default=1.0, metavar="S", help="seconds between looks (default 1)")
    group.add_argument("--timeout", type=positive, default=5.0, metavar="S", help="of one look (default 5)")


def attach_spec(args: argparse.Namespace, urls: list[str]) -> AttachSpec:
    """What the options say, checked.

    Raises:
        UsageError: no source, a malformed address, more replay endpoints than event endpoints.
    """
    from kvtop.attach.address import address_of
    from kvtop.attach.kv_listen import check_endpoint
    from kvtop.attach.session import AttachSpec
    from kvtop.attach.tokenize import tokenizer_file
    from kvtop.engine.errors import UsageError

    servers = [address_of(url) for url in urls]
    if twice := next((a.shown for i, a in enumerate(servers) if a in servers[:i]), None):
        raise UsageError(f"{twice} is given twice")
    events = [check_endpoint(text) for text in args.kv_events]
    replays = [check_endpoint(text) for text in args.kv_replay]
    if len(replays) > len(events):
        raise UsageError(f"{len(replays)} --kv-replay for {len(events)} --kv-events: expected at most one each")
    if len(set(events)) < len(events):
        raise UsageError("an endpoint of --kv-events is given twice")
    if not servers and not events:
        raise UsageError("no server is given, expected a URL like http://127.0.0.1:8000")
    tokenizer = getattr(args, "tokenizer", None)
    return AttachSpec(
        servers=servers,
        kv_events=events,
        replays=replays + [""] * (len(events) - len(replays)),
        interval_s=args.interval,
        timeout_s=args.timeout,
        api_key=_sendable(args.api_key or os.environ.get(KEY_VARIABLE) or ""),
        tokenizer=None if tokenizer is None else tokenizer_file(tokenizer),
        record=getattr(args, "record", None),
        keep_tokens=getattr(args, "keep_tokens", False),
    )


def _sendable(key: str) -> str | None:
    """The key without the line break that files end with; one that no header can carry is refused, never shown."""
    from kvtop.engine.errors import UsageError

    key = key.strip()
    if not (key.isascii() and key.isprintable()):
        raise UsageError(f"the API key ({KEY_VARIABLE} or --api-key) holds a character that no HTTP header can carry")
    return key or None
