"""Elements of the page. Every text goes through ``safe``: names of workloads and models are whatever a user wrote."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kvtop.plots.sheet import safe
from kvtop.values_in_text import bound

Row = Sequence[str]


def table(header: Sequence[str], rows: Iterable[Row], *, kind: str = "numbers") -> str:
    """A table that scrolls by itself where the page is narrow. ``kind``: numbers, counted (the second column is
    n), told (the last column is words), text (cells are words, which may wrap) or runs (words in one line).
    """
    head = "".join(f'<th scope="col">{safe(cell)}</th>' for cell in header)
    body = "\n".join(f"<tr>{_row(row)}</tr>" for row in rows)
    return (
        f'<div class="scroll" tabindex="0"><table class="{kind}"><thead><tr>{head}</tr></thead>\n'
        f"<tbody>\n{body}\n</tbody></table></div>"
    )


def _row(row: Row) -> str:
    first, *others = row
    return f'<th scope="row">{safe(first)}</th>' + "".join(f"<td>{safe(cell)}</td>" for cell in others)


def pairs(entries: Iterable[tuple[str, str]]) -> str:
    """Names with their values, in as many columns as there is room for."""
    items = "\n".join(f"<div><dt>{safe(name)}</dt><dd>{safe(value)}</dd></div>" for name, value in entries)
    return f"<dl>\n{items}\n</dl>"


def bullets(texts: Iterable[str]) -> str:
    """A list; "" without entries."""
    items = "\n".join(f"<li>{bound(safe(text))}</li>" for text in texts)
    return f"<ul>\n{items}\n</ul>" if items else ""


def paragraph(text: str) -> str:
    return f"<p>{bound(safe(text))}</p>"


def heading(level: int, text: str, anchor: str) -> str:
    return f'<h{level} id="{safe(anchor)}">{safe(text)}</h{level}>'
