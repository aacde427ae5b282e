"""Every key that a screen, panel or dialog takes is in docs/tui.md, for what the footer has no room for."""

from __future__ import annotations

import pkgutil
import re
from importlib import import_module

from import_graph import ROOT
from textual.binding import Binding
from textual.dom import DOMNode

import kvtop.tui

SIGNS = {
    "apostrophe": "'", "colon": ":", "comma": ",", "full_stop": ".", "slash": "/", "question_mark": "?", "plus": "+",
    "minus": "-", "equals_sign": "=", "less_than_sign": "<", "greater_than_sign": ">", "left_square_bracket": "[",
    "right_square_bracket": "]", "left_curly_bracket": "{", "right_curly_bracket": "}", "left": "\u2190",
    "right": "\u2192", "up": "arrows", "down": "arrows", "escape": "Esc", "delete": "Del", "pageup": "PgUp",
    "pagedown": "PgDn",
}  # fmt: skip
SCREENS = re.compile("[1-8]")  # one row of a table each


def shown(key: str) -> str:
    """A key of Textual's as the page writes it."""
    if key in SIGNS:
        return SIGNS[key]
    return (
        key
        if len(key) == 1
        else "+".join(part.capitalize() if len(part) > 1 else part.upper() for part in key.split("+"))
    )


def bound() -> dict[str, set[str]]:
    """Key -> classes of ours that bind it. Modules are all loaded: a new one is found by itself."""
    found: dict[str, set[str]] = {}
    for module in pkgutil.walk_packages(kvtop.tui.__path__, "kvtop.tui."):
        for each in vars(import_module(module.name)).values():
            if isinstance(each, type) and issubclass(each, DOMNode) and each.__module__.startswith("kvtop."):
                for binding in Binding.make_bindings(vars(each).get("BINDINGS", ())):
                    found.setdefault(binding.key, set()).add(each.__name__)
    return found


def test_every_key_is_documented() -> None:
    page = (ROOT / "docs/tui.md").read_text()
    keys = {key for group in re.findall(r"`([^`\n]+)`", page) for key in group.split()}
    keys |= set(re.findall(r"(?:Ctrl|Shift)\+\w+|arrows|space|Home|End|Enter|Esc", page))
    found = bound()
    assert len(found) > 60
    missing = {
        key: sorted(classes)
        for key, classes in found.items()
        if not SCREENS.fullmatch(key) and shown(key) not in keys and shown(key).lower() not in keys
    }
    assert not missing, "keys that docs/tui.md does not name"
