"""A table drawn line by line: only rows on the screen are made, and the selection follows the row's id."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from textual import events
from textual.binding import Binding
from textual.message import Message
from textual.strip import Strip

from kvtop.tui.text import fit
from kvtop.tui.widgets.lines import DrawnWidget, Line
from kvtop.values_in_text import wrap

Cell = tuple[str, str]
"""Text and style name."""


@dataclass(frozen=True, slots=True)
class Column:
    """``min_table`` is the table width from which the column is shown. The last column takes what is left."""

    title: str
    width: int
    align: str = "left"
    min_table: int = 0


Shown = tuple[int, Column, int]
"""A column on the screen: its index, itself, its width."""


ROOMY = 32  # a last column at least this wide keeps to itself


def gap(width: int) -> int:
    """Blanks between two columns of a table of ``width``."""
    return 1 if width < 100 else 2


def left_for_last(shown: list[Shown], width: int) -> int:
    """Cells left in a table of ``width`` behind these columns."""
    return max(0, width - 1 - sum(w + gap(width) for _, _, w in shown))


class LineTable(DrawnWidget, can_focus=True):
    """Rows by id; ``cells_of(id)`` gives a cell for every column, shown or not."""

    BINDINGS = [
        Binding(
            "up,k", "move(-1)", "select", key_display="arrows", tooltip="select a row (or jk, PgUp, PgDn, Home, End)"
        ),
        Binding("down,j", "move(1)", show=False),
        Binding("pageup", "page(-1)", show=False),
        Binding("pagedown", "page(1)", show=False),
        Binding("home", "edge(0)", show=False),
        Binding("end", "edge(1)", show=False),
        Binding("enter", "open", "open", key_display="enter", tooltip="where the selected row leads"),
    ]

    class Opened(Message):
        """Enter on a row of a table that ``opens`` something."""

        def __init__(self, row_id: str) -> None:
            self.row_id = row_id
            super().__init__()

    class HeaderClicked(Message):
        """A click on the title of a column."""

        def __init__(self, column: int) -> None:
            self.column = column
            super().__init__()

    class Selected(Message):
        """Another row is selected, or the same one was chosen again. ``by_hand``: by a key or a click."""

        def __init__(self, row_id: str | None, by_hand: bool = False) -> None:
            self.row_id, self.by_hand = row_id, by_hand
            super().__init__()

    def __init__(self, columns: list[Column], *, id: str | None = None, opens: str = "", header: bool = True) -> None:
        """``opens``: what a row leads to ("": nothing, and Enter is not taken). ``header``: a row of column titles."""
        super().__init__(id=id)
        self.columns, self.opens, self.top_rows = columns, opens, int(header)
        self.ids: list[str] = []
        self.selected: str | None = None
        self.top = 0
        self.empty_text = ""
        self.marks: dict[int, str] = {}  # column -> what stands behind its title
        self._cells_of: Callable[[str], list[Cell]] = lambda _: []
        self._index: dict[str, int] = {}
        self._drawn: dict[int, tuple[object, Strip]] = {}  # screen row -> what it was made of

    @property
    def num_visible(self) -> int:
        return max(0, self.size.height - self.top_rows)

    def set_rows(self, ids: list[str], cells_of: Callable[[str], list[Cell]]) -> None:
        """Show these rows. A selected row that is gone hands the selection to its successor."""
        old = self._index.get(self.selected, 0) if self.selected else 0
        self.ids, self._cells_of = ids, cells_of
        self._index = {row_id: i for i, row_id in enumerate(ids)}
        if self.selected is not None and self.selected not in self._index:
            self._select(ids[min(old, len(ids) - 1)] if ids else None)
        elif self.selected is None and ids and self.has_focus:
            self._select(ids[0])
        self._clamp_top()
        self._redraw_changed()

    def cells(self, row_id: str) -> list[Cell]:
        """What is in a row, for every column."""
        return self._cells_of(row_id)

    def clear_rows(self) -> None:
        self._drawn.clear()

    def on_resize(self) -> None:
        self.clear_rows()
        self._scroll_to_selected()

    def on_focus(self) -> None:
        if self.selected is None and self.ids:
            self.select(self.ids[0])
        self.clear_rows()
        self.refresh()

    def on_blur(self) -> None:
        self.clear_rows()
        self.refresh()

    # Drawing -------------------------------------------------------------------------------------------------

    def _redraw_changed(self) -> None:
        """Redraw the visible rows whose content differs from what is on the screen."""
        changed = []
        for y in range(self.top_rows, self.size.height):
            drawn = self._drawn.get(y)
            if drawn is None or drawn[0] != self._content(y):
                self._drawn.pop(y, None)
                changed.append(y)
        self.refresh_rows(changed)

    def _content(self, y: int) -> tuple[list[Cell], str] | None:
        index = self.top + y - self.top_rows
        if index >= len(self.ids):
            nothing = [] if self.ids else wrap(self.empty_text, max(20, self.size.width - 2))
            line = y - self.top_rows
            return ([(nothing[line], "soft")], "") if line < len(nothing) else None
        row_id = self.ids[index]
        return self._cells_of(row_id), self._over(row_id)

    def _over(self, row_id: str) -> str:
        if row_id != self.selected:
            return ""
        return "selectedfocus" if self.has_focus else "selected"

    def render_line(self, y: int) -> Strip:
        drawn = self._drawn.get(y)
        if drawn is not None:
            return drawn[1]
        is_header = y < self.top_rows
        content = None if is_header else self._content(y)
        strip = self._header() if is_header else self._row(content)
        self._drawn[y] = (content, strip)
        return strip

    def shown(self) -> list[Shown]:
        """The columns that fit, whole; the last one takes what is left."""
        width = self.size.width
        *fixed, last = [(i, c, c.width) for i, c in enumerate(self.columns) if width >= c.min_table]
        while len(fixed) > 1 and 1 + sum(w for _, _, w in fixed) + gap(width) * (len(fixed) - 1) > width:
            fixed.pop()
        return [*fixed, (last[0], last[1], left_for_last(fixed, width))]

    @property
    def is_roomy(self) -> bool:
        """The last column keeps to itself."""
        return self.shown()[-1][2] >= ROOMY

    def _header(self) -> Strip:
        line: Line = [(" ", "")]
        for i, column, width in self.shown():
            mark, style = self.marks.get(i, " "), "title" if i in self.marks else "faint"
            line += [(fit(column.title, width, column.align) + mark, style), (" " * (gap(self.size.width) - 1), "")]
        return self.strip_of(line, self.size.width)

    def _row(self, content: tuple[list[Cell], str] | None) -> Strip:
        width = self.size.width
        if content is None:
            return Strip.blank(width, self.style_of(""))
        cells, over = content
        if len(cells) != len(self.columns):
            return self.strip_of([(" ", ""), *cells], width)
        shown = self.shown()
        last = shown.pop()[0]
        if left_for_last(shown, width) < ROOMY:  # a narrow last column takes over the empty cells to its left
            while shown and not cells[shown[-1][0]][0]:
                shown.pop()
        line: Line = [(">" if over else " ", "")]  # seen without colour, too
        for i, column, cell_width in shown:
            text, style = cells[i]
            line += [(fit(text, cell_width, column.align), style), (" " * gap(width), "")]
        line += [(fit(cells[last][0], left_for_last(shown, width)), cells[last][1])]
        return self.strip_of(line, width, over)

    # Selection -----------------------------------------------------------------------------------------------

    def select(self, row_id: str, *, by_hand: bool = False) -> None:
        if row_id in self._index:
            self._select(row_id, by_hand)
            self._scroll_to_selected()
            self.clear_rows()
            self.refresh()

    def _select(self, row_id: str | None, by_hand: bool = False) -> None:
        self.selected = row_id
        self.post_message(self.Selected(row_id, by_hand))

    def _move_to(self, index: int) -> None:
        if self.ids:
            self.select(self.ids[max(0, min(index, len(self.ids) - 1))], by_hand=True)

    def action_move(self, by: int) -> None:
        self._move_to(self._index.get(self.selected or "", -1 if by > 0 else 0) + by)

    def action_page(self, direction: int) -> None:
        self._move_to(self._index.get(self.selected or "", 0) + direction * max(1, self.num_visible - 1))

    def action_edge(self, end: int) -> None:
        self._move_to(len(self.ids) if end else 0)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return bool(self.opens) and self.selected is not None if action == "open" else True

    def action_open(self) -> None:
        if self.selected is not None:
            self.post_message(self.Opened(self.selected))

    def _scroll_to_selected(self) -> None:
        if self.selected in self._index and self.num_visible:
            index = self._index[self.selected]
            self.top = min(max(self.top, index - self.num_visible + 1), index)
        self._clamp_top()

    def _clamp_top(self) -> None:
        top = max(0, min(self.top, len(self.ids) - self.num_visible))
        if top != self.top:
            self.top = top
            self.clear_rows()
            self.refresh()

    def on_click(self, event: events.Click) -> None:
        if event.y >= self.top_rows:
            index = self.top + event.y - self.top_rows
            if index < len(self.ids):
                self._move_to(index)
            return
        end = 1
        for i, _, width in self.shown():
            end += width + gap(self.size.width)
            if event.x < end:
                self.post_message(self.HeaderClicked(i))
                return

    def mark_columns(self, marks: dict[int, str]) -> None:
        """Put these behind the titles."""
        if marks != self.marks:
            self.marks = marks
            self._drawn.pop(0, None)
            self.refresh_rows([0])

    def on_mouse_scroll_down(self) -> None:
        self._scroll_by(3)

    def on_mouse_scroll_up(self) -> None:
        self._scroll_by(-3)

    def _scroll_by(self, rows: int) -> None:
        self.top += rows
        self._clamp_top()
        self.clear_rows()
        self.refresh()
