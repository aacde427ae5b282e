"""Elements of the page. Every text goes through ``safe``: names of workloads and models are whatever a user wrote."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kvtop.plots.sheet import safe


@dataclass(frozen=True, slots=True)
class Cell:
    """A table's cell: its text, and a second line in small print."""

    text: str
    aside: str = ""


Row = Sequence[Cell | str]


def table(header: Sequence[str], rows: Iterable[Row], *, title: str = "", text: bool = False) -> str:
    """A table that scrolls by itself where the page is narrow. ``text``: cells are words, not numbers."""
    head = "".join(f'<th scope="col">{safe(cell)}</th>' for cell in header)
    body = "\n".join(f"<tr>{_row(row)}</tr>" for row in rows)
    caption = f"<caption>{safe(title)}</caption>" if title else ""
    kind = ' class="text"' if text else ""
    return (
        f'<div class="scroll" tabindex="0"><table{kind}>{caption}<thead><tr>{head}</tr></thead>\n'
        f"<tbody>\n{body}\n</tbody></table></div>"
    )


def _row(row: Row) -> str:
    first, *others = row
    return f'<th scope="row">{_cell(first)}</th>' + "".join(f"<td>{_cell(cell)}</td>" for cell in others)


def _cell(cell: Cell | str) -> str:
    if isinstance(cell, str):
        return safe(cell)
    return f"{safe(cell.text)}<small>{safe(cell.aside)}</small>" if cell.aside else safe(cell.text)


def bullets(texts: Iterable[str]) -> str:
    """A list; "" without entries."""
    items = "\n".join(f"<li>{safe(text)}</li>" for text in texts)
    return f"<ul>\n{items}\n</ul>" if items else ""


def paragraph(text: str) -> str:
    return f"<p>{safe(text)}</p>"


def heading(level: int, text: str, anchor: str) -> str:
    return f'<h{level} id="{safe(anchor)}">{safe(text)}</h{level}>'
