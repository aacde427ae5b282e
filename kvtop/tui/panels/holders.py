"""Top holders: who costs the pool most?"""

from __future__ import annotations

from textual import on
from textual.app import ComposeResult

from kvtop.state.snapshot import MOST_HOLDERS
from kvtop.state.windows import Holder, holders
from kvtop.tui.frame import Frame
from kvtop.tui.panels.base import Panel
from kvtop.tui.text import clean, percent, short
from kvtop.tui.widgets.line_table import Cell, Column, LineTable

_COLUMNS = [
    Column("block·s", 7, "right"),
    Column("blocks", 6, "right"),
    Column("of pool", 7, "right"),
    Column("cached", 7, "right", 48),
    Column("holder", 0),
]


class HoldersPanel(Panel):
    """Requests, and tenants where there are several, by block-seconds."""

    TITLE = "Top holders"
    QUESTION = "who holds the pool?"
    HELP = """\
block·s  blocks held, times how long, since it arrived: what it has cost
         the pool. A shared block counts for each of its holders
blocks   it holds now; of pool: of all blocks
cached   of its prompt, taken from the prefix cache
Of tenants, where there are several, all requests count, ended ones too;
their blocks are counted once a holder, so they are no share of the pool.
Enter leads to the request."""

    def compose_body(self) -> ComposeResult:
        yield LineTable(_COLUMNS, opens="request")

    def show_frame(self, frame: Frame) -> None:
        rows = {_id(holder): holder for holder in holders(frame.state, MOST_HOLDERS)}
        pool = frame.state.pool
        table = self.query_one(LineTable)
        attached = frame.state.attached is not None
        table.empty_text = (
            "not reported: servers do not tell who holds what" if attached else "nobody has held a block yet"
        )
        table.set_rows(list(rows), lambda row: _cells(rows[row], pool.num_blocks if pool else 0))

    @on(LineTable.Opened)
    def _on_opened(self, event: LineTable.Opened) -> None:
        event.stop()
        kind, _, name = event.row_id.partition(" ")
        if kind == "request":
            self.kvtop.select("request", name)


def _id(holder: Holder) -> str:
    return f"{holder.kind} {holder.name}"


def _cells(holder: Holder, num_blocks: int) -> list[Cell]:
    tenant = holder.kind == "tenant"
    name = f"tenant {clean(holder.name) or '(none)'}" if tenant else clean(holder.name)
    return [
        (short(holder.block_ns / 1e9), "strong" if tenant else "text"),
        (short(holder.num_blocks), "text"),
        ("-" if tenant else percent(holder.num_blocks, num_blocks), "text"),
        ("" if tenant else percent(holder.cached_tokens, holder.num_prompt), "soft"),
        (name, "strong" if tenant else "text"),
    ]
