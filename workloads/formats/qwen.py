"""Qwen-Bailian JSONL: chats of a production service, with one id for each 16 prompt tokens.

``timestamp`` is in s from the trace's start, ``parent_chat_id`` names the turn that a turn continues (-1: it opens a
chat). How the last, partial block is treated is not written down: either rule is accepted, if all rows follow it.
A turn whose parent already has a follow-up is a branch: a session of its own that waits for the parent. How long an
answer took is not recorded, so the time from a turn's arrival to the next stands for the think time.
Source: Wang et al., "KVCache Cache in the Wild", USENIX ATC 2025.
"""

from __future__ import annotations

import msgspec

from kvtop.engine.errors import WorkloadError
from kvtop.workloads.files import TextFile
from kvtop.workloads.formats.base import NS_PER_S, Clock, ReadOptions, Stamped, Trace, TraceFormat, check_length, finish
from kvtop.workloads.formats.hash_ids import CEIL, FLOOR, SharedIds, check_ids, num_ids, prefix_notices
from kvtop.workloads.formats.json_rows import HASH_IDS, TOKENS, Field, json_lines, unit_ns
from kvtop.workloads.rows import Row
from kvtop.workloads.words import counted, shorten

HASH_BLOCK_TOKENS = 16
NO_PARENT = -1
FIELDS = {
    "chat_id": Field((int,), "an integer"),
    "parent_chat_id": Field((int,), "an integer (-1: none)"),
    "timestamp": Field((int, float), "a number (seconds)", optional=True),
    "input_length": TOKENS,
    "output_length": TOKENS,
    "type": Field((str,), "a text", optional=True),
    "turn": Field((int,), "an integer"),
    "hash_ids": HASH_IDS,
}


class _Line(msgspec.Struct, gc=False):
    chat_id: int
    parent_chat_id: int
    input_length: int
    output_length: int
    turn: int
    hash_ids: tuple[int, ...]
    timestamp: float | None = None
    type: str | None = None


_decode = msgspec.json.Decoder(_Line).decode


def read(file: TextFile, options: ReadOptions) -> Trace:
    """Read every row; a malformed one raises WorkloadError with its number and reason."""
    block = HASH_BLOCK_TOKENS if options.hash_block_tokens is None else options.hash_block_tokens
    stamped: list[Stamped] = []
    ids = SharedIds()
    parents: dict[str, int] = {}
    roundings = {CEIL, FLOOR}
    num_dropped = 0
    for line, found in json_lines(file, _decode, FIELDS):
        roundings = _check(found, block, roundings, file.path, line)
        session = str(found.chat_id)
        if session in parents:
            raise WorkloadError(f"chat_id {shorten(found.chat_id)} appears twice", path=file.path, row=line)
        parents[session] = found.parent_chat_id
        if found.output_length == 0:
            num_dropped += 1
            continue
        time_ns = None
        if found.timestamp is not None:
            time_ns = unit_ns(found.timestamp, NS_PER_S, "timestamp", "seconds", file.path, line)
        row = Row(0, found.input_length, found.output_length, ids.of(found.hash_ids), block if found.hash_ids else 0)
        row = msgspec.structs.replace(row, klass=found.type or "", session_id=session, turn=found.turn)
        stamped.append(Stamped(line, time_ns, row))
    rounding = CEIL if CEIL in roundings else FLOOR
    trace = finish(
        stamped,
        QWEN,
        path=file.path,
        sha256=file.sha256,
        num_dropped=num_dropped,
        notices=prefix_notices(entry.row for entry in stamped),
        rounding=rounding,
    )
    rows, notices = _linked(trace.rows, parents)
    return msgspec.structs.replace(trace, rows=rows, notices=[*trace.notices, *notices])


def _check(found: _Line, block: int, roundings: set[str], path: str, line: int) -> set[str]:
    """The rules of rounding that this row leaves possible.

    Raises:
        WorkloadError: none; or a length or id that cannot be.
    """
    check_length(found.input_length, "input_length", path=path, line=line)
    check_length(found.output_length, "output_length", path=path, line=line, low=0)
    if not 0 <= found.turn <= 2**31:
        raise WorkloadError(f"turn is {shorten(found.turn)}, expected 0 to {2**31:,}", path=path, row=line)
    fits = {rule for rule in roundings if num_ids(found.input_length, block, rule) == len(found.hash_ids)}
    check_ids(found.hash_ids, found.input_length, block, min(fits or roundings), "input_length", path, line)
    return fits


def _linked(rows: list[Row], parents: dict[str, int]) -> tuple[list[Row], list[str]]:
    """Rows, which still have their chat_id as session, as turns of sessions; in order of arrival."""
    turn_of: dict[str, Row] = {}  # by chat_id, as linked
    last: dict[str, int] = {}  # last turn, by session
    linked = []
    num_orphans = num_turns = 0
    for row in rows:
        chat = row.session_id
        parent = turn_of.get(str(parents[chat]))
        if parent is None:
            num_orphans += parents[chat] != NO_PARENT
        else:
            num_turns += 1
            continues = last[parent.session_id] == parent.turn
            row = msgspec.structs.replace(
                row,
                session_id=parent.session_id if continues else chat,
                turn=max(row.turn, parent.turn + 1),
                think_ns=row.arrival_ns - parent.arrival_ns,
                after=() if continues else ((parent.session_id, parent.turn),),
            )
        turn_of[chat] = row
        last[row.session_id] = row.turn
        linked.append(row)
    notices = []
    if num_turns:
        notices.append(
            f"{counted(num_turns, 'think time')} not recorded: the time since the turn before arrived is used, "
            f"which holds its answer too"
        )
    if num_orphans:
        notices.append(
            f"{counted(num_orphans, 'turn')} whose parent is not in the trace, or not before it: they open a session"
        )
    return linked, notices


QWEN = TraceFormat(
    name="qwen",
    summary='JSON lines like {"chat_id": 1, "parent_chat_id": -1, "timestamp": 0.5, "input_length": 20, ...}',
    keys=tuple(FIELDS),
    read=read,
    clock=Clock(key="timestamp", unit="seconds"),
    is_json=True,
    takes_hash_block=True,
)
