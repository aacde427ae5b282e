"""Tables of a comparison in a given width: long labels become letters with a legend, many columns several tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kvtop.cli.text import table

if TYPE_CHECKING:
    from kvtop.analysis.compare import Comparison

WIDTH = 80
GAP = 2


class Names:
    """What the columns are called above the tables: their labels where those fit, else A, B, C."""

    def __init__(self, comparison: Comparison, rows: Sequence[Sequence[str]], width: int) -> None:
        self.labels = [column.label for column in comparison.columns]
        self._difference = ["difference"] if len(self.labels) == 2 else []
        self.lettered = _width([["", *self.labels, *self._difference], *rows]) > width
        self.short = [_letter(index) for index in range(len(self.labels))] if self.lettered else self.labels

    def header(self, first: str, *, difference: bool = True) -> list[str]:
        return [first, *self.short, *(self._difference if difference else [])]

    def legend(self) -> list[str]:
        """What the letters stand for; empty where none are used."""
        pairs = zip(self.short, self.labels, strict=True)
        return ["", *(f"  {letter}  {label}" for letter, label in pairs)] if self.lettered else []


def _letter(index: int) -> str:
    return chr(ord("A") + index) if index < 26 else f"#{index + 1}"


def fitted(rows: Sequence[Sequence[str]], header: Sequence[str], width: int) -> str:
    """One table, or several one below the other, each with the first column and as many others as fit."""
    lines = [list(header), *map(list, rows)]
    widths = _widths(lines)
    blocks: list[list[int]] = [[]]
    for index in range(1, len(widths)):
        used = widths[0] + sum(GAP + widths[other] for other in blocks[-1])
        if blocks[-1] and used + GAP + widths[index] > width:
            blocks.append([])
        blocks[-1].append(index)
    return "\n\n".join(
        table(
            [[row[0], *(row[index] if index < len(row) else "" for index in block)] for row in rows],
            header=[header[0], *(header[index] for index in block)],
        )
        for block in blocks
    )


def _widths(lines: Sequence[Sequence[str]]) -> list[int]:
    return [max(len(line[i]) if i < len(line) else 0 for line in lines) for i in range(max(map(len, lines)))]


def _width(lines: Sequence[Sequence[str]]) -> int:
    widths = _widths(lines)
    return sum(widths) + GAP * (len(widths) - 1)
