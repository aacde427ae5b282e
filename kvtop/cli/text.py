"""Numbers and tables as text: units a reader can take in, columns that line up, '-' for what is not reported."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Sequence

MISSING = "-"


def format_bytes(num_bytes: int | float | None) -> str:
    """``42949672960`` as ``40.00 GiB``; whole bytes below 1 KiB."""
    if num_bytes is None:
        return MISSING
    if abs(num_bytes) < 1024:
        return f"{num_bytes:.0f} B"
    value = float(num_bytes)
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        value /= 1024
        if abs(value) < 1024 or unit == "TiB":
            return f"{value:,.2f} {unit}"
    raise AssertionError("unreachable")


def format_ns(value_ns: float | None) -> str:
    """Nanoseconds with three significant digits in us, ms or s; one unit a number, never a bare one."""
    if value_ns is None:
        return MISSING
    magnitude = abs(value_ns)
    if magnitude == 0:
        return "0 ms"
    for limit, scale, unit in ((999.5e3, 1e3, "us"), (999.5e6, 1e6, "ms"), (float("inf"), 1e9, "s")):
        if magnitude < limit:
            return f"{significant(value_ns / scale)} {unit}"
    raise AssertionError("unreachable")


def significant(value: float | None, digits: int = 3) -> str:
    """``digits`` significant digits without an exponent: 0.0123, 1.23, 12.3, 12,345."""
    if value is None:
        return MISSING
    if value == 0:
        return "0"
    magnitude = f"{abs(value):.{digits - 1}e}"
    exponent = int(magnitude.rpartition("e")[2])
    return f"{value:,.{max(0, digits - 1 - exponent)}f}"


def percent(ratio: float | None) -> str:
    """``0.4321`` as ``43.2 %``."""
    return MISSING if ratio is None else f"{100 * ratio:z.1f} %"


def signed(value: float, digits: int = 1) -> str:
    """``+1.2`` or ``-1.2``; what rounds to nothing has no sign: ``0.0``."""
    text = f"{value:+z,.{digits}f}"
    return text if any(char in "123456789" for char in text) else text[1:]


def harmless(text: str) -> str:
    """Lines without other control characters: a name in a file may hold what a terminal obeys."""
    return "".join(char if char.isprintable() or char == "\n" else "?" for char in text)


def table(rows: Sequence[Sequence[str]], *, header: Sequence[str] | None = None, gap: str = "  ") -> str:
    """Aligned columns: the first to the left, the others to the right. Lines carry no trailing blanks."""
    lines = [list(header), *map(list, rows)] if header else [list(row) for row in rows]
    widths = [max(len(line[i]) if i < len(line) else 0 for line in lines) for i in range(max(map(len, lines)))]
    if header:
        lines.insert(1, ["-" * width for width in widths])
    return "\n".join(
        gap.join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=False))
        ).rstrip()
        for line in lines
    )


def fitting(pieces: Sequence[str], width: int | None, indent: str = "    ") -> str:
    """Pieces one after the other; with ``width``, a new line where the next one would not fit. No piece is broken."""
    lines = [pieces[0]]
    for piece in pieces[1:]:
        longer = f"{lines[-1]} {piece}"
        if width is None or len(longer) <= width:
            lines[-1] = longer
        else:
            lines.append(indent + piece.strip())
    return "\n".join(lines)


def cut_between(text: str, width: int) -> str:
    """``text`` if it fits, else what fits of its parts between commas, and ``...``: half a number is a wrong one."""
    if len(text) <= width:
        return text
    end = text.rfind(", ", 0, max(0, width - 2))
    return f"{text[:end]} ..." if end > 0 else text[:width]


def listing(entries: dict[str, str], *, indent: str = "  ", width: int | None = None) -> str:
    """Names and one-line descriptions, aligned; with ``width``, descriptions wrap in their own column."""
    column = max(map(len, entries), default=0)
    lines = []
    for name, text in entries.items():
        room = None if width is None else max(20, width - len(indent) - column - 2)
        parts = [text] if room is None else textwrap.wrap(text, room) or [""]
        lines += [f"{indent}{(name if not i else '').ljust(column)}  {part}".rstrip() for i, part in enumerate(parts)]
    return "\n".join(lines)


def output_width() -> int | None:
    """Columns of the terminal on stdout (COLUMNS wins); None where there is none: a file keeps one line an entry."""
    if not sys.stdout.isatty() and "COLUMNS" not in os.environ:
        return None
    return shutil.get_terminal_size().columns
