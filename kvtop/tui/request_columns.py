"""The columns of the table of requests: how each is drawn and what it is ordered by. A new one is one line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kvtop.state.numbers import MISS_WORDS
from kvtop.state.request_rows import EndedRow, LiveRow, Row
from kvtop.state.unblock import available_blocks, unblocks
from kvtop.tui.text import clean, duration, plural, seconds, short
from kvtop.tui.widgets.line_table import Cell, Column
from kvtop.tui.words import wait_reason

_STATES = {
    "prefill": ("prefill", "warn"),
    "decode": ("decode", "good"),
    "waiting": ("waiting", "warn"),
    "preempted": ("preempt", "bad"),
    "rejected": ("rejected", "bad"),
    "failed": ("failed", "bad"),
}

Value = float | int | str | None


@dataclass(frozen=True, slots=True)
class RequestColumn:
    """``order``: what rows are ordered by under this column, largest first unless ``rising``; None goes last."""

    key: str
    column: Column
    text: Callable[[Row], str]
    order: Callable[[Row], Value] | None = None
    rising: bool = False


def _count(number: float | None) -> str:
    if number is None:
        return ""
    return f"{number:,}" if number < 10_000 else short(number)


def _ns(value: float | None) -> str:
    return "" if value is None else duration(value)


def _itl(row: Row) -> str:
    """ "-": there is a first token, and no gap yet. An empty cell would be taken over by what stands behind it."""
    return "-" if row.itl_ns is None and row.ttft_ns is not None else _ns(row.itl_ns)


def _block_seconds(row: Row) -> str:
    return (
        ""
        if row.block_ns is None
        else short(row.block_ns / 1e9)
        if row.block_ns >= 1e10
        else f"{row.block_ns / 1e9:.1f}"
    )


def _hit(row: Row) -> str:
    return "" if row.hit is None else f"{100 * row.hit:.0f} %"


def _output(row: Row) -> str:
    return f"{_count(row.output)}/{_count(row.max)}" if row.status != "waiting" else ""


def _computed(row: Row) -> str:
    return "" if row.computed is None else f"{_count(row.computed)}/{_count(row.known)}"


def _eta(row: Row) -> str:
    return "" if row.eta_ns is None else f"~{duration(row.eta_ns)}"


def _preempted(row: Row) -> str:
    return _count(row.preemptions) if row.preemptions or row.status != "waiting" else ""


def _why(row: Row) -> str:
    return "" if row.status == "waiting" else clean(MISS_WORDS.get(row.why, row.why.replace("_", " ")))


COLUMNS: tuple[RequestColumn, ...] = (
    RequestColumn("id", Column("request", 10), lambda r: clean(r.name)),
    RequestColumn("state", Column("state", 8), lambda r: _STATES.get(r.status, (clean(r.status), ""))[0]),
    RequestColumn("tenant", Column("tenant", 8, "left", 140), lambda r: clean(r.tenant), lambda r: r.tenant, True),
    RequestColumn("prefix", Column("prefix", 8, "left", 170), lambda r: r.prefix, lambda r: r.prefix or None, True),
    RequestColumn("age", Column("age", 6, "right"), lambda r: seconds(r.age_ns), lambda r: r.age_ns),
    RequestColumn("prompt", Column("prompt", 6, "right"), lambda r: _count(r.prompt), lambda r: r.prompt),
    RequestColumn("output", Column("output", 9, "right"), _output, lambda r: r.output),
    RequestColumn("cached", Column("cached", 6, "right", 140), lambda r: _count(r.cached), lambda r: r.cached),
    RequestColumn("hit", Column("hit", 5, "right"), _hit, lambda r: r.hit),
    RequestColumn("why", Column("match ended", 14, "left", 170), _why, lambda r: r.why or None, True),
    RequestColumn("computed", Column("computed", 11, "right", 220), _computed, lambda r: r.computed),
    RequestColumn("blocks", Column("blocks", 6, "right"), lambda r: _count(r.blocks), lambda r: r.blocks),
    RequestColumn("shared", Column("shared", 6, "right", 120), lambda r: _count(r.shared), lambda r: r.shared),
    RequestColumn("tail", Column("tail", 4, "right", 190), lambda r: _count(r.tail), lambda r: r.tail),
    RequestColumn("blk·s", Column("blk·s", 5, "right", 100), _block_seconds, lambda r: r.block_ns),
    RequestColumn("queue", Column("queue", 7, "right", 150), lambda r: _ns(r.queue_ns), lambda r: r.queue_ns),
    RequestColumn("TTFT", Column("TTFT", 7, "right"), lambda r: _ns(r.ttft_ns), lambda r: r.ttft_ns),
    RequestColumn("ITL", Column("ITL", 7, "right"), _itl, lambda r: r.itl_ns),
    RequestColumn("TPOT", Column("TPOT", 7, "right", 220), lambda r: _ns(r.tpot_ns), lambda r: r.tpot_ns),
    RequestColumn("ETA", Column("ETA", 8, "right", 180), _eta, lambda r: r.eta_ns),
    RequestColumn("preempted", Column("pre", 3, "right", 100), _preempted, lambda r: r.preemptions),
    RequestColumn("redo", Column("recomputed", 10, "right", 180), lambda r: _count(r.redo or None), lambda r: r.redo),
    RequestColumn("reason", Column("why", 0), lambda r: doing(r), lambda r: r.wait_ns or None),
)

BY_KEY = {column.key: column for column in COLUMNS}
SORTS = ("", *(column.key for column in COLUMNS if column.order is not None))
"""What ``s`` goes through; "": running ones, the queue, then what ended last."""


_FIRST = ("id", "state", "tenant", "prefix", "age", "prompt")


def cells_of(row: Row, roomy: bool = True, names: bool = True) -> list[Cell]:
    """A cell for every column. Not ``roomy``: what somebody waits for takes the place of all but the first ones."""
    style = "text" if row.is_running else "soft" if isinstance(row, LiveRow) else "faint"
    few = row if not roomy and isinstance(row, LiveRow) and not row.is_running else None
    shown = (*_FIRST, "reason") if few is not None else BY_KEY
    cells = [
        (column.text(row), _style(column.key, row, style)) if column.key in shown else ("", style) for column in COLUMNS
    ]
    return [*cells[:-1], (_waits(few, names), cells[-1][1])] if few is not None else cells


def _style(key: str, row: Row, plain: str) -> str:
    match key:
        case "id":
            return "strong" if row.is_running else plain
        case "state":
            return _STATES.get(row.status, ("", plain))[1]
        case "preempted" | "redo":
            return "warn" if row.preemptions and isinstance(row, LiveRow) else "faint"
        case "reason":
            return _reason_style(row)
    return plain


def _reason_style(row: Row) -> str:
    if isinstance(row, EndedRow):
        return "bad" if row.status in ("rejected", "failed") else "faint"
    return "soft" if row.is_running else "warn"


def doing(row: Row) -> str:
    """What it does; what it waits for, what there is and when that should be enough; how it ended."""
    if isinstance(row, EndedRow):
        return ending(row)
    if not row.is_running:
        return _waits(row)
    return f"{100 * row.seq.num_computed // max(1, row.known)} %" if row.status == "prefill" else ""


def _waits(row: LiveRow, names: bool = True) -> str:
    """Without ``names`` not for whose end: that is the half of the line that would be cut."""
    state, seq = row.state, row.seq
    text = wait_reason(seq, state)
    if row.reason == "no_blocks" and seq.need_blocks is not None:
        have = available_blocks(state)
        if have is not None:
            text = f"needs {plural(seq.need_blocks, 'block')}, {have:,} there now"
    ahead = unblocks(state, seq)
    if ahead is None:
        return text
    if not names:
        return f"{text}; in ~{duration(ahead.ns)}"
    who = clean(ahead.after[-1]) if len(ahead.after) == 1 else f"{len(ahead.after)} requests"
    return f"{text}; ~{duration(ahead.ns)}, when {who} end{'s' if len(ahead.after) == 1 else ''}"


def ending(row: EndedRow) -> str:
    """How a request ended, in words."""
    event = row.event
    match event.finish_reason:
        case "capacity":
            return "pool too small to go on"
        case "rejected" | "failed" as reason:
            return f"{reason}: {clean(event.error)}" if event.error else reason
        case other:
            return clean(other or "finished")


def sorted_rows(rows: list[Row], key: str, reverse: bool) -> list[Row]:
    """``rows`` ordered by a column; equal ones stay as they are, those without a value go last."""
    column = BY_KEY.get(key)
    if column is None or column.order is None:
        return rows[::-1] if reverse else rows
    valued = [(value, row) for row in rows if (value := column.order(row)) is not None]
    without = [row for row in rows if column.order(row) is None]
    valued.sort(key=lambda pair: pair[0], reverse=column.rising == reverse)
    return [*(row for _, row in valued), *without]
