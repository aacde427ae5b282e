"""A line asked for: a filter, a breakpoint. What is wrong with it is said before it is taken."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, Static

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
