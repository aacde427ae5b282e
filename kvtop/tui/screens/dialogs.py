"""Help and failure: text over the live screen that fits, or scrolls, at any size."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

from kvtop.tui.glyphs import to_ascii
from kvtop.tui.panels import PANELS
from kvtop.tui.text import clean
from kvtop.tui.widgets.block_map import BlockMap
from kvtop.tui.widgets.line_table import LineTable


class TextDialog(ModalScreen[None]):
    """A titled, scrollable text. ``title`` and ``text`` are shown as they are, never parsed."""

    BINDINGS: ClassVar[list] = [
        Binding("escape,enter", "dismiss", "close"),
        Binding("up,k", "scroll(-1)", show=False),
        Binding("down,j", "scroll(1)", show=False),
        Binding("pageup", "scroll(-10)", show=False),
        Binding("pagedown,space", "scroll(10)", show=False),
        Binding("home", "top", show=False),
        Binding("end", "bottom", show=False),
    ]
    KEYS = "arrows PgUp PgDn  scroll    Esc  close"

    def __init__(self, title: str, text: str, *, wide: bool = False, bad: bool = False) -> None:
        super().__init__()
        self._title, self._text = title, text
        self._kind = "dialog wide bad" if bad else "dialog wide" if wide else "dialog"

    def compose(self) -> ComposeResult:
        show = to_ascii if getattr(self.app, "ascii", False) else str
        with Vertical(classes=self._kind):
            yield Static(show(self._title), classes="dialog-title", markup=False)
            with VerticalScroll(can_focus=False):
                yield Static(show(self._text), markup=False)
            yield Static(show(self.KEYS), classes="dialog-keys", markup=False)

    def action_scroll(self, lines: int) -> None:
        self.query_one(VerticalScroll).scroll_relative(y=lines, animate=False)

    def action_top(self) -> None:
        self.query_one(VerticalScroll).scroll_home(animate=False)

    def action_bottom(self) -> None:
        self.query_one(VerticalScroll).scroll_end(animate=False)


class HelpScreen(TextDialog):
    """Keys, glyphs and definitions."""

    BINDINGS: ClassVar[list] = [Binding("question_mark,f1,q", "dismiss", show=False)]

    def __init__(self, bindings: list[Binding]) -> None:
        super().__init__("kvtop — every KV block, and a reason for every decision", help_text(bindings))


class FailureScreen(TextDialog):
    """The error of a failed run with its traceback; the last state stays behind it."""

    BINDINGS: ClassVar[list] = [Binding("q", "app.quit", show=False)]
    KEYS = "arrows PgUp PgDn  scroll    Esc  look at the last state    q  quit"

    def __init__(self, error: str, traceback: str) -> None:
        lines = [clean(line) for line in traceback.splitlines()]
        text = "\n".join(lines) or "There is no traceback: the process ended without one."
        super().__init__(f"The engine failed: {clean(error) or 'no message'}", text, bad=True)


_KEYS = {"question_mark": "?", "pageup": "PgUp", "pagedown": "PgDn", "escape": "Esc", "enter": "Enter", "tab": "Tab"}


def help_text(bindings: list[Binding]) -> str:
    """The whole help: keys first, then every panel's own words."""
    parts = ["KEYS", *_key_lines(bindings)]
    parts += ["", "in the block map", *_key_lines(_described(BlockMap.BINDINGS))]
    parts += ["", "in the table", *_key_lines(_described(LineTable.BINDINGS))]
    for panel in PANELS:
        parts += ["", f"{panel.TITLE.upper()} — {panel.QUESTION}", panel.HELP]
    return "\n".join(parts)


def _described(bindings: list) -> list[Binding]:
    return [b for b in bindings if isinstance(b, Binding) and b.tooltip]


def _key_lines(bindings: list[Binding]) -> list[str]:
    return [f"  {_names(b):<8} {b.tooltip}" for b in bindings if b.tooltip]


def _names(binding: Binding) -> str:
    if binding.key_display:
        return binding.key_display
    return " ".join(_KEYS.get(key, key) for key in binding.key.split(","))
