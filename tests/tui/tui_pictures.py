"""Screens as SVG files that are kept: one line of the file is one row of the screen, so that a diff can be read.

A picture that differs from the kept one fails its test, which writes what is on the screen now, with a frame around
every cell that differs, and names the file. ``pytest tests/tui --accept-pictures`` keeps what the screens look like
now; look at them first.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from difflib import unified_diff
from itertools import groupby
from pathlib import Path
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from rich.cells import cell_len
from rich.color import Color
from rich.style import Style
from rich.terminal_theme import SVG_EXPORT_THEME
from textual.app import App
from textual.pilot import Pilot

PICTURES = Path(__file__).parent / "pictures"
CELL, ROW, BASE = 10, 20, 15  # width and height of a cell, and where its letters stand, in units of the picture
GAP = 8  # so many spaces begin a new run, which has a column of its own
FONT = '"DejaVu Sans Mono",Menlo,Consolas,"Fira Code",monospace'
NAMESPACE = "http://www.w3.org/2000/svg"


@dataclass(frozen=True, slots=True)
class Cell:
    """``char`` is "" behind a letter two cells wide. ``look``: colour of the letter, then b, i, u, s for its face."""

    char: str = " "
    look: str = ""
    ground: str = ""


@dataclass(frozen=True, slots=True)
class Picture:
    rows: tuple[tuple[Cell, ...], ...]

    @property
    def text(self) -> list[str]:
        """A string a row, without the spaces at its end."""
        return ["".join(cell.char for cell in row).rstrip() for row in self.rows]


def picture_of(app: App) -> Picture:
    """What is on the screen now, a dialog and what it covers included."""
    update = app.screen._compositor.render_update(full=True, screen_stack=app._background_screens)
    rows = []
    for strips in update.strips:  # type: ignore[union-attr]
        cells: list[Cell] = []
        for segment in (segment for strip in strips for segment in strip if not segment.control):
            look, ground = _look(segment.style or Style())
            for char in segment.text:
                seen = look if char != " " or "u" in look.split() or "s" in look.split() else ""
                cells += [Cell(char, seen, ground), *[Cell("", seen, ground)] * (cell_len(char) - 1)]
        rows.append(tuple(cells))
    return Picture(tuple(rows))


def _look(style: Style) -> tuple[str, str]:
    letter, ground = _hex(style.color, True), _hex(style.bgcolor, False)
    if style.reverse:
        letter, ground = ground, letter
    if style.dim:
        pairs = [(int(letter[i : i + 2], 16), int(ground[i : i + 2], 16)) for i in (0, 2, 4)]
        letter = "".join(f"{(3 * a + 2 * b) // 5:02x}" for a, b in pairs)
    faces = zip("bius", (style.bold, style.italic, style.underline, style.strike), strict=True)
    return " ".join([f"f{letter}", *(face for face, there in faces if there)]), ground


def _hex(color: Color | None, foreground: bool) -> str:
    triplet = (color or Color.default()).get_truecolor(SVG_EXPORT_THEME, foreground)
    return triplet.hex[1:]


# To and from SVG ---------------------------------------------------------------------------------------------


def to_svg(picture: Picture, marked: set[tuple[int, int]] = frozenset()) -> str:  # type: ignore[assignment]
    """``marked``: cells (row, column) to draw a frame around."""
    grounds = Counter(cell.ground for row in picture.rows for cell in row)
    canvas = min(grounds, key=lambda ground: (-grounds[ground], ground))
    width, height = CELL * len(picture.rows[0]), ROW * len(picture.rows)
    looks = {name for row in picture.rows for cell in row for name in cell.look.split()[:1]}
    css = [f".{name}{{fill:#{name[1:]}}}" for name in sorted(looks)]
    css += [f".o{ground}{{fill:#{ground}}}" for ground in sorted(grounds) if ground != canvas]
    lines = [
        f'<svg xmlns="{NAMESPACE}" viewBox="0 0 {width} {height}" xml:space="preserve"><style>',
        f"text{{font-family:{FONT};font-size:16.6px;font-variant-ligatures:none;white-space:pre}}",
        ".b{font-weight:bold}.i{font-style:italic}.u{text-decoration:underline}.s{text-decoration:line-through}",
        *css,
        f'</style><rect width="{width}" height="{height}" fill="#{canvas}"/>',
        *(_row_svg(row, y, canvas) for y, row in enumerate(picture.rows)),
    ]
    for y, cells in groupby(sorted(marked), key=lambda at: at[0]):
        columns = [x for _, x in cells]
        for first, last in _spans(columns):
            box = f'x="{first * CELL}" y="{y * ROW}" width="{(last - first + 1) * CELL}" height="{ROW}"'
            lines.append(f'<rect {box} fill="none" stroke="#ff0000" stroke-width="2"/>')
    return "\n".join([*lines, "</svg>"]) + "\n"


def _spans(columns: list[int]) -> list[tuple[int, int]]:
    """Neighbours together: first and last of each stretch."""
    spans: list[tuple[int, int]] = []
    for x in columns:
        spans = [*spans[:-1], (spans[-1][0], x)] if spans and spans[-1][1] == x - 1 else [*spans, (x, x)]
    return spans


def _row_svg(row: tuple[Cell, ...], y: int, canvas: str) -> str:
    x, parts = 0, []
    for ground, cells in groupby(row, key=lambda cell: cell.ground):
        width = len(list(cells))
        if ground != canvas:
            size = width * CELL
            parts.append(f'<path class="o{ground}" d="M{x * CELL} {y * ROW}h{size}v{ROW}h-{size}z"/>')
        x += width
    runs = [f'<tspan x="{x * CELL}" class="{look}">{escape(text)}</tspan>' for x, look, text in _runs(row)]
    return "".join([*parts, *([f'<text y="{y * ROW + BASE}">', *runs, "</text>"] if runs else [])])


def _runs(row: tuple[Cell, ...]) -> list[tuple[int, str, str]]:
    """Column, look and text of what is written in a row. Spaces go with what stands before them, if it is near."""
    runs: list[tuple[int, str, str]] = []
    start, look, text = 0, "", ""
    for x, cell in enumerate([*row, Cell(look="end")]):
        lined = "u" in look or "s" in look
        if text and (cell.look == look or not (cell.look or lined)) and not text.endswith(" " * GAP):
            text += cell.char
            continue
        if text.strip() or lined:
            runs.append((start, look, text if lined else text.rstrip()))
        start, look, text = x, cell.look, cell.char if cell.look else ""
    return runs


def from_svg(svg: str) -> Picture:
    """The picture that ``to_svg`` has written."""
    root = ElementTree.fromstring(svg)
    width, height = (int(size) for size in root.attrib["viewBox"].split()[2:])
    canvas = root.find(f"{{{NAMESPACE}}}rect").attrib["fill"][1:]  # type: ignore[union-attr]
    grid = [[Cell(ground=canvas)] * (width // CELL) for _ in range(height // ROW)]
    for element in root:
        match element.tag.rpartition("}")[2]:
            case "path":
                x, y, size = (int(number) for number in re.findall(r"\d+", element.attrib["d"])[:3])
                for column in range(x // CELL, (x + size) // CELL):
                    grid[y // ROW][column] = Cell(ground=element.attrib["class"][1:])
            case "text":
                row = grid[(int(element.attrib["y"]) - BASE) // ROW]
                for run in element:
                    look, at = run.attrib["class"], int(run.attrib["x"]) // CELL
                    for char in run.text or "":
                        seen = look if char != " " or "u" in look.split() or "s" in look.split() else ""
                        for part in (char, *[""] * (cell_len(char) - 1)):
                            row[at] = Cell(part, seen, row[at].ground)
                            at += 1
    return Picture(tuple(tuple(row) for row in grid))


# Kept pictures -----------------------------------------------------------------------------------------------


def differing(kept: Picture, now: Picture) -> set[tuple[int, int]]:
    """Cells of ``now`` that are not as they were."""
    cells = {(y, x) for y, row in enumerate(now.rows) for x in range(len(row))}
    if [len(row) for row in kept.rows] != [len(row) for row in now.rows]:
        return cells
    return {(y, x) for y, x in cells if kept.rows[y][x] != now.rows[y][x]}


def compare(now: Picture, name: str, failures: Path, accept: bool) -> None:
    """Assert that ``pictures/<name>.svg`` looks like ``now``; with ``accept``, have it do so.

    Where it does not, ``failures`` receives what the screen looks like, marked, and what it should look like.
    """
    path = PICTURES / f"{name}.svg"
    svg = to_svg(now)
    kept_svg = path.read_text() if path.exists() else ""
    if accept:
        path.parent.mkdir(parents=True, exist_ok=True)
        if svg != kept_svg:
            path.write_text(svg)
        return
    kept = from_svg(kept_svg) if kept_svg else Picture(())
    differ = differing(kept, now)
    if not differ:
        return
    seen = failures / f"{name.replace('/', '-')}.svg"
    seen.write_text(to_svg(now, differ))
    seen.with_suffix(".kept.svg").write_text(kept_svg)
    rows = sorted({y for y, _ in differ})
    diff = "\n".join(unified_diff(kept.text, now.text, "kept", "now", lineterm="", n=0))
    raise AssertionError(
        f"{path.relative_to(PICTURES.parent.parent.parent)} {'differs' if kept_svg else 'is missing'}:"
        f" {len(differ)} cells, in rows {', '.join(map(str, rows))}\n"
        f"look at {seen}, and at .kept.svg beside it; --accept-pictures keeps it\n"
        f"{diff or '(the same text in other colours)'}"
    )


async def shot(app: App, size: tuple[int, int], before: Callable[[Pilot], Awaitable[None]]) -> Picture:
    """What ``app`` shows once ``before`` has been done with it."""
    async with app.run_test(size=size) as pilot:
        await before(pilot)
        return picture_of(app)
