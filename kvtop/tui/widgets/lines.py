"""Lines of styled text that redraw only the rows that changed."""

from __future__ import annotations

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

from kvtop.tui.glyphs import to_ascii
from kvtop.tui.text import fit
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


class DrawnWidget(Widget):
    """A widget that draws its own rows: styles resolved against its background, ASCII where asked for."""

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self._resolved: dict[tuple[str, str], Style] = {}

    def style_of(self, name: str, over: str = "") -> Style:
        """Style ``name`` on this widget's background, with style ``over`` on top."""
        style = self._resolved.get((name, over))
        if style is None:
            styles = styles_of(self.app.theme)
            style = self.rich_style + styles[name] + styles[over]
            self._resolved[(name, over)] = style
        return style

    def strip_of(self, line: Line, width: int, over: str = "") -> Strip:
        """``line`` as a strip of exactly ``width`` cells."""
        ascii_only = getattr(self.app, "ascii", False)
        segments = [
            Segment(to_ascii(text) if ascii_only else text, self.style_of(name, over)) for text, name in line if text
        ]
        strip = Strip(segments)
        if strip.cell_length > width:
            return strip.adjust_cell_length(width, self.style_of("", over))
        return strip.extend_cell_length(width, self.style_of("", over))

    def notify_style_update(self) -> None:
        super().notify_style_update()
        self._resolved.clear()
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
    """``line`` cut to ``width`` cells, whole spans kept in their style; an ellipsis where more than blanks is lost."""
    out: Line = []
    room = width
    for index, (text, style) in enumerate(line):
        length = cell_len(text)
        if length > room:
            rest = (text + "".join(more for more, _ in line[index + 1 :])).rstrip(" ")
            if cell_len(rest) <= room:
                return [*out, (rest, style)] if rest else out
            return [*out, (fit(text, room), style)] if room > 0 else out
        out.append((text, style))
        room -= length
    return out
