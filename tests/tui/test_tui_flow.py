"""Figures behind each other: none is broken, none lost without being counted, no line wider than the panel."""

from __future__ import annotations

import pytest

from kvtop.state.numbers import MISS_WORDS
from kvtop.tui.widgets.flow import counted, flow
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
    for width in range(4, 90):
        for height in range(1, 8):
            lines, left = flow(alone, groups, width, height)
            assert len(lines) <= height
            assert all(width_of(line) <= width for line in lines)
            text = "\n".join(texts(lines))
            shown = [item for item in (*alone, *groups["missed"]) if item[0][0] in text]
            assert len(shown) + left == len(alone) + 2


def test_what_is_left_out_is_counted_where_there_is_room() -> None:
    assert texts(counted(figures("0123456789", "012", "5678901234"), {}, 12, 2)) == ["0123456789", "012  +1 (e)"]


@pytest.mark.parametrize("gone", [0, 3, 12])
@pytest.mark.parametrize("height", [1, 2, 3, 5])
def test_at_every_width_the_counts_themselves_are_there(height: int, gone: int) -> None:
    alone = figures("prefix hits 12.3 %", "found 12.3M", "wanted 7.1k", *(f"more {n} 00" for n in range(9)))
    groups = {"waiting": figures(*(f"reason {n} 1" for n in range(9)))}
    for width in range(20, 60):
        lines = counted(alone, groups, width, height, gone)
        text = "\n".join(texts(lines))
        assert len(lines) <= height
        assert all(width_of(line) <= width for line in lines)
        shown = sum(item[0][0] in text for item in (*alone, *groups["waiting"]))
        left = len(alone) + 9 - shown
        assert (f"+{left} (e)" in text) == (left > 0), (width, text)
        assert (f"n/a {gone} (e)" in text) == (gone > 0), (width, text)


@pytest.mark.parametrize("width", [18, 24, 29, 30, 40])
def test_causes_of_misses_are_whole_in_a_narrow_panel(width: int) -> None:
    """The name takes most of the line: the first cause stands below it."""
    causes = [f"{words} 12.3 %" for words in MISS_WORDS.values()]
    lines, left = flow([], {"missed (lookups)": figures(*causes)}, width, 20)
    assert all(width_of(line) <= width for line in lines)
    shown = [cause for cause in causes if cause in "\n".join(texts(lines))]
    assert len(shown) + left == len(causes)
    assert left == sum(len(cause) + 2 > width for cause in causes)


def test_a_figure_wider_than_the_panel_is_counted() -> None:
    lines, left = flow(figures("ab 3", "one 1111111"), {"why": figures("first 1,000 %", "2nd 5")}, 8, 5)
    assert (texts(lines), left) == (["ab 3", "why: ", "  2nd 5"], 2)
    assert flow([], {"why": figures("first 1,000 %")}, 8, 5) == ([], 1)
