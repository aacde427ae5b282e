"""Help and failure: text over the live screen that fits, or scrolls, at any size."""

from __future__ import annotations

import re
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import ActiveBinding, Binding
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen, Screen
from textual.widgets import Static

from kvtop.state.model import RunState
from kvtop.state.numbers import NUMBERS
from kvtop.tui.attached import told
from kvtop.tui.glyphs import to_ascii
from kvtop.tui.meaning import meaning
from kvtop.tui.panels.base import Panel, panel_of
from kvtop.tui.text import clean
from kvtop.tui.widgets.key_bar import key_name
from kvtop.values_in_text import wrap

WIDTH = 75  # of text in a dialog on 80 columns


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

    def follow(self, state: RunState) -> None:
        """The run has gone on: what is told about it may have changed."""

    def action_scroll(self, lines: int) -> None:
        self.query_one(VerticalScroll).scroll_relative(y=lines, animate=False)

    def action_top(self) -> None:
        self.query_one(VerticalScroll).scroll_home(animate=False)

    def action_bottom(self) -> None:
        self.query_one(VerticalScroll).scroll_end(animate=False)


class HelpScreen(TextDialog):
    """What the focused panel shows, the keys that apply on this screen, then the other panels."""

    BINDINGS: ClassVar[list] = [Binding("question_mark,f1,q", "dismiss", show=False)]

    def __init__(self, screen: Screen) -> None:
        super().__init__("kvtop — every KV block, and a reason for every decision", help_text(screen))


class ExplainScreen(TextDialog):
    """The numbers of one panel: value, formula, window and source of each."""

    BINDINGS: ClassVar[list] = [Binding("e,q", "dismiss", show=False)]

    def __init__(self, panel: Panel, state: RunState) -> None:
        super().__init__(f"{panel.TITLE} — {panel.QUESTION}", explanation(panel, state))


class FailureScreen(TextDialog):
    """The error of a failed run with its traceback; the last state stays behind it."""

    BINDINGS: ClassVar[list] = [Binding("q", "app.quit", show=False)]
    KEYS = "arrows PgUp PgDn  scroll    Esc  look at the last state    q  quit"

    def __init__(self, error: str, traceback: str) -> None:
        lines = [clean(line) for line in traceback.splitlines()]
        text = "\n".join(lines) or "There is no traceback: the process ended without one."
        super().__init__(f"The engine failed: {clean(error) or 'no message'}", text, bad=True)


def help_text(screen: Screen) -> str:
    """The focused panel's own words, the keys, then every other panel's words."""
    focused = panel_of(screen.focused) if screen.focused is not None else None
    panels = list(screen.query(Panel))
    parts: list[str] = _words(focused) if focused is not None else []
    parts += ["KEYS", *_key_lines(screen.active_bindings)]
    for panel in panels:
        if panel is not focused:
            parts += ["", *_words(panel)[:-1]]
    return "\n".join(piece for part in parts for line in part.splitlines() or [""] for piece in _wrapped(line))


def explanation(panel: Panel, state: RunState) -> str:
    """What ``e`` says of a panel."""
    parts: list[str] = []
    for name in panel.NUMBERS:
        number = NUMBERS[name]
        formula, source = meaning(state, number)
        parts += [f"{number.title} = {told(state, number)[0]}", f"    {formula}"]
        parts += [f"    {number.window}; {source}  ({name})", ""]
    return "\n".join([*parts, panel.HELP])


def _wrapped(line: str) -> list[str]:
    """``line`` in pieces that an 80-column dialog shows whole, the later ones under the second column of it."""
    if len(line) <= WIDTH:
        return [line]
    first = re.match(r"\s*\S+\s\s+", line)
    return wrap(line, WIDTH, indent=" " * (first.end() if first else 0))


def _words(panel: Panel) -> list[str]:
    return [f"{panel.TITLE.upper()} — {panel.QUESTION}", panel.HELP, ""]


def _key_lines(active: dict[str, ActiveBinding]) -> list[str]:
    """Of the keys that apply now, in the order focused widget, screen, application; each action once."""
    lines: dict[str, str] = {}
    for _, binding, enabled, _ in active.values():
        if enabled and binding.tooltip:
            lines.setdefault(f"{binding.action} {binding.tooltip}", f"  {key_name(binding):<8} {binding.tooltip}")
    return list(lines.values())
