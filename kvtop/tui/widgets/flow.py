"""Figures behind each other, where a column for each would not fit: none is broken, and what is left out is counted."""

from __future__ import annotations

from kvtop.tui.widgets.lines import Line, width_of

Row = list[Line]
"""Figures of one line."""
GAP, COMMA, INDENT = "  ", ", ", "  "


def flow(
    figures: list[Line], groups: dict[str, list[Line]], width: int, height: int, spare: int = 0
) -> tuple[list[Line], int]:
    """At most ``height`` lines, none wider than ``width``, and how many figures have no room.

    The first line leaves ``spare`` cells free; where there are groups only, each does.

    ``figures`` are put where they fit first. Behind them each of ``groups`` on lines of its own, which get half of the
    lines at least: ``missed: evicted 4 %, never seen 2 %``.
    """
    rows = _where_they_fit(figures, width, spare) if figures else []
    narrow = width if rows else width - spare
    tail = [row for name, members in groups.items() for row in _group(name, members, narrow)]
    num_tail = min(len(tail), max(height // 2, height - len(rows)))
    room = max(0, height - num_tail)
    shown, ends = rows[:room], tail[:num_tail]
    if ends and not ends[-1][1]:  # a name without a figure
        ends.pop()
    left = len(figures) + sum(map(len, groups.values())) - sum(map(len, shown)) - sum(count for _, count in ends)
    return [_joined(row, GAP) for row in shown] + [line for line, _ in ends], left


def counted(figures: list[Line], groups: dict[str, list[Line]], width: int, height: int, gone: int = 0) -> list[Line]:
    """``flow``, with what is left out counted on one of the lines, and the ``gone`` that are not reported."""
    spare = 0
    while True:
        lines, left = flow(figures, groups, width, height, spare)
        told = ((f"+{left} (e)", "faint", left), (f"n/a {gone} (e)", "warn", gone))
        marks: list[Line] = [[(text, style)] for text, style, count in told if count]
        if not lines and height > 0 and marks:
            lines.append([])
        placed = [_add_where_it_fits(lines, mark, width) for mark in marks]
        if all(placed) or spare:
            return lines
        spare = sum(len(GAP) + width_of(mark) for mark in marks) + 1  # one more may be left out then


def _add_where_it_fits(lines: list[Line], more: Line, width: int) -> bool:
    """``more`` at the end of the first of ``lines`` that has room for it; False: none has."""
    for line in lines:
        gap: Line = [(GAP, "")] if line else []
        if width_of([*line, *gap, *more]) <= width:
            line += [*gap, *more]
            return True
    return False


def _where_they_fit(figures: list[Line], width: int, spare: int) -> list[Row]:
    """Rows of them, the first narrower by ``spare``; a figure wider than ``width`` is on none."""
    rows: list[Row] = [[]] if spare else []
    for figure in figures:
        if width_of(figure) > width:
            continue
        for place, row in enumerate(rows):
            if width_of(_joined([*row, figure], GAP)) <= width - (0 if place else spare):
                row.append(figure)
                break
        else:
            rows.append([figure])
    return rows


def _group(name: str, members: list[Line], width: int) -> list[tuple[Line, int]]:
    """Lines, and how many of ``members`` stand on each: 0 behind the name where the first does not fit there."""
    lines: list[tuple[Line, int]] = [([(f"{name}: ", "soft")], 0)]
    below: list[Line] = [[(INDENT, ""), *member] for member in members]
    if width_of(lines[0][0]) > width or all(width_of(line) > width for line in below):
        return []
    for member, alone in zip(members, below, strict=True):
        line, count = lines[-1]
        longer = [*line, *([(COMMA, "soft")] if count else []), *member]
        if width_of(longer) <= width:
            lines[-1] = longer, count + 1
        elif width_of(alone) <= width:
            lines.append((alone, 1))
    return lines


def _joined(row: Row, gap: str) -> Line:
    return [span for place, item in enumerate(row) for span in ([(gap, "soft")] if place else []) + item]
