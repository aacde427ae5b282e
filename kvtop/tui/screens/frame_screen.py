"""A screen that is shown by frames, and the room it has for panels."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, cast

from textual.binding import Binding
from textual.containers import Container
from textual.screen import Screen

from kvtop.tui.frame import Frame
from kvtop.tui.terminal import toggle_mouse

if TYPE_CHECKING:
    from kvtop.tui.app import KvtopApp


class Area(Container):
    """Room for panels. Nothing of its own is drawn but the ground."""

    BLANK = True  # one strip for all its rows


class FrameScreen(Screen[None]):
    """A screen that is given frames while it is the active one."""

    BLANK = True
    BINDINGS: ClassVar[list] = [
        Binding("M", "mouse", show=False, tooltip="the mouse to the terminal, to select and copy with; and back"),
    ]

    @property
    def kvtop(self) -> KvtopApp:
        return cast("KvtopApp", self.app)

    def on_screen_resume(self) -> None:
        """The first frame comes before anything is drawn: nothing of the last visit is seen, and no tick waited for.

        Behind what Textual does now: it applies styles and gives the focus.
        """
        self.call_next(self.kvtop.show_now, force=True)

    def show_frame(self, frame: Frame) -> None:
        raise NotImplementedError

    def action_mouse(self) -> None:
        told = {
            True: "the mouse is kvtop's again",
            False: "the mouse is the terminal's now; M takes it back",
            None: "this terminal's mouse cannot be turned off here",
        }
        said = set(told.values())
        for standing in [message for message in self.app._notifications if message.message in said]:
            self.app._unnotify(standing, refresh=False)  # one row, however often it is pressed
        self.notify(told[toggle_mouse(self.app)], timeout=3)
