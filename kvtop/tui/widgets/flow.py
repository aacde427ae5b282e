"""Figures behind each other, where a column for each would not fit: none is broken, and what is left out is counted."""

from __future__ import annotations

from kvtop.tui.widgets.lines import Line, width_of

Row = list[Line]
"""Figures of one line."""
GAP, COMMA, INDENT = "  ", ", ", "  "


def flow(figures: list[Line], groups: dict[str, list[Line]], width: int, height: int) -> tuple[list[Line], int]:
    """At most ``height`` lines, and how many figures have no room.

    ``figures`` are put where they fit first. Behind them each of ``groups`` on lines of its own, which get half of the
    lines at least: ``missed: evicted 4 %, never seen 2 %``.
    """
    rows = _where_they_fit(figures, width)
    tail = [row for name, members in groups.items() for row in _group(name, members, width)]
    num_tail = min(len(tail), max(height // 2, height - len(rows)))
    room = max(0, height - num_tail)
    left = sum(len(row) for row in rows[room:]) + sum(count for _, count in tail[num_tail:])
    return [_joined(row, GAP) for row in rows[:room]] + [line for line, _ in tail[:num_tail]], left


def add_where_it_fits(lines: list[Line], more: Line, width: int) -> None:
    """``more`` at the end of the first of ``lines`` that has room for it, if one has."""
    line = next((line for line in lines if width_of(line) + len(GAP) + width_of(more) <= width), None)
    if line is not None:
        line += [(GAP, ""), *more]


def _where_they_fit(figures: list[Line], width: int) -> list[Row]:
    rows: list[Row] = []
    for figure in figures:
        row = next((row for row in rows if width_of(_joined([*row, figure], GAP)) <= width), None)
        if row is None:
            rows.append([figure])
        else:
            row.append(figure)
    return rows


def _group(name: str, members: list[Line], width: int) -> list[tuple[Line, int]]:
    """Lines, and how many of ``members`` stand on each."""
    lines: list[tuple[Line, int]] = [([(f"{name}: ", "soft")], 0)]
    for member in members:
        line, count = lines[-1]
        longer = [*line, *([(COMMA, "soft")] if count else []), *member]
        if not count or width_of(longer) <= width:
            lines[-1] = longer, count + 1
        else:
            lines.append(([(INDENT, ""), *member], 1))
    return lines


def _joined(row: Row, gap: str) -> Line:
    return [span for place, item in enumerate(row) for span in ([(gap, "soft")] if place else []) + item]
