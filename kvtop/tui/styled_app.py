"""When styles are read: all of them once, on the way to the first paint, and again for another theme."""

from __future__ import annotations

import inspect
import os

from textual.app import App
from textual.screen import Screen

from kvtop.tui.theme import themes


class StyledApp(App[None]):
    """An application in one of the project's themes; with NO_COLOR it begins in the one without colours.

    Textual reads the styles of all widgets anew for every theme that is set, the one it begins with included, and for
    every screen that brings its own: four times until the first paint.
    """

    def __init__(self, theme: str) -> None:
        # With NO_COLOR the default is greys; this way only bold, underline and reverse are written.
        super().__init__(ansi_color=True if "NO_COLOR" in os.environ else None)
        for one in themes():
            self.register_theme(one)
        self.theme = "mono" if "NO_COLOR" in os.environ else theme
        self.stylesheet.set_variables(self.get_css_variables())
        self._read_for = self.theme  # nothing has been read yet, and what is will be in this theme

    def refresh_css(self, animate: bool = True) -> None:
        """Textual asks for it once for each theme that has been set; styles in the present one are left as they are.

        It asks for it too when the colours of its ANSI themes are changed, which nothing here does.
        """
        if self._read_for != self.theme:
            self._read_for = self.theme
            super().refresh_css(animate)

    def add_styles(self, kind: type[Screen]) -> None:
        """Those of a kind of screens, before the first of them is shown.

        Under the name that Textual looks for when it shows the screen, or it reads those of all screens anew.
        """
        sheet, place = self.stylesheet, (inspect.getfile(kind), f"{kind.__name__}.CSS")
        if kind.CSS and not sheet.has_source(*place):
            scope = kind._css_type_name if kind.SCOPED_CSS else ""
            sheet.add_source(kind.CSS, read_from=place, is_default_css=False, scope=scope)
