"""``--vary KEY=V1,V2``: the same run with one option of engine or workload, or several, at each of some values.

A key is such an option by its name on the command line, without the dashes; a value is what the option accepts,
``on`` or ``off`` for one that is a switch.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Collection
from copy import copy
from typing import Any

from kvtop.cli.parser import Parser
from kvtop.cli.run_options import add_engine_options, add_workload_options
from kvtop.engine.errors import UnknownName, UsageError

SWITCH = {"on": True, "off": False}

REPEATED = {"workload": "-w", "policy": "-p", "allocator": "--allocator"}
"""What is varied by repeating an option of its own, and that option."""


def add_vary_option(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--vary", action="append", default=[], metavar="KEY=V1,V2",
        help="each of these values of an engine or workload option, e.g. prefix-caching=off,on or time-scale=1,0.5 "
        "(the first is what the others are compared with; another workload is another table)",
    )  # fmt: skip


def variants(args: argparse.Namespace) -> list[argparse.Namespace]:
    """``args`` once for every combination of the values that ``--vary`` names, the last key changing fastest.

    Raises:
        UsageError: no KEY=V1,V2, a value that the option would refuse, an option that is given as well or that
            excludes another one given.
        UnknownName: a key that is no such option.
    """
    options = _Options()
    asked: dict[str, list[Any]] = {}
    for text in args.vary:
        key, equals, values = text.partition("=")
        if not equals or not all(value.strip() for value in values.split(",")):
            raise UsageError(f"--vary {text!r}: expected KEY=V1,V2, such as prefix-caching=off,on")
        if key in asked:
            raise UsageError(f"--vary {key} is given twice; name all its values in one: {key}=V1,V2")
        asked[key] = options.read(key, [value.strip() for value in values.split(",")])
    options.check(args, asked)
    made = [
        options.replaced(args, dict(zip(asked, chosen, strict=True))) for chosen in itertools.product(*asked.values())
    ]
    if "swap" in asked.get("preemption", ()):  # host blocks are meant for those that swap, the others have no use
        for variant in made:
            variant.host_blocks = variant.host_blocks if variant.preemption == "swap" else None
    return made


class _Options:
    """The options of engine and workload as argparse knows them: names, readers, defaults and what excludes what."""

    def __init__(self) -> None:
        parser = Parser("kvtop")
        add_workload_options(parser)
        add_engine_options(parser)
        self._actions = {
            action.option_strings[-1 if len(action.option_strings[0]) == 2 else 0].removeprefix("--"): action
            for action in parser._actions
            if action.nargs != 0 or isinstance(action, argparse.BooleanOptionalAction)  # takes a value, or has a no-
        }
        self._groups = [group._group_actions for group in parser._mutually_exclusive_groups]

    def read(self, key: str, texts: list[str]) -> list[Any]:
        """The values of ``key``, read as the option itself reads them; one that is written twice counts once."""
        if key in REPEATED:
            flag = REPEATED[key]
            raise UsageError(f"--vary {key}: repeat {flag} instead: {' '.join(f'{flag} {text}' for text in texts)}")
        if key not in self._actions:
            raise UnknownName("--vary key", key, self._actions)
        return list(dict.fromkeys(self._value(self._actions[key], key, text) for text in texts))

    def check(self, args: argparse.Namespace, keys: Collection[str]) -> None:
        """Neither an option that is varied nor one that excludes it is given as well."""
        varied = [self._actions[key] for key in keys]
        given = [action for action in self._actions.values() if action in varied or action.dest in args.given]
        for key, action in zip(keys, varied, strict=True):
            if action.dest in args.given:
                raise UsageError(f"--vary {key}: {action.option_strings[-1]} is given as well")
            for other in given:
                if other is not action and any(action in group and other in group for group in self._groups):
                    raise UsageError(f"--vary {key}: not allowed with {other.option_strings[-1]}")

    @staticmethod
    def _value(action: argparse.Action, key: str, text: str) -> Any:
        if isinstance(action, argparse.BooleanOptionalAction):
            if text not in SWITCH:
                raise UsageError(f"--vary {key}: {text!r} is neither on nor off")
            return SWITCH[text]
        if not callable(action.type):
            return text
        try:
            return action.type(text)
        except argparse.ArgumentTypeError as error:
            raise UsageError(f"--vary {key}: {error}") from None

    def replaced(self, args: argparse.Namespace, chosen: dict[str, Any]) -> argparse.Namespace:
        """A copy of ``args`` with the chosen values; one of an option that may be repeated stands alone."""
        made = copy(args)
        for key, value in chosen.items():
            action = self._actions[key]
            setattr(made, action.dest, [value] if isinstance(action.default, list) else value)
        return made
