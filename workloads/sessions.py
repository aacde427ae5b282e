"""Which request waits for which: the turns of a session, sub-agents and the parent that waits for them."""

from __future__ import annotations

import msgspec

from kvtop.engine.errors import UnknownName, WorkloadError
from kvtop.workloads.rows import Row, RowSet
from kvtop.workloads.spec import REPLAYS
from kvtop.workloads.words import counted, shorten


def predecessors(rows: list[Row]) -> dict[int, tuple[int, ...]]:
    """By position of each row that waits: the positions of those it waits for, all before it.

    Rows that wait for nobody are left out. A turn that was cut away counts as ended long ago.

    Raises:
        WorkloadError: turns of a session that waits are not in order of arrival, or a row waits for a later one.
    """
    if all(row.think_ns is None for row in rows):
        return {}
    last: dict[str, int] = {}  # by session
    place: dict[tuple[str, int], int] = {}
    found: dict[int, tuple[int, ...]] = {}
    wanted = {key for row in rows if row.think_ns is not None for key in row.after}
    later = {(row.session_id, row.turn) for row in rows} & wanted
    for index, row in enumerate(rows):
        key = (row.session_id, row.turn)
        if row.think_ns is not None:
            found[index] = _waits_for(row, rows, last, place, later)
        last[row.session_id] = place[key] = index
        later.discard(key)
    return {index: before for index, before in found.items() if before}


def _waits_for(
    row: Row, rows: list[Row], last: dict[str, int], place: dict[tuple[str, int], int], later: set[tuple[str, int]]
) -> tuple[int, ...]:
    what = f"session {shorten(row.session_id)}: turn {row.turn}"
    before = []
    if row.session_id and row.session_id in last:
        previous = last[row.session_id]
        if rows[previous].turn >= row.turn:
            raise WorkloadError(f"{what} comes after turn {rows[previous].turn}, expected turns in order of arrival")
        before.append(previous)
    for key in row.after:
        if key in later:
            raise WorkloadError(f"{what} waits for turn {key[1]} of session {shorten(key[0])}, which arrives later")
        if key in place:
            before.append(place[key])
    return tuple(dict.fromkeys(before))


def check_replay(mode: str, what: str = "replay") -> None:
    """Raise UnknownName for a mode that does not exist."""
    if mode not in REPLAYS:
        raise UnknownName(what, mode, REPLAYS)


def as_replayed(made: RowSet, mode: str, name: str) -> RowSet:
    """The rows as they are served: with ``open`` none waits for another, and a notice says so.

    Raises:
        UnknownName: no such mode.
        WorkloadError: an open loop of turns whose times nobody recorded.
    """
    check_replay(mode)
    num_turns = sum(row.think_ns is not None for row in made.rows)
    if mode == "closed" or not num_turns:
        return made
    if made.nominal_arrivals:
        raise WorkloadError(f"replay open: {name} is a closed loop: when its turns arrive was never recorded")
    rows = [row if row.think_ns is None else msgspec.structs.replace(row, think_ns=None) for row in made.rows]
    text = (
        f"replay open: {counted(num_turns, 'turn')} sent at the recorded time, whether the one before has ended or not"
    )
    return msgspec.structs.replace(made, rows=rows, notices=[*made.notices, text])
