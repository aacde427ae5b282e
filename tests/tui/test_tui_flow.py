"""Figures behind each other: none is broken, none lost without being counted, no line wider than the panel."""

from __future__ import annotations

from kvtop.tui.widgets.flow import add_where_it_fits, flow
from kvtop.tui.widgets.lines import Line, width_of


def texts(lines: list[Line]) -> list[str]:
    return ["".join(text for text, _ in line) for line in lines]


def figures(*words: str) -> list[Line]:
    return [[(word, "text")] for word in words]


def test_a_figure_stands_where_it_fits_first() -> None:
    lines, left = flow(figures("one 11111", "two 2222222", "ab 3"), {}, 15, 5)
    assert (texts(lines), left) == (["one 11111  ab 3", "two 2222222"], 0)


def test_a_group_has_its_name_once_and_goes_on_below() -> None:
    lines, left = flow(figures("a 1"), {"why": figures("first 10 %", "second 5 %", "third 1 %")}, 24, 5)
    assert (texts(lines), left) == (["a 1", "why: first 10 %", "  second 5 %, third 1 %"], 0)


def test_what_has_no_room_is_counted_and_a_group_gets_its_half() -> None:
    alone = figures(*(f"figure {n} 00" for n in range(6)))
    lines, left = flow(alone, {"why": figures("first 10 %", "second 5 %")}, 16, 2)
    assert (texts(lines), left) == (["figure 0 00", "why: first 10 %"], 6)
    assert flow(alone, {}, 16, 0) == ([], 6)


def test_at_every_width_and_height_all_are_there_or_counted() -> None:
    alone = figures("blocks 200", "in use 84.0 %", "used 168", "runway 211 ms")
    groups = {"missed": figures("evicted 5.8 %", "last 7.7 %")}
    for width in range(22, 90):
        for height in range(1, 8):
            lines, left = flow(alone, groups, width, height)
            assert len(lines) <= height
            assert all(width_of(line) <= width for line in lines)
            text = "\n".join(texts(lines))
            shown = [item for item in (*alone, *groups["missed"]) if item[0][0] in text]
            assert len(shown) + left == len(alone) + 2


def test_a_mark_goes_where_there_is_room_and_nowhere_else() -> None:
    lines = figures("0123456789", "012")
    add_where_it_fits(lines, [("+3 (e)", "faint")], 12)
    assert texts(lines) == ["0123456789", "012  +3 (e)"]
    add_where_it_fits(lines, [("+4 (e)", "faint")], 12)
    assert texts(lines) == ["0123456789", "012  +3 (e)"]
