"""A line asked for, or a text: a filter, a breakpoint, a prompt. What is wrong with it is said before it is taken."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, Static, TextArea

from kvtop.engine.errors import KvtopError
from kvtop.tui.glyphs import to_ascii
from kvtop.tui.text import clean


class AskScreen(ModalScreen[str | None]):
    """Returns the line, or None after Esc. ``check`` raises a ``KvtopError`` for what cannot be taken."""

    BINDINGS: ClassVar[list] = [Binding("escape", "cancel", show=False)]

    def __init__(self, title: str, hint: str, value: str = "", check: Callable[[str], object] | None = None) -> None:
        super().__init__()
        self._title, self._hint, self._value, self._check = title, hint, value, check

    def compose(self) -> ComposeResult:
        show = to_ascii if getattr(self.app, "ascii", False) else str
        with Vertical(classes="asked"):
            yield Static(show(self._title), classes="dialog-title", markup=False)
            yield Input(self._value, select_on_focus=True)
            yield Static(show(self._hint), classes="dialog-keys", id="hint", markup=False)

    @on(Input.Submitted)
    def _on_submitted(self, event: Input.Submitted) -> None:
        line = clean(event.value).strip()
        try:
            if self._check is not None:
                self._check(line)
        except KvtopError as error:
            self.query_one("#hint", Static).update(clean(str(error)))
            return
        self.dismiss(line)

    def action_cancel(self) -> None:
        self.dismiss(None)


class _Paper(TextArea):
    """Takes a paste as it is; Enter hands it in."""

    async def _on_key(self, event: events.Key) -> None:
        if event.key == "enter":
            event.prevent_default()
            event.stop()
            screen = self.screen
            assert isinstance(screen, PasteScreen)
            screen.hand_in()
            return
        await super()._on_key(event)


class PasteScreen(ModalScreen[str | None]):
    """Returns a text of any number of lines, as it was pasted, or None after Esc. ``check`` as for ``AskScreen``."""

    BINDINGS: ClassVar[list] = [Binding("escape", "cancel", show=False, priority=True)]

    def __init__(self, title: str, hint: str, check: Callable[[str], object]) -> None:
        super().__init__()
        self._title, self._hint, self._check = title, hint, check

    def compose(self) -> ComposeResult:
        show = to_ascii if getattr(self.app, "ascii", False) else str
        with Vertical(classes="asked"):
            yield Static(show(self._title), classes="dialog-title", markup=False)
            yield _Paper(show_line_numbers=False, soft_wrap=True, highlight_cursor_line=False)
            yield Static(show(self._hint), classes="dialog-keys", id="hint", markup=False)

    def hand_in(self) -> None:
        text = self.query_one(_Paper).text
        try:
            self._check(text)
        except KvtopError as error:
            self.query_one("#hint", Static).update(clean(str(error)))
            return
        self.dismiss(text)

    def action_cancel(self) -> None:
        self.dismiss(None)
