"""What is on the screen as a file: a picture, its text, its numbers, or the rows of its table."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

from textual.app import App
from textual.screen import Screen

from kvtop.engine.errors import UsageError
from kvtop.results.files import check_replaceable, write_bytes
from kvtop.state.model import RunState
from kvtop.state.snapshot import snapshot
from kvtop.tui.widgets.line_table import LineTable

FORMATS = {".svg": "a picture", ".txt": "the text", ".json": "the numbers", ".csv": "the rows of the table"}


def check_export(name: str) -> None:
    """Raises: UsageError, FileError: nothing can be written there, or in that format."""
    path = Path(name).expanduser()
    if path.suffix not in FORMATS:
        kinds = ", ".join(f"{suffix} ({what})" for suffix, what in FORMATS.items())
        raise UsageError(f"{name or 'no name'}: expected a name that ends in {kinds}")
    check_replaceable(path)


def export(app: App, screen: Screen, state: RunState, name: str) -> Path:
    """Write what ``screen`` shows of ``state`` in the format that the name's end says; returns the path.

    Raises:
        UsageError: another ending, or no table for .csv; FileError: the disk refuses.
    """
    check_export(name)
    path = Path(name).expanduser()
    match path.suffix:
        case ".svg":
            text = app.export_screenshot(title=f"kvtop step {state.step}")
        case ".txt":
            text = screen_text(screen)
        case ".json":
            text = json.dumps(snapshot(state), indent=2, allow_nan=False) + "\n"
        case _:
            text = table_csv(screen)
    write_bytes(path, text.encode())
    return path


def screen_text(screen: Screen) -> str:
    """Every row of the screen, without colours."""
    rows = screen._compositor.render_strips()
    return "\n".join("".join(segment.text for segment in row).rstrip() for row in rows) + "\n"


def table_csv(screen: Screen) -> str:
    """The table that has the focus, or the largest one: all its rows and columns.

    Raises:
        UsageError: there is no table on this screen.
    """
    tables = list(screen.query(LineTable))
    focused = screen.focused
    table = focused if isinstance(focused, LineTable) else max(tables, key=lambda one: one.size.area, default=None)
    if table is None:
        raise UsageError("there is no table on this screen: export .json, .txt or .svg")
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([column.title for column in table.columns])
    for row_id in table.ids:
        cells = table.cells(row_id)
        if len(cells) == len(table.columns):  # not what heads a group
            writer.writerow([text for text, _ in cells])
    return out.getvalue()
