"""The console script: picks the command, runs it, turns every outcome into an exit code.

0 ok, 1 measured failure, 2 usage or not comparable, 130 interrupted. Loads no command until it is known which.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module

from kvtop.cli.registry import COMMANDS, DEFAULT_COMMAND
from kvtop.engine.errors import KvtopError, UnknownName

EXIT_INTERRUPTED = 130
EXIT_BUG = 70  # EX_SOFTWARE: a fault of kvtop itself, never the user's input

ABOUT = "htop for the KV cache: see every block, explain every decision, compare every policy"


def main(argv: Sequence[str] | None = None) -> int:
    """Run kvtop with ``argv`` (default: the process's arguments) and return the exit code. Never raises a traceback."""
    _open_missing_streams()
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        code = _dispatch(words)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        return _reader_went_away()
    except SystemExit as stop:  # argparse, after --help
        return stop.code if isinstance(stop.code, int) else 0
    except Exception as error:
        if debugging():
            raise
        return _report(error)


def _open_missing_streams() -> None:
    """Standard streams that the caller closed (``>&-``) lead nowhere; a pipe of ours must not get their numbers."""
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 (as long as the process)


def debugging() -> bool:
    """Whether the user asked for tracebacks (KVTOP_DEBUG)."""
    return os.environ.get("KVTOP_DEBUG", "") not in ("", "0")


def _dispatch(words: list[str]) -> int:
    if words and words[0] in ("-h", "--help", "help"):
        if words[0] == "help" and len(words) > 1:
            return _dispatch([words[1], "--help"])
        print(help_text())
        return 0
    if words and words[0] in ("-V", "--version"):
        print(f"kvtop {version()}")
        return 0
    name = words.pop(0) if words and not words[0].startswith("-") else DEFAULT_COMMAND
    if name not in COMMANDS:
        raise UnknownName("command", name, COMMANDS)
    return _run_command(name, words)


def _run_command(name: str, words: list[str]) -> int:
    from kvtop.cli.parser import Parser

    module_name, help_line = COMMANDS[name]
    module = import_module(module_name)
    description = getattr(module, "DESCRIPTION", help_line[0].upper() + help_line[1:] + ".")
    parser = Parser(f"kvtop {name}", description, getattr(module, "EXAMPLES", ""))
    module.add_arguments(parser)
    if not getattr(module, "SETTINGS", False):
        return module.run(parser.parse(words))
    from kvtop.cli.config import run_with_settings

    return run_with_settings(parser, name, words, module.run)


def help_text() -> str:
    """What ``kvtop --help`` prints."""
    from kvtop.cli.text import listing

    return f"""\
kvtop: {ABOUT}

usage: kvtop [COMMAND] [OPTIONS]       (no command: {DEFAULT_COMMAND})

commands:
{listing({name: line for name, (_, line) in COMMANDS.items()})}

  kvtop COMMAND --help shows a command's options with examples.

options:
  -h, --help     this text
  -V, --version  the version

environment:
  NO_COLOR       no colours
  KVTOP_DEBUG=1  show tracebacks

exit codes: 0 ok, 1 measured failure, 2 usage error or runs not comparable, 130 interrupted"""


def version() -> str:
    """The installed version."""
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as installed

    try:
        return installed("kvtop")
    except PackageNotFoundError:
        return "(not installed)"


def _report(error: Exception) -> int:
    """One line on stderr, whatever went wrong."""
    from kvtop.cli.text import harmless

    if isinstance(error, KvtopError):
        message, code = str(error), error.exit_code
    elif isinstance(error, OSError):
        place = f"{error.filename}: " if error.filename else ""
        message, code = f"{place}{error.strerror or error}", 1
    else:
        message = (
            f"internal error: {type(error).__name__}: {error} (KVTOP_DEBUG=1 shows the traceback; please report it)"
        )
        code = EXIT_BUG
    print(f"kvtop: {harmless(' '.join(message.split()))}", file=sys.stderr)
    return code


def _reader_went_away() -> int:
    """``kvtop ... | head``: nothing more can be said; keep Python from complaining at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


if __name__ == "__main__":
    sys.exit(main())
