"""argparse as kvtop wants it: one line per mistake, no abbreviations, the nearest option named."""

from __future__ import annotations

import argparse
import difflib
import itertools
from collections.abc import Sequence
from typing import NoReturn

from kvtop.engine.errors import UsageError


class Parser(argparse.ArgumentParser):
    """An ``ArgumentParser`` that raises ``UsageError`` where argparse would print usage and exit."""

    def __init__(self, prog: str, description: str = "", examples: str = "") -> None:
        epilog = f"examples:\n{_indent(examples)}" if examples else None
        super().__init__(
            prog=prog,
            description=description,
            epilog=epilog,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (see {self.prog} --help)")

    def parse(self, argv: Sequence[str]) -> argparse.Namespace:
        """Parse, naming the nearest option for one that does not exist.

        ``given`` of the result holds the destinations of the options that ``argv`` names, at their default or not.
        """
        args, unknown = self.parse_known_args(list(argv))
        args.given = self._given(argv)
        if not unknown:
            return args
        word = next((item for item in unknown if item.startswith("-")), unknown[0])
        options = [option for action in self._actions for option in action.option_strings]
        near = difflib.get_close_matches(word.partition("=")[0], options, n=1, cutoff=0.6)
        hint = f"; did you mean {near[0]}?" if near else ""
        what = "option" if word.startswith("-") else "argument"
        return self.error(f"unknown {what} {word!r}{hint}")

    def _given(self, argv: Sequence[str]) -> frozenset[str]:
        known = self._option_string_actions
        words = itertools.takewhile(lambda word: word != "--", argv)
        # Whole (--limit), with its value (--limit=3) and, of one letter, with the value joined on (-p, -plpm).
        names = (word.partition("=")[0] if word.startswith("--") else word[:2] for word in words)
        return frozenset(known[name].dest for name in names if name in known)


def _indent(text: str) -> str:
    return "\n".join(f"  {line}".rstrip() for line in text.strip().splitlines())
