"""kvtop serve: the TUI in a browser on this machine."""

from __future__ import annotations

import argparse
import shlex
import socket
import sys

DESCRIPTION = """\
Show the TUI in a browser, on the loopback interface only: whoever can open the page can drive the engine. Every page
starts a run of its own. Needs the package textual-serve (pip install 'kvtop[serve]')."""

EXAMPLES = """
kvtop serve                                       what plain `kvtop` shows, at http://127.0.0.1:8000
kvtop serve --port 8001 live -w chat -m tiny
kvtop serve replay results/tuesday
"""

SHOWN = ("live", "replay")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--port", type=port, default=8000, metavar="N", help="of the page (default 8000)")
    parser.add_argument(
        "command", nargs=argparse.REMAINDER, metavar="COMMAND ...", help="live (default) or replay, with their options"
    )


def port(text: str) -> int:
    """A port that a user may listen on."""
    if not text.isdigit() or not 1 <= int(text) <= 65_535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port (expected 1 to 65535)")
    return int(text)


def run(args: argparse.Namespace) -> int:
    """Serve until Ctrl-C."""
    from kvtop.engine.errors import UnknownName, UsageError

    words = args.command[1:] if args.command[:1] == ["--"] else args.command
    if words and words[0] not in SHOWN:
        raise UnknownName("command to serve", words[0], SHOWN)
    try:
        from kvtop.tui.page import HOST, Page
    except ImportError:
        raise UsageError("kvtop serve needs the package textual-serve: pip install 'kvtop[serve]'") from None
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, args.port))
        except OSError as error:
            raise UsageError(f"port {args.port} cannot be used: {error.strerror or error}") from None
    command = shlex.join([sys.executable, "-m", "kvtop", *(words or ["live"])])
    Page(command, args.port).serve()
    return 0
