"""Settings from a file and from the environment: an option's value is that of its flag, else KVTOP_<NAME>, else the
file's, else the default.

The file is TOML: a table a command (``[live]``), and ``[all]`` for options of that name of every command. Names are
those of the options, with ``_`` for ``-``. It is looked for at ``$XDG_CONFIG_HOME/kvtop/config.toml``
(``~/.config/kvtop/config.toml``), or where ``--config`` or ``KVTOP_CONFIG`` says.
"""

from __future__ import annotations

import argparse
import os
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvtop.cli.parser import Parser
from kvtop.engine.errors import UnknownName, UsageError
from kvtop.results.files import file_error

COMMON = "all"
_OWN = ("config", "show_config", "help")  # never from a file


@dataclass(frozen=True, slots=True)
class Setting:
    """A value, and where it comes from: ``--flag``, ``KVTOP_...``, the file, or ``default``."""

    name: str
    value: Any
    source: str


def add_config_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("settings (flag, else KVTOP_<NAME>, else file, else default)")
    group.add_argument("--config", type=Path, metavar="FILE", help=f"settings file (default {config_path({})})")
    group.add_argument("--show-config", action="store_true", help="print every value and where it comes from, and stop")


def config_path(environment: Mapping[str, str]) -> Path:
    """Where the file is, if nothing else is said."""
    home = environment.get("XDG_CONFIG_HOME")
    return (Path(home) if home else Path("~/.config")) / "kvtop" / "config.toml"


def apply_settings(
    parser: argparse.ArgumentParser, command: str, words: Sequence[str], environment: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Make file and environment the defaults of ``parser``; returns where each default comes from, by name.

    Raises:
        UsageError: a file that cannot be read or is no TOML, a value that means nothing; UnknownName: a name that no
            option has. Each names the file or the variable.
    """
    environment = os.environ if environment is None else environment
    actions = {action.dest: action for action in parser._actions if action.option_strings and action.dest not in _OWN}
    sources: dict[str, str] = {}
    path = _named(words) or environment.get("KVTOP_CONFIG")
    for table, values in _tables(path, environment, command):
        for name, value in values.items():
            key = name.replace("-", "_")
            if key not in actions:
                if table == COMMON:  # of another command
                    continue
                raise UnknownName(f"setting in [{command}]", name, actions)
            where = f"{path or config_path(environment)} [{table}]"
            parser.set_defaults(**{key: _value(actions[key], value, f"{where} {name}")})
            sources[key] = where
    for key, action in actions.items():
        variable = f"KVTOP_{key.upper()}"
        if variable in environment:
            parser.set_defaults(**{key: _value(action, environment[variable], variable)})
            sources[key] = variable
    return sources


def run_with_settings(
    parser: Parser, command: str, words: Sequence[str], run: Callable[[argparse.Namespace], int]
) -> int:
    """Parse ``words`` over file and environment, then run; with ``--show-config`` print the values instead."""
    add_config_options(parser)
    sources = apply_settings(parser, command, words)
    args = parser.parse(words)
    if args.show_config:
        print(as_text(settings(args, sources)))
        return 0
    return run(args)


def settings(args: argparse.Namespace, sources: Mapping[str, str]) -> list[Setting]:
    """Every value of ``args`` and its source, by name. ``args.given`` holds those that flags named."""
    values = {key: value for key, value in vars(args).items() if key not in (*_OWN, "given")}
    given = getattr(args, "given", frozenset())

    def source(key: str) -> str:
        return f"--{key.replace('_', '-')}" if key in given else sources.get(key, "default")

    return [Setting(key, value, source(key)) for key, value in sorted(values.items())]


def as_text(found: Sequence[Setting]) -> str:
    """A line a setting: name, value, source."""
    width = max(len(setting.name) for setting in found)
    values = ["not set" if setting.value is None else str(setting.value) for setting in found]
    room = max(map(len, values))
    return "\n".join(
        f"{setting.name:<{width}}  {value:<{room}}  {setting.source}"
        for setting, value in zip(found, values, strict=True)
    )


def _named(words: Sequence[str]) -> str | None:
    """The file that ``--config`` names."""
    for i, word in enumerate(words):
        if word == "--config" and i + 1 < len(words):
            return words[i + 1]
        if word.startswith("--config="):
            return word.partition("=")[2]
    return None


def _tables(path: str | None, environment: Mapping[str, str], command: str) -> list[tuple[str, dict[str, Any]]]:
    """[all], then the command's own: the later one wins."""
    file = Path(path).expanduser() if path else config_path(environment).expanduser()
    if path is None and not file.exists():
        return []
    try:
        with open(file, "rb") as opened:
            content = tomllib.load(opened)
    except OSError as error:
        raise UsageError(str(file_error(file, error, "cannot read"))) from None
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{file}: is not TOML ({error})") from None
    for name, table in content.items():
        if not isinstance(table, dict):
            raise UsageError(f"{file}: {name} stands outside of a table, expected [{COMMON}] or [{command}] above it")
    return [(name, content[name]) for name in (COMMON, command) if name in content]


def _value(action: argparse.Action, value: Any, where: str) -> Any:
    """``value`` as the option would read it from the command line."""
    if action.nargs == 0:  # a flag
        text = str(value).lower()
        if text not in ("true", "false", "1", "0", "yes", "no", ""):
            raise UsageError(f"{where} is {value!r}, expected true or false")
        return text in ("true", "1", "yes")
    if isinstance(value, list | dict):
        raise UsageError(f"{where} is {value!r}, expected one value")
    if action.type is None:
        return str(value)
    try:
        return action.type(str(value))  # type: ignore[operator]
    except (argparse.ArgumentTypeError, ValueError, TypeError) as error:
        raise UsageError(f"{where}: {error}") from None
