"""Lines of styled text that redraw only the rows that changed."""

from __future__ import annotations

from functools import lru_cache

from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from rich.style import Style
from textual.color import Color
from textual.filter import LineFilter
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

from kvtop.tui.glyphs import to_ascii
from kvtop.tui.text import kept_in
from kvtop.tui.theme import styles_of

Span = tuple[str, str]
"""Text (already clean) and the name of its style in ``theme.styles_of``."""
Line = list[Span]


def width_of(line: Line) -> int:
    return sum(cell_len(text) for text, _ in line)


def spread(left: Line, right: Line, width: int, fill: Span = (" ", "")) -> Line:
    """``left`` and ``right`` at the two ends of ``width`` cells; ``right`` is left out when there is no room for it."""
    room = width - width_of(left) - width_of(right)
    if room < 1:
        right, room = [], width - width_of(left)
    return [*left, (fill[0] * max(0, room), fill[1]), *right]


Look = tuple[Style, str, Color, tuple[LineFilter, ...]]
"""What decides how a named style comes out: the widget's own style, the theme, its background, filters on top."""


@lru_cache(64)
def _resolved_of(look: Look) -> dict[tuple[str, str], Style]:
    """Styles found so far, of all widgets that look alike: a style keeps the codes it is written with."""
    return {}


class DrawnWidget(Widget):
    """A widget that draws its own rows: styles resolved against its background, ASCII where asked for.

    It has no border, padding or opacity, and its rows go to the compositor as they are. Textual's cache of styled lines
    would keep each row once more, in three strips instead of one.
    """

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self._look: Look | None = None
        self._look_is_old = True
        self._resolved: dict[tuple[str, str], Style] = {}

    def style_of(self, name: str, over: str = "") -> Style:
        """Style ``name`` on this widget's background, with style ``over`` on top."""
        if self._look_is_old:
            self._renew_look()
        style = self._resolved.get((name, over))
        if style is None:
            assert self._look is not None
            base, theme, background, filters = self._look
            styles = styles_of(theme)
            style = base + styles[name] + styles[over]
            for one in filters:
                style = one.apply([Segment(" ", style)], background)[0].style or style
            self._resolved[(name, over)] = style
        return style

    def strip_of(self, line: Line, width: int, over: str = "") -> Strip:
        """``line`` as a strip of exactly ``width`` cells."""
        ascii_only = getattr(self.app, "ascii", False)
        segments = [
            Segment(to_ascii(text) if ascii_only else text, self.style_of(name, over)) for text, name in line if text
        ]
        missing = width - sum(cell_len(segment.text) for segment in segments)
        if missing < 0:
            return Strip(segments, width - missing).adjust_cell_length(width, self.style_of("", over))
        if missing:
            segments.append(Segment(" " * missing, self.style_of("", over)))
        return Strip(segments, width)

    def render_lines(self, crop: Region) -> list[Strip]:
        if self._look_is_old:
            self._renew_look()
        width, columns = self.size.width, crop.column_span
        # A row may be older than the size: what tells of a new one comes after the layout.
        strips = [self.render_line(y).adjust_cell_length(width, self.style_of("")) for y in crop.line_range]
        return strips if columns == (0, width) else [strip.crop(*columns) for strip in strips]

    def notify_style_update(self) -> None:
        """Called whenever a screen comes to the front, too: most times nothing of the look has changed."""
        super().notify_style_update()
        self._look_is_old = True

    def _renew_look(self) -> None:
        self._look_is_old = False
        filters = tuple(self.get_line_filters())
        look = (self.rich_style, self.app.theme, self.background_colors[1], filters)
        if look != self._look:
            self._look, self._resolved = look, _resolved_of(look)
            self.clear_rows()

    def clear_rows(self) -> None:
        """Forget cached rows (the look has changed)."""

    def refresh_rows(self, rows: list[int]) -> None:
        """Redraw these rows; everything when most have changed."""
        if not rows:
            return
        if len(rows) * 5 > self.size.height * 3:
            self.refresh()
        else:
            self.refresh(*[Region(0, y, self.size.width, 1) for y in rows])


class Lines(DrawnWidget):
    """Shows the lines last given to ``set_lines``."""

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self.lines: list[Line] = []
        self._strips: dict[int, Strip] = {}

    def set_lines(self, lines: list[Line]) -> None:
        old, self.lines = self.lines, lines
        changed = [
            y for y in range(max(len(old), len(lines))) if y >= len(old) or y >= len(lines) or old[y] != lines[y]
        ]
        for y in changed:
            self._strips.pop(y, None)
        self.refresh_rows(changed)

    def clear_rows(self) -> None:
        self._strips.clear()

    def on_resize(self) -> None:
        self._strips.clear()

    def render_line(self, y: int) -> Strip:
        strip = self._strips.get(y)
        if strip is None:
            line = self.lines[y] if y < len(self.lines) else []
            strip = self._strips[y] = self.strip_of(line, self.size.width)
        return strip


def cut(line: Line, width: int) -> Line:
    """``line`` cut to ``width`` cells, spans in their style; an ellipsis where more than blanks is lost.

    No value is split from its unit, in whatever spans the two are (``kept_in``).
    """
    if width_of(line) <= width:
        return list(line)
    text = "".join(text for text, _ in line)
    if cell_len(text.rstrip(" ")) <= width:
        return _first(line, len(set_cell_size(text, width)))
    if width <= 0:
        return []
    kept = kept_in(text, width - 1)
    out, left = _first(line, kept), kept
    for part, style in line:
        if left < len(part):
            whole = out[:-1] if left > 0 else out
            return [*whole, (part[: max(0, left)] + "…", style)]
        left -= len(part)
    return out


def _first(line: Line, count: int) -> Line:
    """So many characters of it."""
    out: Line = []
    for text, style in line:
        if count > 0 and text:
            out.append((text[:count], style))
        count -= len(text)
    return out
