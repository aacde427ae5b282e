"""A panel: a titled part of a screen that answers one question. A new one is a subclass, named by its screen."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, cast

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.widget import Widget

from kvtop.tui.attached import number_lines, source_note
from kvtop.tui.frame import Frame
from kvtop.tui.widgets.lines import Line, Lines, cut, spread, width_of

if TYPE_CHECKING:
    from kvtop.tui.app import KvtopApp


class TitleRule(Lines):
    """A rule with the panel's name, its question, and a note at the right."""

    def show(self, title: str, question: str, note: Line, focused: bool) -> None:
        width = self.size.width
        rule = "focusrule" if focused else "rule"
        left: Line = [("─ ", rule), (title, "focus" if focused else "title")]
        rest = width - width_of(left) - 2  # a space, and some of the rule
        right: Line = [(" ", ""), *note, (" ─", rule)] if note else []
        right = right if width_of(right) <= rest else []
        # Where there is no room for both, the note stays: the question is in the help, too.
        if question and len(question) + 3 <= rest - width_of(right):
            left += [(" — ", rule), (question, "soft")]
        left += [(" ", "")]
        self.set_lines([cut(spread(left, right, width, ("─", rule)), width)])


class Panel(Vertical):
    """Base of all panels. Set ``TITLE``, ``QUESTION`` and ``HELP``; yield children from ``compose_body`` and show a
    frame in ``show_frame``.

    A panel is given frames while its screen is active, and again when its size changes; it draws no other time.
    """

    BLANK = True  # itself: its children cover it

    TITLE: ClassVar[str] = ""
    QUESTION: ClassVar[str] = ""  # what the panel answers, ending in a question mark
    HELP: ClassVar[str] = ""  # for the help screen: what is shown, what to do with it
    NUMBERS: ClassVar[tuple[str, ...]] = ()  # of ``state.numbers.NUMBERS``: what ``e`` explains
    PER_REQUEST: ClassVar[bool] = False  # it is about single requests, which attached servers do not report
    LEADS_TO: ClassVar[str] = ""  # name of the screen that Enter goes to, where nothing in the panel takes the key

    frame: Frame | None = None

    def compose(self) -> ComposeResult:
        yield TitleRule(classes="rule")
        yield from self.compose_body()

    def compose_body(self) -> ComposeResult:
        raise NotImplementedError

    def show_frame(self, frame: Frame) -> None:
        raise NotImplementedError

    def heading(self, frame: Frame) -> tuple[str, str]:
        """Title and question, where they depend on what is shown."""
        return self.TITLE, self.QUESTION

    def note(self, frame: Frame) -> Line:
        """What stands at the right end of the title."""
        return []

    def attached_note(self, frame: Frame) -> Line:
        """The same of attached servers: what makes their figures less than they seem."""
        return source_note(frame.state)

    @property
    def kvtop(self) -> KvtopApp:
        """The application, for ``select`` and ``choose``."""
        return cast("KvtopApp", self.app)

    def update_frame(self, frame: Frame) -> None:
        self.frame = frame
        if not self.is_mounted or not self.size.width:
            return
        self._show_title()
        self.show_frame(frame)

    def redraw(self) -> None:
        """Show the last frame again: size, selection or focus has changed."""
        if self.frame is not None:
            self.update_frame(replace(self.frame, dirty=set(), whole=False))

    def on_resize(self) -> None:
        # Children learn their new size after their parent: draw once they know it.
        self.call_after_refresh(self.redraw)

    def on_descendant_focus(self) -> None:
        self._show_title()

    def on_descendant_blur(self) -> None:
        self._show_title()

    def on_focus(self) -> None:
        self._show_title()

    def on_blur(self) -> None:
        self._show_title()

    def _show_title(self) -> None:
        if self.frame is not None and self.is_mounted:
            rule = self.query_one(TitleRule)
            attached = self.frame.state.attached is not None
            note = self.attached_note(self.frame) if attached else self.note(self.frame)
            rule.show(*self.heading(self.frame), note, self.has_focus_within)


class TextPanel(Panel, can_focus=True):
    """A panel that is a few lines of text, written anew for the size it has."""

    def compose_body(self) -> ComposeResult:
        yield Lines(classes="body")

    def show_frame(self, frame: Frame) -> None:
        body = self.query_one(".body", Lines)
        width, height = body.size
        if width and height:
            attached = frame.state.attached is not None
            lines = self.attached_lines(frame, width, height) if attached else self.lines(frame, width, height)
            body.set_lines([cut(line, width) for line in lines])

    def attached_lines(self, frame: Frame, width: int, height: int) -> list[Line]:
        """What attached servers report of the panel's numbers; which of them they do not report, and why."""
        if self.NUMBERS:
            return number_lines(frame, self.TITLE, self.NUMBERS, width, height)
        if self.PER_REQUEST:
            return [[("not reported: servers tell nothing of single requests", "soft")]]
        return self.lines(frame, width, height)

    def lines(self, frame: Frame, width: int, height: int) -> list[Line]:
        raise NotImplementedError


def panel_of(widget: Widget) -> Panel | None:
    """The panel around ``widget``."""
    return next((node for node in widget.ancestors_with_self if isinstance(node, Panel)), None)
