"""The sequences that hold most blocks: what fills the room a small pool leaves under its map."""

from __future__ import annotations

from heapq import nlargest

from kvtop.state.model import PoolState, SequenceState
from kvtop.tui import glyphs
from kvtop.tui.frame import Frame
from kvtop.tui.text import clean, fit, percent, whole
from kvtop.tui.widgets.lines import Line

_BEFORE_BAR, _AFTER_BAR = 12 + 2 + 6 + 9 + 2, 14


def holder_lines(frame: Frame, width: int, height: int) -> list[Line]:
    """A heading and at most ``height - 1`` sequences by blocks held; a full bar is the largest holder."""
    pool = frame.state.pool
    if pool is None or height < 2:
        return []
    air: list[Line] = [[]] if height >= 8 else []
    height -= len(air)
    holders = [seq for seq in frame.state.sequences.values() if seq.num_held]
    top = nlargest(height - 1, holders, key=lambda seq: seq.num_held)
    if not top:
        what = "nobody holds a block" if frame.state.attached is None else "who holds a block is not reported"
        return [*air, [(what, "soft")]]
    most = top[0].num_held
    heading = f"{'held most by':<14}{'blocks':>6}{'of pool':>9}"
    return [
        *air,
        [(heading, "faint")],
        *(_line(seq, pool, most, max(0, width - _BEFORE_BAR - _AFTER_BAR)) for seq in top),
    ]


def _line(seq: SequenceState, pool: PoolState, most: int, room: int) -> Line:
    held = seq.num_held
    shared = sum(1 for block in seq.held if pool.refcount[block] > 1)
    length = max(1, held * room // most)
    part = min(length, -(-shared * length // held))
    return [
        (fit(clean(seq.seq_id), 12), "text"),
        (f"  {whole(held):>6}{percent(held, pool.num_blocks):>9}  ", "text"),
        (glyphs.MANY * part, "shared"),
        (glyphs.USED * (length - part), "used"),
        (f"  {whole(shared)} shared" if shared else "", "soft"),
    ]
