"""How the blocks of a pool fall into the cells of a rectangle."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Grid:
    """How blocks fall into cells: ``density`` blocks a cell, ``columns`` cells a row, ``pitch`` characters a cell."""

    density: int
    columns: int
    pitch: int
    gutter: int
    num_rows: int

    @property
    def blocks_a_row(self) -> int:
        return self.density * self.columns


def _round_up(density: int) -> int:
    """The smallest density not below this that is easy to read: 1 2 3 4 5 6 8 10 12 16 20 24 32 40 48 64 ..."""
    scale = 1
    while density > 6 * scale:
        scale *= 2
    return next(n * scale for n in (1, 2, 3, 4, 5, 6) if n * scale >= density)


def lay_out(num_blocks: int, width: int, height: int, density: int | None = None) -> Grid:
    """The grid that shows ``num_blocks`` best in ``width`` by ``height``.

    ``density`` None: the smallest round number at which everything fits; a number: that many, and the map scrolls.
    """
    gutter = len(f"{max(0, num_blocks - 1):,}") + 1
    if width < gutter + 24:
        gutter = 0
    room = max(1, width - gutter)
    columns = room // 8 * 8 or room  # row numbers in the gutter are multiples of eight
    if density is None:
        density = _round_up(-(-num_blocks // (columns * max(1, height))))
    pitch = 1
    fewer = room // 2 // 8 * 8
    if density == 1 and fewer and num_blocks <= fewer * height:  # room enough for a blank between cells
        pitch, columns = 2, fewer
    num_rows = -(-num_blocks // (density * columns))
    return Grid(density, columns, pitch, gutter, num_rows)
