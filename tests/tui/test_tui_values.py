"""No value is cut or broken between its digits, or between number and unit: 12… of 128 ms would be another value."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from rich.cells import cell_len
from tui_looks import looks
from tui_pictures import PICTURES, from_svg
from tui_states import STATES

from kvtop.tui.screens import SCREENS
from kvtop.tui.text import fit
from kvtop.tui.widgets.lines import cut
from kvtop.values_in_text import wrap

UNITS = {
    "ns", "µs", "ms", "s", "%", "B", "KiB", "MiB", "GiB", "kB", "MB", "tok", "tok/s", "seqs", "pt", "step", "steps",
    "block", "blocks", "token", "tokens", "request", "requests", "computed", "of", "at", "and", "in", "for",
    "there",
}  # fmt: skip
"""What stands behind a number on the screens, whole."""
_CUT = re.compile(r"(?<![\w#-])[<>=]*\d(?:[\d.,:]*\d)?( ?[^\W\d_A-Z][^\W\d_]*| ?%)?…")
_NUMBER_AT_END = re.compile(r"(?<![\w#-])\d[\d.,]*$")


def split_values(rows: list[str]) -> list[str]:
    """Values that an ellipsis has split in these rows of a screen."""
    found = (match for row in rows for match in _CUT.finditer(row))
    return [match[0] for match in found if (match[1] or "").strip() not in UNITS]


def broken_values(lines: list[str]) -> list[tuple[str, str]]:
    """Ends and beginnings of lines between which a number and its unit are split."""
    return [
        (line, after) for line, after in pairwise(lines)
        if _NUMBER_AT_END.search(line.rstrip()) and re.match(r"[^\W\d_]+|%", after.strip())
    ]  # fmt: skip


@pytest.mark.parametrize("entry", SCREENS, ids=lambda entry: entry.name)
@pytest.mark.parametrize("state", STATES, ids=lambda state: state.name)
def test_every_screen_of_80x24_shows_values_whole(entry, state):
    rows = looks(state, (80, 24))[entry.name].picture.text
    assert split_values(rows) == []


def test_every_kept_picture_shows_values_whole():
    """Dialogs and larger sizes, too."""
    found = {path.name: split_values(from_svg(path.read_text()).text) for path in PICTURES.rglob("*.svg")}
    assert {name: values for name, values in found.items() if values} == {}


TEXT = "needs 1,024 blocks, 17/256 tok at 15.314 s; ~403 ms, 55.6 % of r22 and conv-49 in 2.5 tok/s"


def test_text_is_cut_before_a_value_or_behind_it():
    for width in range(1, len(TEXT)):
        shown = fit(TEXT, width)
        assert cell_len(shown) == width
        kept = shown.rstrip(" ").removesuffix("…")
        assert TEXT.startswith(kept)
        assert split_values([shown]) == [], shown
    assert fit(TEXT, 20).rstrip() == "needs 1,024 blocks,…"
    assert fit(TEXT, 15).rstrip() == "needs…"
    assert fit(TEXT, len(TEXT)) == TEXT


@pytest.mark.parametrize(
    ("text", "width", "shown"),
    [
        ("123456789", 6, "12345…"),  # all there is: a name, as far as anybody knows
        ("conv-123456", 8, "conv-12…"),
        ("1,234,567 tokens now", 8, "…       "),
        ("漢字 120 ms", 8, "漢字…   "),
        ("tpot<100ms", 9, "tpot<…   "),
    ],
)
def test_what_is_left_of_a_text(text, width, shown):
    assert fit(text, width) == shown


def test_a_value_whose_number_and_unit_are_spans_of_their_own_goes_whole():
    line = [("used ", "soft"), ("480", "strong"), (" blocks", "soft"), (" of many", "soft")]
    for width in range(1, 24):
        text = "".join(part for part, _ in cut(line, width))
        assert cell_len(text) <= width
        assert split_values([text]) == [], text
    assert cut(line, 12) == [("used…", "soft")]
    assert cut(line, 17) == [*line[:3], ("…", "soft")]
    assert cut([*line[:3], ("      ", "")], 16) == [*line[:3], (" ", "")]  # nothing but blanks is lost


def test_lines_are_broken_around_values():
    for width in range(14, 60):
        lines = wrap(TEXT, width)
        assert " ".join(lines).split() == TEXT.split()
        assert broken_values(lines) == [], (width, lines)
    assert wrap("it needs 12 blocks", 11, indent="  ") == ["it needs", "  12 blocks"]


def test_a_whole_number_before_a_cut_shows_that_it_is_whole():
    assert fit("step 12, 29.8 s ago", 14) == "step 12,…".ljust(14)
