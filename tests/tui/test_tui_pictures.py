"""Pictures: what is written is read back, and a difference is found, shown and told."""

from __future__ import annotations

import pytest
import tui_pictures
from tui_pictures import Cell, Picture, compare, from_svg, to_svg


def picture(*rows: str, look: str = "fd7dae0", ground: str = "14181d") -> Picture:
    """One colour; < and & are letters that SVG writes in another way, a space has no colour."""
    return Picture(tuple(tuple(Cell(c, look if c != " " else "", ground) for c in row) for row in rows))


def changed(before: Picture, x: int, y: int, cell: Cell) -> Picture:
    rows = [list(row) for row in before.rows]
    rows[y][x] = cell
    return Picture(tuple(map(tuple, rows)))


def test_what_is_written_is_read_back():
    plain = picture("a <b & c>   ", "            ", "        end ", "x          y")
    assert from_svg(to_svg(plain)) == plain
    bold = changed(plain, 2, 1, Cell("▪", "fff0000 b u", "0000ff"))
    wide = changed(changed(bold, 4, 1, Cell("漢", "fd7dae0", "14181d")), 5, 1, Cell("", "fd7dae0", "14181d"))
    assert from_svg(to_svg(wide)) == wide


def test_a_row_of_the_screen_is_a_line_of_the_file():
    before, after = to_svg(picture("one", "two")), to_svg(picture("one", "too"))
    assert sum(a != b for a, b in zip(before.splitlines(), after.splitlines(), strict=True)) == 1


@pytest.mark.parametrize(
    ("now", "told"),
    [
        (picture("used 12"), "-used 11\n+used 12"),
        (picture("used 11", look="fff0000"), "the same text in other colours"),
        (picture("used 11", "more"), "+more"),
    ],
)
def test_a_difference_fails_and_is_marked(now, told, tmp_path, monkeypatch):
    monkeypatch.setattr(tui_pictures, "PICTURES", tmp_path / "kept" / "of" / "tests")
    compare(picture("used 11"), "screen/live", tmp_path, accept=True)
    compare(picture("used 11"), "screen/live", tmp_path, accept=False)
    with pytest.raises(AssertionError) as caught:
        compare(now, "screen/live", tmp_path, accept=False)
    assert told in str(caught.value)
    assert 'stroke="#ff0000"' in (tmp_path / "screen-live.svg").read_text()
    assert from_svg((tmp_path / "screen-live.kept.svg").read_text()) == picture("used 11")


def test_a_picture_that_is_not_kept_fails(tmp_path, monkeypatch):
    monkeypatch.setattr(tui_pictures, "PICTURES", tmp_path / "kept" / "of" / "tests")
    with pytest.raises(AssertionError, match="is missing"):
        compare(picture("used 11"), "screen/live", tmp_path, accept=False)
