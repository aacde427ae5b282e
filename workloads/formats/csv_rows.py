"""CSV traces: rows with their line numbers, columns by name, and cells as numbers or errors that name the cell."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from decimal import Decimal

import msgspec

from kvtop.engine.errors import WorkloadError
from kvtop.workloads.files import TextFile, each_row
from kvtop.workloads.formats.base import MAX_TIME_NS, NS_PER_S, check_length, missing_key
from kvtop.workloads.words import shorten

_COUNT = re.compile(r"-?\d{1,18}", flags=re.ASCII)
_NUMBER = re.compile(r"-?\d{1,18}(\.\d{0,30})?([eE][+-]?\d{1,2})?", flags=re.ASCII)


class Cell(msgspec.Struct, frozen=True):
    """One cell with its place, so that what is wrong with it can be said."""

    text: str
    key: str
    path: str
    line: int

    def fail(self, expected: str) -> WorkloadError:
        return WorkloadError(f"{self.key} is {shorten(self.text)}, expected {expected}", path=self.path, row=self.line)

    def count(self, low: int = 1) -> int:
        """A number of tokens."""
        digits = self.text.strip()
        if not _COUNT.fullmatch(digits):
            raise self.fail("an integer")
        value = int(digits)
        check_length(value, self.key, path=self.path, line=self.line, low=low)
        return value

    def number(self) -> float:
        """A finite number from 0 up."""
        text = self.text.strip()
        if not _NUMBER.fullmatch(text) or not 0 <= (value := float(text)) < float("inf"):
            raise self.fail("a number from 0 up")
        return value

    def seconds_ns(self) -> int | None:
        """Seconds, whole or not, as exact ns (half a ns rounds to even); None where the cell is empty."""
        text = self.text.strip()
        if not text:
            return None
        if not _NUMBER.fullmatch(text) or abs(value := Decimal(text) * NS_PER_S) > MAX_TIME_NS:
            raise self.fail("a number of seconds")
        return round(value)


class Table(msgspec.Struct, frozen=True):
    """Rows under a header of ``names``. ``columns``: position by name, of those that are read."""

    path: str
    names: list[str]
    columns: dict[str, int]
    lines: Iterator[tuple[int, list[str]]]

    def __iter__(self) -> Iterator[tuple[int, dict[str, Cell]]]:
        """(line, cells by name) of every row that is not blank.

        Raises:
            WorkloadError: a row with more or fewer cells than the header, or bad CSV.
        """
        for line, cells in self.lines:
            if len(cells) != len(self.names):
                raise WorkloadError(f"found {len(cells)} columns, expected {len(self.names)}", path=self.path, row=line)
            yield line, {key: Cell(cells[i], key, self.path, line) for key, i in self.columns.items()}


def read_table(file: TextFile, keys: tuple[str, ...], *, wanted: tuple[str, ...] = ()) -> Table:
    """The table below a header that must show ``keys``; ``wanted`` are read too, where they are there.

    Raises:
        WorkloadError: a missing column (names the nearest), or one that appears twice.
    """
    lines = csv_lines(file)
    line, header = next(lines, (1, []))
    names = [name.strip() for name in header]
    for key in keys:
        if key not in names:
            raise missing_key(key, names, valid=(*keys, *wanted), what="column", path=file.path, line=line)
    for key in (*keys, *wanted):
        if names.count(key) > 1:
            raise WorkloadError(f"column {key!r} appears {names.count(key)} times", path=file.path, row=line)
    read = {name: names.index(name) for name in (*keys, *wanted) if name in names}
    return Table(file.path, names, read, lines)


def csv_lines(file: TextFile) -> Iterator[tuple[int, list[str]]]:
    """Rows that are not blank, with their line numbers."""
    reader = csv.reader(each_row(file.text), strict=True)
    try:
        for cells in reader:
            if cells and not (len(cells) == 1 and not cells[0].strip()):
                yield reader.line_num, cells
    except csv.Error as error:
        raise WorkloadError(f"bad CSV: {error}", path=file.path, row=reader.line_num) from None
